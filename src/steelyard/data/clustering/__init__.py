"""Clusters of the rows of a table: around means, as a mixture, by density, or in one pass."""

from steelyard.data.clustering.clustered import ClusteredTable, ClusterOptions, cluster_table
from steelyard.data.clustering.density import DensityClusters, density_clusters, usual_radius
from steelyard.data.clustering.feature_tree import ClusterFeatureTree
from steelyard.data.clustering.mixture import GaussianMixture, fit_mixture
from steelyard.data.clustering.model import ClusterModel
from steelyard.data.clustering.quality import davies_bouldin, silhouette

__all__ = [
    "ClusterFeatureTree",
    "ClusterModel",
    "ClusterOptions",
    "ClusteredTable",
    "DensityClusters",
    "GaussianMixture",
    "cluster_table",
    "davies_bouldin",
    "density_clusters",
    "fit_mixture",
    "silhouette",
    "usual_radius",
]
