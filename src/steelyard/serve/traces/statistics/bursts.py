"""How uneven arrivals are: over gaps, over windows of several lengths, and over the day."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.serve.traces.statistics.local import LocalArrivals, local_arrivals
from steelyard.serve.traces.statistics.rounding import resolution_of

__all__ = ["Burstiness", "DayShape", "WindowCounts", "burstiness", "day_shape"]

_WINDOWS_S = (1.0, 10.0, 60.0, 600.0, 3600.0, 86_400.0)
_LEAST_WINDOWS = 10
_DAY_S, _HOUR_S = 86_400.0, 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowCounts:
    """Arrivals counted in windows of one length.

    Attributes:
        window_s: length of a window.
        dispersion: variance over mean of the counts; 1 is Poisson.
        autocorrelation: correlation of the counts of neighbouring windows.
        peak_per_s: most arrivals of a window over its length.
    """

    window_s: float
    dispersion: float
    autocorrelation: float
    peak_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DayShape:
    """The rate over the day.

    Attributes:
        hourly: arrivals of each hour of the day over those of a mean hour, [24]; hours count from
            the file's second 0.
        explained: share of the variance of hourly counts that the hour of the day explains.
    """

    hourly: list[float]
    explained: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Burstiness:
    """How uneven arrivals are.

    Attributes:
        rate_per_s: mean arrivals per second.
        cv: coefficient of variation of the gaps; 1 is Poisson.
        gap_correlation: correlation of neighbouring gaps.
        resolution_s: step to which arrivals seem to be rounded, 0 for none that shows; figures of
            gaps and of shorter windows then say how they were rounded.
        windows: counts in windows of which the trace has at least ten.
        day: the rate over the day; None where the trace spans less than two.
        local: gaps inside windows of minutes, and the fullest of them; None where all arrive at
            once.
    """

    rate_per_s: float
    cv: float
    gap_correlation: float
    resolution_s: float
    windows: list[WindowCounts]
    day: DayShape | None
    local: LocalArrivals | None


def burstiness(arrival_s: NDArray[np.float64], first_s: float = 0.0) -> Burstiness:
    """Measure how uneven arrivals are.

    Args:
        arrival_s: [R] rising, from 0.
        first_s: time of the first one, which tells the hour of the day.

    Returns:
        The measures; not a number where the trace is too short for one.

    Source: Cox and Lewis 1966, The Statistical Analysis of Series of Events, chapter 4 (index of
    dispersion of counts).
    """
    gaps = np.diff(arrival_s)
    span_s = float(arrival_s[-1] - arrival_s[0])
    windows = [
        _counted(arrival_s, window_s)
        for window_s in _WINDOWS_S
        if span_s >= _LEAST_WINDOWS * window_s
    ]
    return Burstiness(
        rate_per_s=len(gaps) / span_s if span_s else float("inf"),
        cv=float(gaps.std() / gaps.mean()) if span_s else float("nan"),
        gap_correlation=_neighbours(gaps),
        resolution_s=resolution_of(arrival_s),
        windows=windows,
        day=day_shape(arrival_s, first_s) if span_s >= 2 * _DAY_S else None,
        local=local_arrivals(arrival_s) if span_s else None,
    )


def day_shape(arrival_s: NDArray[np.float64], first_s: float) -> DayShape:
    """Return the rate over the day of arrivals that span two days and more."""
    hours = np.floor((arrival_s + first_s % _DAY_S) / _HOUR_S).astype(np.int64)
    counts = np.bincount(hours).astype(float)
    # The first and last hour are cut by the trace's ends.
    inner = np.arange(len(counts))[hours[0] + 1 : -1]
    values, of_day = counts[inner], inner % 24
    means = np.bincount(of_day, values, 24) / np.maximum(np.bincount(of_day, minlength=24), 1)
    spread = float(values.var())
    return DayShape(
        hourly=(means / values.mean()).tolist(),
        explained=float(means[of_day].var() / spread) if spread else 0.0,
    )


def _counted(arrival_s: NDArray[np.float64], window_s: float) -> WindowCounts:
    """Count arrivals in whole windows."""
    whole = int(arrival_s[-1] // window_s)
    counts = np.bincount((arrival_s // window_s).astype(np.int64))[:whole].astype(float)
    return WindowCounts(
        window_s=window_s,
        dispersion=float(counts.var() / counts.mean()),
        autocorrelation=_neighbours(counts),
        peak_per_s=float(counts.max() / window_s),
    )


def _neighbours(values: NDArray[np.float64]) -> float:
    """Return the correlation of neighbours, not a number where nothing varies."""
    if len(values) < _LEAST_WINDOWS or not values.std():
        return float("nan")
    centred = values - values.mean()
    return float((centred[1:] * centred[:-1]).mean() / centred.var())
