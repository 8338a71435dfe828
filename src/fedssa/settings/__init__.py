"""A recipe as validated settings. This file imports nothing: who needs TOML alone must not wait for torch."""
