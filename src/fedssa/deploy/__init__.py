"""Across sites: the same methods, clients and server loop, with Flower in between."""
