"""Reinforcement learning: data, compute and settings by updates per environment step."""

from steelyard.laws.decisions.updates_budget import best_updates_to_data, budget_law
from steelyard.laws.forms.updates.return_curves import ReturnCurve, data_needs, return_thresholds
from steelyard.laws.forms.updates.updates_fit import fit_updates
from steelyard.laws.forms.updates.updates_to_data import fit_hyperparameters, updates_to_data

__all__ = [
    "ReturnCurve",
    "best_updates_to_data",
    "budget_law",
    "data_needs",
    "fit_hyperparameters",
    "fit_updates",
    "return_thresholds",
    "updates_to_data",
]
