"""The record of a demand: one load a step, without holes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import TraceError
from steelyard.operate.series import SeriesSet

__all__ = ["Demand", "demand_of_series"]

_FEWEST = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A demand and where it is from.

    Attributes:
        load: [n] load of each step, 0 or more.
        step_s: seconds of a step.
        source: words for people.
        start_s: time of the first step, seconds since 1970 where the source has such times.
        is_measured: False of a demand that was generated: nothing of it is a measurement.
    """

    load: NDArray[np.float64]
    step_s: float
    source: str
    start_s: float = 0.0
    is_measured: bool = True

    @property
    def end_s(self) -> float:
        """Time at which its last step has ended."""
        return self.start_s + len(self.load) * self.step_s


def demand_of_series(
    series: SeriesSet, index: int = 0, *, source: str = "", is_measured: bool = True
) -> Demand:
    """Return a series as a demand: holes take the value before them.

    Args:
        series: the series.
        index: which of them.
        source: words for people.
        is_measured: False where it was generated.

    Returns:
        The demand, from the first observed value on.

    Raises:
        TraceError: it is too short, or goes below 0.
    """
    values = np.asarray(series.row(index), dtype=np.float64)
    name, step_s = series.ids[index], float(series.step_s[index])
    known = np.flatnonzero(np.isfinite(values))
    if len(known) < _FEWEST:
        raise TraceError(
            f"series {name!r} has {len(known)} observed values, but {_FEWEST} are needed",
            hint="give a longer record",
        )
    low = np.flatnonzero(values < 0)
    if len(low):
        raise TraceError(
            f"series {name!r} is {values[low[0]]} in row {low[0] + 1}, but a load is never below 0",
            hint="difference counters first",
        )
    # Before the first value nothing is known that could be held on to.
    values = values[known[0] :]
    last = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), 0))
    return Demand(
        load=values[last],
        step_s=step_s,
        source=source,
        start_s=float(series.start_s[index]) + int(known[0]) * step_s,
        is_measured=is_measured,
    )
