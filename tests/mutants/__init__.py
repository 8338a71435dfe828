"""Mutation testing: one small mistake at a time is put into a copy of the sources, and the tests should notice it."""
