"""Runs on disk: their directories, files, locks and environments, and how others follow them."""
