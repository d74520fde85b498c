"""Fewer columns that keep what many say."""

from steelyard.data.reduction.pca import PCA, FittedPCA

__all__ = ["PCA", "FittedPCA"]
