"""This package is the side of a site, which keeps its model and its data."""
