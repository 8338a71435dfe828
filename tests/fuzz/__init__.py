"""The fuzz campaign: what is wrong with an answer, a recipe or a file ends in one line of ours, or changes nothing."""
