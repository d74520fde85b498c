"""Clusters around means: first centers, Lloyd's algorithm with or without bounds, small batches."""

from steelyard.data.kmeans.clusters import Clusters, kmeans
from steelyard.data.kmeans.distances import nearest, unit_rows

__all__ = ["Clusters", "kmeans", "nearest", "unit_rows"]
