"""Arrivals that were rounded to a step, and how they are spread over it."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["resolution_of", "spread_ties"]

_MANY_EQUAL = 0.2
"""Share of arrivals at one moment from which on times count as rounded."""


def resolution_of(arrival_s: NDArray[np.float64]) -> float:
    """Return the step to which arrivals seem to be rounded, 0 for none that shows."""
    gaps = np.diff(arrival_s)
    apart = gaps[gaps > 0]
    if not len(apart) or 1 - len(apart) / len(gaps) < _MANY_EQUAL:
        return 0.0
    return float(np.quantile(apart, 0.05))


def spread_ties(times: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
    """Spread rounded arrivals over the step to which they were rounded."""
    gaps = np.diff(times)
    apart = gaps[gaps > 0]
    if len(apart) == len(gaps) or not len(apart):
        return times
    step = resolution_of(times) or float(apart.min())
    return np.sort(times + generator.random(len(times)) * step)
