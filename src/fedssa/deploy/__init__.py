"""A federation across sites runs the same methods, clients and server loop, with Flower in between."""
