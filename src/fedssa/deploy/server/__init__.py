"""This package is the coordinator's side of a federation."""
