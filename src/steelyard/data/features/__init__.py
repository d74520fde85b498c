"""Rows of a table as numbers: standardized columns, values of text as flags, fewer dimensions."""

from steelyard.data.features.encoder import FeatureColumn, FeatureEncoder
from steelyard.data.features.finding import find_features
from steelyard.data.features.nearest import nearest_rows
from steelyard.data.features.odd_numbers import OddNumbersFold
from steelyard.data.features.pca import PrincipalComponents
from steelyard.data.features.projection import RandomProjection
from steelyard.data.features.randomized import randomized_components
from steelyard.data.features.reducing import Reduction, fit_reduction, parse_reduction
from steelyard.data.features.store import FeatureStore, write_features
from steelyard.data.features.writing import ReducedTable, write_reduced

__all__ = [
    "FeatureColumn",
    "FeatureEncoder",
    "FeatureStore",
    "OddNumbersFold",
    "PrincipalComponents",
    "RandomProjection",
    "ReducedTable",
    "Reduction",
    "find_features",
    "fit_reduction",
    "nearest_rows",
    "parse_reduction",
    "randomized_components",
    "write_features",
    "write_reduced",
]
