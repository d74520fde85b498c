"""Learners that read a table twice and keep a byte or a float per value on disk."""

from steelyard.data.learning.bayes import BayesConfig, NaiveBayes
from steelyard.data.learning.boosting import BoostConfig, Boosted, boost
from steelyard.data.learning.comparing import (
    ComparedLearner,
    ComparedTable,
    CompareOptions,
    compare_table,
)
from steelyard.data.learning.fitting import FittedTable, fit_table
from steelyard.data.learning.forest import Forest, ForestConfig
from steelyard.data.learning.kernel_machine import KernelConfig, KernelModel
from steelyard.data.learning.learners import FitJob, FittedLearner, LearnerConfig
from steelyard.data.learning.linear import LinearConfig, LinearModel
from steelyard.data.learning.model import TableModel
from steelyard.data.learning.neighbours import NeighbourConfig, Neighbours
from steelyard.data.learning.options import FitOptions
from steelyard.data.learning.perceptron import Perceptron
from steelyard.data.learning.ridge import RidgeConfig
from steelyard.data.learning.scores import Scored, auc
from steelyard.data.learning.trees import TreeLimits

LEARNERS: dict[str, type[LearnerConfig]] = {
    "boosted": BoostConfig,
    "forest": ForestConfig,
    "linear": LinearConfig,
    "ridge": RidgeConfig,
    "bayes": BayesConfig,
    "neighbours": NeighbourConfig,
    "kernel": KernelConfig,
}
"""Settings of learners by what users call them."""

__all__ = [
    "LEARNERS",
    "BayesConfig",
    "BoostConfig",
    "Boosted",
    "CompareOptions",
    "ComparedLearner",
    "ComparedTable",
    "FitJob",
    "FitOptions",
    "FittedLearner",
    "FittedTable",
    "Forest",
    "ForestConfig",
    "KernelConfig",
    "KernelModel",
    "LearnerConfig",
    "LinearConfig",
    "LinearModel",
    "NaiveBayes",
    "NeighbourConfig",
    "Neighbours",
    "Perceptron",
    "RidgeConfig",
    "Scored",
    "TableModel",
    "TreeLimits",
    "auc",
    "boost",
    "compare_table",
    "fit_table",
]
