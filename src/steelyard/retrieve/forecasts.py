"""What a build takes and its searches cost, as forecasts before it and measurements after it.

Intervals follow from how far earlier forecasts of the same forecaster were off on this machine.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.past_errors import past_width
from steelyard.quantity import Check, Forecast, Measurement

__all__ = [
    "EXACT_FORECASTER",
    "FORECASTER",
    "TEXT_FORECASTER",
    "BuildFigures",
    "angle_of",
    "forecast_of",
    "share_at",
    "timed",
]

FORECASTER, EXACT_FORECASTER = "retrieve.build", "retrieve.build.exact"
TEXT_FORECASTER = "retrieve.build.texts"
"""Names of these forecasts in the ledger: of vectors in cells, of vectors that are all compared,
and of texts. They are off by other things, and by more or less."""
_SPREADS = {
    "retrieve.build_time": 0.2,
    "retrieve.index_time": 0.2,
    "retrieve.memory": 0.02,
    "retrieve.search_p50": 0.15,
    "retrieve.search_p95": 0.2,
    "retrieve.search_rate": 0.2,
    "retrieve.recall": 0.05,
}
"""Standard deviation of the logarithm before forecasts were checked here; of a recall, that of its
angle."""
_BATCH, _PASSES, _PASSES_S = 64, 5, 0.3
_CALLS, _CALLS_S = 5, 0.03

Search = Callable[[Any], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildFigures:
    """A build and the searches after it.

    Attributes:
        build_s: seconds of the build.
        memory_bytes: bytes in memory.
        p50_s: median time of a search.
        p95_s: time that 95 of 100 searches take at most.
        rate_per_s: searches a second when 64 are asked together.
        recall: share of the ten nearest vectors that is found.
        is_exact: whether recall is 1 by construction.
        build_quantity: "retrieve.build_time" of vectors, "retrieve.index_time" of texts.
        ways_s: seconds of a search of texts by words alone, by vectors alone, and by both.
    """

    build_s: float
    memory_bytes: float
    p50_s: float
    p95_s: float
    rate_per_s: float
    recall: float = 1.0
    is_exact: bool = True
    build_quantity: str = "retrieve.build_time"
    ways_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def forecaster(self) -> str:
        """Name in the ledger of who forecasts such a build."""
        if self.build_quantity == "retrieve.index_time":
            return TEXT_FORECASTER
        return EXACT_FORECASTER if self.is_exact else FORECASTER

    def values(self) -> dict[str, float]:
        """Return figures by quantity; a recall that needs no forecast is left out."""
        found = {
            self.build_quantity: self.build_s,
            "retrieve.memory": self.memory_bytes,
            "retrieve.search_p50": self.p50_s,
            "retrieve.search_p95": self.p95_s,
            "retrieve.search_rate": self.rate_per_s,
        }
        return found if self.is_exact else found | {"retrieve.recall": self.recall}

    def forecasts(self, past: Sequence[Check] = ()) -> list[Forecast]:
        """Return figures as forecasts.

        Args:
            past: checked forecasts of the same forecaster on this machine, oldest first.

        Returns:
            Forecasts with 80 % intervals.
        """
        return [forecast_of(name, value, past) for name, value in self.values().items()]

    def measurements(self) -> list[Measurement]:
        """Return figures as what was measured."""
        now_s = time.time()
        return [
            Measurement(quantity=name, value=value, time_s=now_s)
            for name, value in self.values().items()
        ]


def forecast_of(
    name: str,
    value: float,
    past: Sequence[Check],
    *,
    source: str = "a pilot on a part of the data",
) -> Forecast:
    """Return one figure with its interval.

    Args:
        name: quantity, one of those of `BuildFigures.values`.
        value: what is forecast.
        past: checked forecasts of the same forecaster on this machine, oldest first.
        source: what the forecast rests on.

    Returns:
        The forecast; its 80 % interval is as wide as earlier ones were off, and an assumed one
        stands in for the first few.
    """
    own = [item for item in past if item.forecast.quantity == name]
    is_recall = name == "retrieve.recall"
    if is_recall:
        own = [_of_angles(item) for item in own]
    width = past_width(own, assumed_spread=_SPREADS[name])
    if is_recall:
        low, high = (share_at(angle_of(value) + side) for side in (-width, width))
    else:
        low, high = value * float(np.exp(-width)), value * float(np.exp(width))
    return Forecast(
        quantity=name,
        value=value,
        low=min(low, value),
        high=max(high, value),
        provenance="fitted",
        source=source,
    )


def angle_of(share: float) -> float:
    """Return the angle whose squared sine is a share: counts of hits scatter alike at any share.

    Args:
        share: from 0 to 1; beyond them the end.

    Returns:
        The angle in radians, 0 to pi / 2.

    Source: Anscombe 1948, "The transformation of Poisson, binomial and negative-binomial data".
    """
    return float(np.arcsin(np.sqrt(min(max(share, 0.0), 1.0))))


def share_at(angle: float) -> float:
    """Return the share of an angle.

    Args:
        angle: in radians.

    Returns:
        Its squared sine; of an angle beyond the ends, that of the end.
    """
    return float(np.sin(min(max(angle, 0.0), np.pi / 2)) ** 2)


def _of_angles(item: Check) -> Check:
    """Return a check of a recall as one of values whose logarithms are its angles."""
    forecast, came = item.forecast, item.measurement
    low, value, high = (
        float(np.exp(angle_of(share))) for share in (forecast.low, forecast.value, forecast.high)
    )
    said = Forecast(
        quantity=forecast.quantity,
        value=value,
        low=low,
        high=high,
        provenance=forecast.provenance,
        source=forecast.source,
    )
    measured = Measurement(quantity=came.quantity, value=float(np.exp(angle_of(came.value))))
    return Check(said, measured)


def timed(
    search: Search, queries: Sequence[Any] | NDArray[Any], *, passes: int = _PASSES
) -> tuple[float, float, float]:
    """Time searches in passes, of which the middle one counts: other work comes in bursts.

    Args:
        search: is called with a slice of the queries.
        queries: at least one; the first 64 are asked once before.
        passes: passes over the queries; with more than one, as many more as fit into 0.3 s, as
            a processor's speed changes from one moment to the next.

    Returns:
        Median and 95th percentile of the seconds of one query, and queries a second when 64 are
        asked together.
    """
    search(queries[:_BATCH])
    medians, ends, together = [], [], []
    began_s = time.perf_counter()
    while len(medians) < passes or (passes > 1 and time.perf_counter() - began_s < _PASSES_S):
        taken = [_seconds(search, queries[n : n + 1]) for n in range(len(queries))]
        medians.append(np.median(taken))
        ends.append(np.quantile(taken, 0.95))
        together.append(_together_s(search, queries[:_BATCH]))
    rate = min(len(queries), _BATCH) / float(np.median(together))
    return float(np.median(medians)), float(np.median(ends)), rate


def _together_s(search: Search, asked: Sequence[Any] | NDArray[Any]) -> float:
    """Return the seconds of queries that are asked together, the median of some calls."""
    taken = [_seconds(search, asked)]
    # Short calls are repeated: one that loses the processor takes many times as long.
    while len(taken) < _CALLS and sum(taken) < _CALLS_S:
        taken.append(_seconds(search, asked))
    return float(np.median(taken))


def _seconds(search: Search, asked: Sequence[Any] | NDArray[Any]) -> float:
    """Return the seconds of one call."""
    began_s = time.perf_counter()
    search(asked)
    return time.perf_counter() - began_s
