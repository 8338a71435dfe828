"""Conclusions from run directories: numbers (summary), tables and curves (terminal), pictures (figures).

Reports read what a run has written and never import torch.
"""
