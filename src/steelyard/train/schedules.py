"""Learning-rate schedules: pure functions from a step to a multiplier of the peak rate.

Step `n` counts from 0; the multiplier of step `n` scales the update that turns the weights after
`n` steps into those after `n + 1`.
"""

import math
from collections.abc import Callable
from typing import Literal

from steelyard.errors import ConfigError
from steelyard.train.config import TrainConfig

__all__ = ["Schedule", "constant", "cosine", "for_config", "trapezoid"]

Schedule = Callable[[int], float]


def _check(total: int, warmup: int, cooldown: int = 0) -> None:
    """Refuse lengths that do not fit in the run."""
    if total < 1 or warmup < 0 or cooldown < 0 or warmup + cooldown > total:
        raise ConfigError(
            f"a run of {total} steps cannot hold {warmup} warm-up and {cooldown} cooldown steps",
            hint="the run needs at least 1 step, and at least as many as warm-up and cooldown "
            "together",
        )


def _warm(step: int, warmup: int) -> float:
    """Rise linearly; 1/warmup at step 0, 1 from step warmup - 1 on."""
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


def constant(total: int, *, warmup: int = 0) -> Schedule:
    """Warm up, then stay at 1.

    Args:
        total: steps of the run, at least 1.
        warmup: steps of linear warm-up.

    Returns:
        Multiplier by step, in (0, 1].

    Raises:
        ConfigError: the warm-up is longer than the run.
    """
    _check(total, warmup)
    return lambda step: _warm(step, warmup)


def trapezoid(
    total: int, *, warmup: int = 0, cooldown: int, shape: Literal["1-sqrt", "linear"] = "1-sqrt"
) -> Schedule:
    """Warm up, stay at 1, and fall to 0 over the last `cooldown` steps.

    The first cooldown step already runs below 1 and the last one above 0, so no step is wasted on a
    rate of 0.

    Args:
        total: steps of the run, at least 1.
        warmup: steps of linear warm-up.
        cooldown: steps of the fall; 0 gives a constant rate.
        shape: "1-sqrt" for 1 - sqrt(x), "linear" for 1 - x, where x runs from 0 to 1 over the
            cooldown.

    Returns:
        Multiplier by step, in (0, 1]; 0 beyond the end.

    Raises:
        ConfigError: warm-up and cooldown together are longer than the run.

    Source: Haegele et al. 2024 (arXiv 2405.18392), equations 1 and 2.
    """
    _check(total, warmup, cooldown)
    start = total - cooldown

    def multiplier(step: int) -> float:
        if step < start:
            return _warm(step, warmup)
        # x runs over 1/(c+1) .. c/(c+1): no step has the full rate and none has a rate of 0.
        x = min(1.0, (step - start + 1) / (cooldown + 1))
        return 1 - math.sqrt(x) if shape == "1-sqrt" else 1 - x

    return multiplier


def cosine(total: int, *, warmup: int = 0, final: float = 0.1) -> Schedule:
    """Warm up, then follow half a cosine from 1 to `final` at the end of the run.

    Args:
        total: steps of the run, at least 1.
        warmup: steps of linear warm-up.
        final: multiplier at the end, in [0, 1].

    Returns:
        Multiplier by step; `final` beyond the end.

    Raises:
        ConfigError: the warm-up is longer than the run, or `final` is outside [0, 1].

    Source: Loshchilov and Hutter 2017 (arXiv 1608.03983), equation 5; decay to 10 % as in Hoffmann
        et al. 2022.
    """
    _check(total, warmup)
    if not 0 <= final <= 1:
        raise ConfigError(f"the cosine's final multiplier {final} must lie in [0, 1]")

    def multiplier(step: int) -> float:
        if step < warmup:
            return _warm(step, warmup)
        progress = min(1.0, (step - warmup) / max(1, total - warmup))
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))

    return multiplier


def for_config(config: TrainConfig) -> Schedule:
    """Return the schedule a training configuration asks for."""
    if config.schedule == "cosine":
        return cosine(config.steps, warmup=config.warmup_steps)
    return trapezoid(
        config.steps,
        warmup=config.warmup_steps,
        cooldown=config.cooldown_steps,
        shape=config.schedule,
    )
