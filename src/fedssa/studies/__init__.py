"""A study is many runs: comparisons, grids, the paper's experiments, and how long they take."""
