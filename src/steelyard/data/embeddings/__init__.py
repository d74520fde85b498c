"""Rows of numbers by place, of any width, kind of number and tier of memory."""

from steelyard.data.embeddings.store import EmbeddingStore, Tier

__all__ = ["EmbeddingStore", "Tier"]
