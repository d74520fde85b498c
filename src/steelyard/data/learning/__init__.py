"""Learners that read a table twice and keep a byte per value on disk."""

from steelyard.data.learning.boosting import BoostConfig, Boosted, boost
from steelyard.data.learning.fitting import FitOptions, FittedTable, fit_table
from steelyard.data.learning.model import TableModel
from steelyard.data.learning.scores import Scored, auc
from steelyard.data.learning.trees import TreeLimits

__all__ = [
    "BoostConfig",
    "Boosted",
    "FitOptions",
    "FittedTable",
    "Scored",
    "TableModel",
    "TreeLimits",
    "auc",
    "boost",
    "fit_table",
]
