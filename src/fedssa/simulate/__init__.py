"""Simulated federations: their clients, their runs, the workers that train them."""
