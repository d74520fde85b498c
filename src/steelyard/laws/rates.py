"""The best learning rate: laws of sweeps, what to run with, and how to carry it on."""

from steelyard.laws.decisions.optima.horizons import fit_learning_rate, leave_one_horizon_out
from steelyard.laws.decisions.optima.learning_rate import (
    Penalty,
    fit_penalty,
    recommend_learning_rate,
    transfer_learning_rate,
)
from steelyard.laws.forms.learning_rate import learning_rate

__all__ = [
    "Penalty",
    "fit_learning_rate",
    "fit_penalty",
    "learning_rate",
    "leave_one_horizon_out",
    "recommend_learning_rate",
    "transfer_learning_rate",
]
