"""Simulated federations: in this process (serial, the reference) or on workers, processes here or actors elsewhere."""
