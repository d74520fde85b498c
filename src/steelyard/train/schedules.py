"""The learning-rate schedule a training configuration asks for, as multipliers of its peak."""

import numpy as np

from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.schedules import multipliers
from steelyard.train.estimator_config import EstimatorConfig

__all__ = ["for_config"]


_SHAPES: dict[str, multipliers.CooldownShape] = {"cosine-cooldown": "cosine"}
"""Names of shapes where the run's differ from the law's: there "cosine" spans the whole run."""


def for_config(config: EstimatorConfig) -> Array:
    """Return the multiplier of every step, [steps]."""
    schedule = config.schedule
    if not isinstance(schedule, str):
        return np.array(schedule)
    begin, final = config.warmup_from, config.final_fraction
    if final is None:
        final = 0.1 if schedule in ("cosine", "exponential") else 0.0
    if schedule == "cosine":
        return multipliers.cosine(
            config.steps, warmup=config.warmup_steps, final=final, begin=begin
        )
    return multipliers.trapezoid(
        config.steps,
        warmup=config.warmup_steps,
        cooldown=config.cooldown_steps,
        shape=_SHAPES.get(schedule, schedule),  # pyright: ignore[reportArgumentType]
        final=final,
        begin=begin,
        power=config.cooldown_power,
    )
