"""The system of the paper: knows no data set and no method."""
