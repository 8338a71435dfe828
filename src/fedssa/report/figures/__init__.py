"""Drawings are lists of lines, dots, marks and words, so that page, SVG file and PNG file are one drawing."""
