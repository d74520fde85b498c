"""Parsers of the literature, as their authors' programs run them, for comparison."""
