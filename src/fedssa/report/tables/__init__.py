"""Tables show runs and methods on the terminal, in Markdown and CSV files, and on the page."""
