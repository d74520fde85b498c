"""How fitted parameters and estimates are worded, wherever they are printed.

What the runs do not determine is said to be so, in the same words everywhere, and never quoted as
an interval.
"""

from collections.abc import Callable

import numpy as np

from steelyard.laws.fitting.estimate import NOT_DETERMINED, is_determined, normal
from steelyard.laws.fitting.fitted import Fit
from steelyard.runs.wording import more_digits, number_text

__all__ = ["ends_words", "is_known", "parameter_words"]

_MOST_OF_BOUNDS = 0.5
"""An exponent whose interval covers more than this of the values the law allows is not known."""


def _number(value: float, more: int) -> str:
    """Print a number with four significant digits or more."""
    return number_text(float(f"{value:.{4 + more}g}"), more=more)


def ends_words(
    value: float,
    low: float,
    high: float,
    *,
    write: Callable[[float, int], str] = _number,
    is_known: bool | None = None,
) -> tuple[str, str]:
    """Print a value and its interval.

    Args:
        value: fitted value.
        low: lower end of its interval.
        high: upper end of its interval.
        write: prints a number with so many digits more than usual.
        is_known: whether the interval says anything; None to judge it as that of a size.

    Returns:
        The value, and its interval, nothing for one without a width, or that the runs do not
        determine it.
    """
    if not (is_determined(low, high) if is_known is None else is_known):
        return write(value, 0), NOT_DETERMINED
    if low == high:
        return write(value, 0), ""
    more = more_digits(write, [value], low, high)
    return write(value, more), f"{write(low, more)} – {write(high, more)}"


def is_known(fit: Fit, name: str, low: float, high: float) -> bool:
    """Say whether an interval of a parameter is narrow enough to be quoted.

    Args:
        fit: the fit.
        name: name of the parameter.
        low: lower end, natural units.
        high: upper end.

    Returns:
        False for a positive parameter whose ends are more than three orders of magnitude apart, and
        for an exponent whose interval covers more than half of the values that the law allows.
    """
    item = fit.law.parameters[fit.law.names.index(name)]
    if item.transform == "log":
        return is_determined(low, high)
    return high - low <= _MOST_OF_BOUNDS * (item.high - item.low)


def parameter_words(fit: Fit, name: str, level: float = 0.8) -> tuple[str, str]:
    """Print a fitted parameter and its bootstrap interval.

    Args:
        fit: the fit.
        name: name of the parameter.
        level: probability inside the interval.

    Returns:
        The value, and its interval or that the runs do not determine it, which the curvature of the
        objective says at a bound and without bootstraps; these give no interval.
    """
    value = fit.params[name]
    low, high = fit.interval(name, level)
    # Samples that a bound holds together look certain, and without samples there is no width.
    is_blind = name in fit.at_bounds or not len(fit.samples)
    judged = _curved(fit, name, level) if is_blind else (low, high)
    return ends_words(value, low, high, is_known=is_known(fit, name, *judged))


def _curved(fit: Fit, name: str, level: float) -> tuple[float, float]:
    """Return the interval of a parameter along the directions the points leave nearly free."""
    shares = [item.sd * abs(item.components.get(name, 0.0)) for item in fit.flat_directions]
    reach = normal(level) * float(np.sqrt(np.sum(np.square(shares))))
    value = fit.params[name]
    if fit.law.parameters[fit.law.names.index(name)].transform == "log":
        with np.errstate(over="ignore"):
            return float(value * np.exp(-reach)), float(value * np.exp(reach))
    return value - reach, value + reach
