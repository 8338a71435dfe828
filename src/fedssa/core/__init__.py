"""Core is the system of the paper: rounds, clients, training and messages. It imports no method and no data set."""
