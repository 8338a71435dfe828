"""`make bench`: how fast this machine runs what a round is made of, as ratios measured in one run."""
