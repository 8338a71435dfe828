"""This package keeps runs on disk: directories, files, locks and environments, and how others follow them."""
