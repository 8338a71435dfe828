"""Where simulated clients train: in this process (serial, the reference), on a pool of worker processes, on Ray."""
