"""Scaling laws: measured points in, a fitted law with honest intervals out, and a decision from it."""

from steelyard.laws.decisions.allocate import Allocation, allocate
from steelyard.laws.decisions.envelope import Envelope, fit_envelope
from steelyard.laws.decisions.frontier import above_trend, decimal_year, rank_at_publication, top_at_publication
from steelyard.laws.decisions.repeated import RepeatedAllocation, allocate_repeated
from steelyard.laws.decisions.sources import SourceComparison, compare_sources
from steelyard.laws.decisions.wall import Wall, balance_points, chip_trend, wall
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fit import fit, fit_each
from steelyard.laws.fitting.fitted import Fit, Prediction
from steelyard.laws.fitting.holdout import Holdout
from steelyard.laws.fitting.identifiability import FlatDirection
from steelyard.laws.fitting.influence import Influence, Outlier
from steelyard.laws.fitting.law import Law, Parameter, Prior
from steelyard.laws.fitting.minimizer import huber
from steelyard.laws.fitting.profile import Profile
from steelyard.laws.fitting.terms import Constant, Input, Minimum, Power, Product, Raised, Sum, Term
from steelyard.laws.forms import FORMS, law_named
from steelyard.laws.forms.chinchilla import chinchilla, kaplan, power_law
from steelyard.laws.forms.contrastive import Bottleneck, bottleneck, contrastive, contrastive_gmacs
from steelyard.laws.forms.growth import (
    crossing_year,
    doubling_time_years,
    fit_growth,
    forecast_growth,
    growth,
    growth_per_two_years,
    growth_per_year,
    last_residual,
)
from steelyard.laws.forms.repetition import (
    RepetitionConstants,
    data_constrained,
    effective_tokens,
    overfitting_penalty,
    repetition_constants,
    value_of_next_epoch,
)
from steelyard.laws.forms.routed import effective_parameters, routed
from steelyard.laws.registry import PublishedLaw, published

__all__ = [
    "FORMS",
    "Allocation",
    "Bottleneck",
    "Constant",
    "Envelope",
    "Estimate",
    "Fit",
    "FlatDirection",
    "Holdout",
    "Influence",
    "Input",
    "Law",
    "Minimum",
    "Outlier",
    "Parameter",
    "Power",
    "Prediction",
    "Prior",
    "Product",
    "Profile",
    "PublishedLaw",
    "Raised",
    "RepeatedAllocation",
    "RepetitionConstants",
    "SourceComparison",
    "Sum",
    "Term",
    "Wall",
    "above_trend",
    "allocate",
    "allocate_repeated",
    "balance_points",
    "bottleneck",
    "chinchilla",
    "chip_trend",
    "compare_sources",
    "contrastive",
    "contrastive_gmacs",
    "crossing_year",
    "data_constrained",
    "decimal_year",
    "doubling_time_years",
    "effective_parameters",
    "effective_tokens",
    "fit",
    "fit_each",
    "fit_envelope",
    "fit_growth",
    "forecast_growth",
    "growth",
    "growth_per_two_years",
    "growth_per_year",
    "huber",
    "kaplan",
    "last_residual",
    "law_named",
    "overfitting_penalty",
    "power_law",
    "published",
    "rank_at_publication",
    "repetition_constants",
    "routed",
    "top_at_publication",
    "value_of_next_epoch",
    "wall",
]
