"""A recipe becomes validated settings here. This file imports nothing: who needs TOML alone must not wait for torch."""
