"""Reports draw conclusions from run directories, in four packages that import only those before them.

read/      what the records of runs say: summaries, costs, groups of runs, statistics
figures/   drawings of it: scenes of lines and marks, as SVG, as PNG and in characters
tables/    tables of it, for the terminal, for Markdown and CSV files, for the page
page/      the whole report as one page and its files

Reports read what a run has written and never import torch.
"""
