"""Records of runs are read here, as summaries, costs, groups of runs that may be compared, and statistics."""
