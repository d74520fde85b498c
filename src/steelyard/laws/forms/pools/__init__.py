"""Pools of data with a utility and a half-life, and their mixtures."""
