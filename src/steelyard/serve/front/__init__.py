"""The HTTP face of an engine."""
