"""Scaling laws.

Measured points in, a fitted law with honest intervals out, and a decision from it.
"""

from steelyard.laws.decisions.allocate import Allocation, Limits, allocate
from steelyard.laws.decisions.best_schedule import BestSchedule, best_schedule
from steelyard.laws.decisions.compare import Comparison, compare
from steelyard.laws.decisions.curate import (
    Crossing,
    Curation,
    PoolFrontier,
    best_weights,
    curate,
    pool_frontier,
)
from steelyard.laws.decisions.debug_run import Diagnosis, debug_run
from steelyard.laws.decisions.envelope import Envelope, fit_envelope
from steelyard.laws.decisions.frontier import (
    above_trend,
    decimal_year,
    rank_at_publication,
    top_at_publication,
)
from steelyard.laws.decisions.next_cell import NextCell, next_cell
from steelyard.laws.decisions.optima.isoflop import BudgetMinimum, IsoFlop, isoflop
from steelyard.laws.decisions.optima.learning_rate import (
    LearningRate,
    Penalty,
    RateTransfer,
    fit_penalty,
    recommend_learning_rate,
    transfer_learning_rate,
)
from steelyard.laws.decisions.optima.optimum import Optima, Optimum, optima, optimum
from steelyard.laws.decisions.repeated import RepeatedAllocation, allocate_repeated
from steelyard.laws.decisions.selection.candidates import Candidate
from steelyard.laws.decisions.selection.select import Selection, select_model
from steelyard.laws.decisions.sources import SourceComparison, compare_sources
from steelyard.laws.decisions.study import StudyPlan, branch_tokens, cheapest_study, plan_study
from steelyard.laws.decisions.updates_budget import (
    BestUpdates,
    BudgetLaw,
    best_updates_to_data,
    budget_law,
)
from steelyard.laws.decisions.wall import Wall, balance_points, chip_trend, wall
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.censored import fit_censored
from steelyard.laws.fitting.diagnostics import FlatDirection, Influence, Outlier
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fit import fit, fit_each
from steelyard.laws.fitting.fitted import Fit, Prediction
from steelyard.laws.fitting.holdout import Holdout
from steelyard.laws.fitting.law import Law, Parameter, Prior
from steelyard.laws.fitting.minimizer import huber
from steelyard.laws.fitting.profile import Profile
from steelyard.laws.fitting.terms import Constant, Input, Minimum, Power, Product, Raised, Sum, Term
from steelyard.laws.forms.batch_size import (
    CostOptimalBatch,
    CriticalBatch,
    Tradeoff,
    batch_for_exchange_rate,
    cost_optimal_batch,
    critical_batch,
    fit_steps,
    steps_to_reach,
    steps_to_target,
    time_compute,
    tradeoff,
)
from steelyard.laws.forms.chinchilla import (
    chinchilla,
    downstream_error,
    kaplan,
    overtraining,
    predict_error,
)
from steelyard.laws.forms.contrastive import Bottleneck, bottleneck, contrastive, contrastive_gmacs
from steelyard.laws.forms.growth import fit_growth, growth
from steelyard.laws.forms.growth_line import (
    crossing_year,
    doubling_time_years,
    forecast_growth,
    growth_per_two_years,
    growth_per_year,
    last_residual,
)
from steelyard.laws.forms.learning_curves.best_over_sizes import BestOverSizes, best_over_sizes
from steelyard.laws.forms.learning_curves.curve_laws import (
    model_size_law,
    power_law_floor,
    smooth_transition,
)
from steelyard.laws.forms.learning_curves.learning_curve import CurveFit, fit_learning_curve
from steelyard.laws.forms.learning_rate import (
    HorizonError,
    fit_learning_rate,
    learning_rate,
    leave_one_horizon_out,
)
from steelyard.laws.forms.named import FORMS, law_named
from steelyard.laws.forms.pools.pool_fit import PoolFit, fit_pools
from steelyard.laws.forms.pools.pool_utility import binomial_weights, effective_pool, pool_utility
from steelyard.laws.forms.powers import (
    batch_law,
    batch_of_loss,
    critical_batch_at_loss,
    power_law,
)
from steelyard.laws.forms.rectified import (
    fit_rectified,
    fit_vanilla,
    rectified,
    required_data,
    transition,
    vanilla,
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
from steelyard.laws.forms.schedules.schedule import (
    CooldownGain,
    Curve,
    cooldown_gain,
    fit_curves,
    multi_power,
    predict_curve,
)
from steelyard.laws.forms.schedules.schedule_rates import LearningRates
from steelyard.laws.forms.updates.return_curves import (
    DataNeeds,
    ReturnCurve,
    data_needs,
    return_thresholds,
)
from steelyard.laws.forms.updates.updates_fit import fit_updates
from steelyard.laws.forms.updates.updates_to_data import (
    UpdatesLaw,
    fit_hyperparameters,
    updates_to_data,
)
from steelyard.laws.registry import PublishedLaw, published
from steelyard.laws.tables.table import RunTable

__all__ = [
    "FORMS",
    "Allocation",
    "BestOverSizes",
    "BestSchedule",
    "BestUpdates",
    "Bootstrap",
    "Bottleneck",
    "BudgetLaw",
    "BudgetMinimum",
    "Candidate",
    "Comparison",
    "Constant",
    "CooldownGain",
    "CostOptimalBatch",
    "CriticalBatch",
    "Crossing",
    "Curation",
    "Curve",
    "CurveFit",
    "DataNeeds",
    "Diagnosis",
    "Envelope",
    "Estimate",
    "Fit",
    "FlatDirection",
    "Holdout",
    "HorizonError",
    "Influence",
    "Input",
    "IsoFlop",
    "Law",
    "LearningRate",
    "LearningRates",
    "Limits",
    "Minimum",
    "NextCell",
    "Optima",
    "Optimum",
    "Outlier",
    "Parameter",
    "Penalty",
    "PoolFit",
    "PoolFrontier",
    "Power",
    "Prediction",
    "Prior",
    "Product",
    "Profile",
    "PublishedLaw",
    "Raised",
    "RateTransfer",
    "RepeatedAllocation",
    "RepetitionConstants",
    "ReturnCurve",
    "RunTable",
    "Selection",
    "SourceComparison",
    "StudyPlan",
    "Sum",
    "Term",
    "Tradeoff",
    "UpdatesLaw",
    "Wall",
    "above_trend",
    "allocate",
    "allocate_repeated",
    "balance_points",
    "batch_for_exchange_rate",
    "batch_law",
    "batch_of_loss",
    "best_over_sizes",
    "best_schedule",
    "best_updates_to_data",
    "best_weights",
    "binomial_weights",
    "bottleneck",
    "branch_tokens",
    "budget_law",
    "cheapest_study",
    "chinchilla",
    "chip_trend",
    "compare",
    "compare_sources",
    "contrastive",
    "contrastive_gmacs",
    "cooldown_gain",
    "cost_optimal_batch",
    "critical_batch",
    "critical_batch_at_loss",
    "crossing_year",
    "curate",
    "data_constrained",
    "data_needs",
    "debug_run",
    "decimal_year",
    "doubling_time_years",
    "downstream_error",
    "effective_parameters",
    "effective_pool",
    "effective_tokens",
    "fit",
    "fit_censored",
    "fit_curves",
    "fit_each",
    "fit_envelope",
    "fit_growth",
    "fit_hyperparameters",
    "fit_learning_curve",
    "fit_learning_rate",
    "fit_penalty",
    "fit_pools",
    "fit_rectified",
    "fit_steps",
    "fit_updates",
    "fit_vanilla",
    "forecast_growth",
    "growth",
    "growth_per_two_years",
    "growth_per_year",
    "huber",
    "isoflop",
    "kaplan",
    "last_residual",
    "law_named",
    "learning_rate",
    "leave_one_horizon_out",
    "model_size_law",
    "multi_power",
    "next_cell",
    "optima",
    "optimum",
    "overfitting_penalty",
    "overtraining",
    "plan_study",
    "pool_frontier",
    "pool_utility",
    "power_law",
    "power_law_floor",
    "predict_curve",
    "predict_error",
    "published",
    "rank_at_publication",
    "recommend_learning_rate",
    "rectified",
    "repetition_constants",
    "required_data",
    "return_thresholds",
    "routed",
    "select_model",
    "smooth_transition",
    "steps_to_reach",
    "steps_to_target",
    "time_compute",
    "top_at_publication",
    "tradeoff",
    "transfer_learning_rate",
    "transition",
    "updates_to_data",
    "value_of_next_epoch",
    "vanilla",
    "wall",
]
