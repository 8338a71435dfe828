"""A federation from sites: what its coordinator and its sites agree on, and what a site is. Both runtimes use it."""
