"""Widths of intervals from how far earlier forecasts were off on this machine."""

import math
from collections.abc import Sequence

import numpy as np

from steelyard.quantity import Check

__all__ = ["past_width"]

_PAST = 10
"""Checked forecasts that count; older ones tell of another load of the machine."""
_ENOUGH = 8
_ASSUMED_SCORES = (0.25, 0.67, 1.15, 1.96)
"""Absolute deviations at the 20, 50, 75 and 95 % of a normal distribution: they stand in for four
checked forecasts before there are any."""
_LEVEL = 0.8


def past_width(past: Sequence[Check], *, assumed_spread: float) -> float:
    """Return the half-width of an 80 % interval of the logarithm of a quantity.

    It is the quantile of how far earlier forecasts were off (split conformal prediction); an
    assumed spread stands in for the first few.

    Args:
        past: checked forecasts of the quantity, oldest first; the last ten count.
        assumed_spread: standard deviation of the logarithm before there are eight.

    Returns:
        The half-width.

    Source: Lei et al. 2018 (arXiv 1604.04173).
    """
    errors = [
        abs(math.log(item.measurement.value / item.forecast.value))
        for item in past[-_PAST:]
        if item.measurement.value > 0 and item.forecast.value > 0
    ]
    if len(errors) < _ENOUGH:
        errors += [assumed_spread * score for score in _ASSUMED_SCORES]
    # The next error is one more draw: of n values below it, the quantile is taken of n + 1.
    return float(np.quantile(errors, _LEVEL, method="weibull"))
