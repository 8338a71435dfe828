"""The engine trains simulated clients in this process (serial, the reference), on a pool of processes or on Ray."""
