"""Federations on one machine: in this process (serial, the reference) or on a pool of worker processes."""
