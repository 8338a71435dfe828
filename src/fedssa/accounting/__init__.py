"""Costs: FLOPs of what a method really computes. Communication is counted from the payloads, in core."""
