"""Tables of runs and methods, for the terminal, for Markdown and CSV files, and for the page."""
