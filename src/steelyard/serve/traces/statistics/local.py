"""Arrivals inside windows of minutes: how uneven they are where the day's shape plays no part."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.serve.traces.statistics.rounding import resolution_of, spread_ties

__all__ = ["LocalArrivals", "local_arrivals", "local_variation"]

_WINDOW_S = 300.0
_LONGEST_S = 3600.0
_LEAST_ARRIVALS = 100
"""Mean arrivals of a window: the fullest of windows with fewer says more of chance than of load."""
_ROUNDED_S = 5.0
"""Steps longer than this are batches that came together, not the way in which times were noted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalArrivals:
    """Arrivals inside windows.

    Attributes:
        window_s: length of a window.
        variation: coefficient of variation of the gaps about the mean gap of their own window; 1 is
            Poisson, whatever the shape of the day.
        busiest_per_s: arrivals per second of the fullest window.
    """

    window_s: float
    variation: float
    busiest_per_s: float


def local_arrivals(arrival_s: NDArray[np.float64]) -> LocalArrivals:
    """Measure arrivals inside windows of five minutes, or longer ones where few arrive.

    Args:
        arrival_s: [R] seconds, not falling, which span some time.

    Returns:
        The measures; a trace shorter than two windows is one window.
    """
    times = arrival_s - arrival_s[0]
    if 0 < resolution_of(times) <= _ROUNDED_S:
        times = spread_ties(times, np.random.default_rng(0))
        times = times - times[0]
    span_s = float(times[-1])
    window_s = min(max(_WINDOW_S, _LEAST_ARRIVALS * span_s / len(times)), _LONGEST_S)
    whole = int(span_s // window_s)
    if whole < 2:
        mean = (len(times) - 1) / span_s
        groups = np.zeros(len(times) - 1, dtype=np.int64)
        found = local_variation(np.diff(times), groups)
        return LocalArrivals(window_s=span_s, variation=found, busiest_per_s=mean)
    window = (times // window_s).astype(np.int64)
    # A gap belongs to the window in which it begins: those that end outside are long ones, and
    # without them the others would seem more even than they are.
    return LocalArrivals(
        window_s=window_s,
        variation=local_variation(np.diff(times), window[:-1]),
        busiest_per_s=float(np.bincount(window)[:whole].max()) / window_s,
    )


def local_variation(gaps: NDArray[np.float64], group: NDArray[np.int64]) -> float:
    """Return the coefficient of variation of gaps about the mean of their own group.

    Args:
        gaps: [n] seconds between arrivals.
        group: [n] at least 0, which gaps share a mean.

    Returns:
        The coefficient of the Gamma distribution whose gaps would vary so about the mean of a
        sample as large as the groups; 1 where no group tells.
    """
    counts = np.bincount(group)
    means = np.bincount(group, gaps) / np.maximum(counts, 1)
    told = (counts > 1) & (means > 0)
    if not told.any():
        return 1.0
    inside = told[group]
    relative = gaps[inside] / means[group[inside]] - 1
    squared = float((relative**2).sum()) / float((counts[told] - 1).sum())
    # The mean of n gaps moves with them. For Gamma gaps of shape a the mean of `squared` is
    # 1 / (a + 1/n), as their shares of the sum follow Dirichlet's distribution.
    shape = 1 / squared - 1 / float(counts[told].mean()) if squared else math.inf
    return 1 / math.sqrt(shape) if shape > 0 else math.inf
