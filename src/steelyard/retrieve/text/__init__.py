"""Vectors of texts that need no model: what words stand in them, in few dimensions."""

from steelyard.retrieve.text.encoder import LatentEncoder

__all__ = ["LatentEncoder"]
