"""This package is what `import fedssa` offers: runs with their results, and models to use elsewhere."""
