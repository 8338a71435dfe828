"""This package simulates federations: their clients, their runs, and the workers that train them."""
