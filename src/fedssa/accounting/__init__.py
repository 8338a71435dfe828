"""This counts the FLOPs that a method really computes. Communication is counted from the payloads, in core."""
