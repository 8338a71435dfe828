"""Figures as lists of lines, dots, marks and words, so that the page, the SVG file and the PNG file are one drawing."""
