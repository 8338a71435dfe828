"""Many runs: comparisons, grids, the paper's experiments, and how long they take."""
