"""Learning curves: error over data, loss over steps, and what another schedule gives."""

from steelyard.laws.decisions.best_schedule import best_schedule
from steelyard.laws.decisions.debug_run import debug_run
from steelyard.laws.forms.learning_curves.best_over_sizes import best_over_sizes
from steelyard.laws.forms.learning_curves.curve_laws import smooth_transition
from steelyard.laws.forms.learning_curves.learning_curve import fit_learning_curve
from steelyard.laws.forms.schedules.curves import (
    Curve,
    cooldown_gain,
    fit_curves,
    predict_curve,
)
from steelyard.laws.forms.schedules.schedule import multi_power
from steelyard.laws.forms.schedules.schedule_rates import LearningRates

__all__ = [
    "Curve",
    "LearningRates",
    "best_over_sizes",
    "best_schedule",
    "cooldown_gain",
    "debug_run",
    "fit_curves",
    "fit_learning_curve",
    "multi_power",
    "predict_curve",
    "smooth_transition",
]
