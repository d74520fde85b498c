"""The learning-rate schedule a training configuration asks for, as multipliers of its peak."""

import numpy as np

from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.schedules import multipliers
from steelyard.train.estimator_config import EstimatorConfig

__all__ = ["for_config"]


def for_config(config: EstimatorConfig) -> Array:
    """Return the multiplier of every step, [steps]."""
    if not isinstance(config.schedule, str):
        return np.array(config.schedule)
    if config.schedule == "cosine":
        return multipliers.cosine(config.steps, warmup=config.warmup_steps)
    return multipliers.trapezoid(
        config.steps,
        warmup=config.warmup_steps,
        cooldown=config.cooldown_steps,
        shape=config.schedule,
    )
