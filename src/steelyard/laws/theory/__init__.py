"""Models of learning that can be solved exactly, and tables of runs whose truth is known."""

from steelyard.laws.theory.coverage import Coverage, coverage
from steelyard.laws.theory.generators import (
    GeneratedRuns,
    chinchilla_grid,
    crossed,
    draw,
    isoflop_grid,
    learning_curve_grid,
    random_feature_runs,
    repeated_data_grid,
    routed_grid,
)
from steelyard.laws.theory.kernel import from_kernel
from steelyard.laws.theory.mean_field.answers import (
    ComputeOptimal,
    LossCurve,
    ResourceBottleneck,
    TheoryExponents,
)
from steelyard.laws.theory.perceptron import BestShare, best_share, crossover, pruned_error
from steelyard.laws.theory.random_features import RandomFeatureModel
from steelyard.laws.theory.spectrum import Spectrum

__all__ = [
    "BestShare",
    "ComputeOptimal",
    "Coverage",
    "GeneratedRuns",
    "LossCurve",
    "RandomFeatureModel",
    "ResourceBottleneck",
    "Spectrum",
    "TheoryExponents",
    "best_share",
    "chinchilla_grid",
    "coverage",
    "crossed",
    "crossover",
    "draw",
    "from_kernel",
    "isoflop_grid",
    "learning_curve_grid",
    "pruned_error",
    "random_feature_runs",
    "repeated_data_grid",
    "routed_grid",
]
