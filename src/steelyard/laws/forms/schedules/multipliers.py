"""Learning-rate schedules as multipliers of the peak rate, one number per step.

Entry `n` counts from 0 and scales the update that turns the weights after `n` steps into those
after `n + 1`. The trainer and the laws read the same numbers.
"""

from typing import Literal

import numpy as np

from steelyard.errors import ConfigError
from steelyard.laws.fitting.terms import Array

__all__ = ["CooldownShape", "constant", "cosine", "trapezoid"]

CooldownShape = Literal[
    "1-sqrt", "linear", "cosine", "mirror-cosine", "1-square", "power", "exponential"
]


def constant(total: int, *, warmup: int = 0, begin: float = 0.0) -> Array:
    """Rise linearly to 1 and stay: 1/warmup at step 0, 1 from step warmup - 1 on.

    Args:
        total: steps of the run, at least 1.
        warmup: steps of the rise.
        begin: multiplier that the step before the first would have, in [0, 1].

    Returns:
        Multipliers in (0, 1], [total].

    Raises:
        ConfigError: the warm-up is longer than the run.

    Source: Goyal et al. 2017 (arXiv 1706.02677), section 2.2 (gradual warm-up from the rate of the
        small batch).
    """
    _check(total, warmup)
    if not warmup:
        return np.ones(total)
    return begin + (1 - begin) * np.minimum(1.0, np.arange(1, total + 1) / warmup)


def cosine(total: int, *, warmup: int = 0, final: float = 0.1, begin: float = 0.0) -> Array:
    """Warm up, then follow half a cosine from 1 towards `final`, reached one step after the end.

    Args:
        total: steps of the run, at least 1.
        warmup: steps of linear warm-up.
        final: multiplier at the end, in [0, 1].
        begin: multiplier before the first step, as for `constant`.

    Returns:
        Multipliers, [total].

    Raises:
        ConfigError: the warm-up is longer than the run, or `final` is outside [0, 1].

    Source: Loshchilov and Hutter 2017 (arXiv 1608.03983), equation 5; decay to 10 % as in Hoffmann
        et al. 2022.
    """
    rates = constant(total, warmup=warmup, begin=begin)
    _check_final(final)
    progress = np.arange(total - warmup) / max(1, total - warmup)
    rates[warmup:] = final + (1 - final) * 0.5 * (1 + np.cos(np.pi * progress))
    return rates


def trapezoid(
    total: int,
    *,
    warmup: int = 0,
    cooldown: int,
    shape: CooldownShape = "1-sqrt",
    final: float = 0.0,
    begin: float = 0.0,
    power: float = 0.5,
) -> Array:
    """Warm up, stay at 1, and fall towards `final` over the last `cooldown` steps.

    The first cooldown step already runs below 1 and the last one above `final`, so no step is
    wasted on a rate of 0.

    Args:
        total: steps of the run, at least 1.
        warmup: steps of linear warm-up.
        cooldown: steps of the fall; 0 gives a constant rate.
        shape: form of the fall, with x = 1/(c + 1) .. c/(c + 1) over the c cooldown steps: 1 -
            sqrt(x), 1 - x, (1 + cos pi x) / 2, its reflection about 1 - x, 1 - x^2, 1 - x^power, or
            final^x.
        final: multiplier that the step after the end would have, in [0, 1]; positive for
            "exponential".
        begin: multiplier before the first step, as for `constant`.
        power: exponent of the shape "power", above 0.

    Returns:
        Multipliers, [total].

    Raises:
        ConfigError: warm-up and cooldown together are longer than the run, `final` is outside [0,
            1], or an exponential fall is to end at 0.

    Source: Haegele et al. 2024 (arXiv 2405.18392), equations 1 and 2 and appendix A.
    """
    _check(total, warmup, cooldown)
    _check_final(final)
    if shape == "exponential" and not final > 0:
        raise ConfigError("an exponential cooldown cannot end at 0", hint="give final, such as 0.1")
    rates = constant(total, warmup=warmup, begin=begin)
    x = np.arange(1, cooldown + 1) / (cooldown + 1)
    fall = final**x if shape == "exponential" else final + (1 - final) * _fall(shape, x, power)
    rates[total - cooldown :] = fall
    return rates


def _fall(shape: CooldownShape, x: Array, power: float) -> Array:
    """Fall from 1 at x = 0 to 0 at x = 1."""
    cosine_fall = 0.5 * (1 + np.cos(np.pi * x))
    if shape == "1-sqrt":
        return 1 - np.sqrt(x)
    if shape == "cosine":
        return cosine_fall
    if shape == "mirror-cosine":
        return 2 * (1 - x) - cosine_fall
    if shape == "power":
        return 1 - x**power
    return 1 - x if shape == "linear" else 1 - x**2


def _check(total: int, warmup: int, cooldown: int = 0) -> None:
    """Refuse lengths that do not fit in the run."""
    if total < 1 or warmup < 0 or cooldown < 0 or warmup + cooldown > total:
        raise ConfigError(
            f"a run of {total} steps cannot hold {warmup} warm-up and {cooldown} cooldown steps",
            hint="the run needs at least 1 step, and at least as many as warm-up and cooldown "
            "together",
        )


def _check_final(final: float) -> None:
    """Refuse a last multiplier that is no fraction of the peak."""
    if not 0 <= final <= 1:
        raise ConfigError(f"the final multiplier {final} must lie in [0, 1]")
