"""What the records of runs say: summaries, costs, groups of runs that may be compared, statistics."""
