"""Fewer columns that keep what many say."""

from steelyard.data.reduction.components import FittedPCA
from steelyard.data.reduction.pca import PCA

__all__ = ["PCA", "FittedPCA"]
