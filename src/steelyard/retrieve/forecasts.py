"""What a build will take and its searches will cost, forecast from a small one, and checked after.

A pilot index of a part of the data is built and searched; units of work (`cost.vector_search`)
carry its times over to the whole. Intervals follow from how far earlier forecasts were off here.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.search_rates import SearchRates, reference_search_rates
from steelyard.cost.past_errors import past_width
from steelyard.cost.vector_search import IndexKind, IndexShape, build_work, stage_seconds
from steelyard.quantity import Check, Forecast, Measurement
from steelyard.retrieve.index import Hits
from steelyard.retrieve.ivf import IVF
from steelyard.retrieve.kinds import IVFFlat
from steelyard.retrieve.tuning import recall_at

__all__ = [
    "FORECASTER",
    "TEXT_FORECASTER",
    "BuildFigures",
    "forecast_vectors",
    "measure_vectors",
    "timed",
]

FORECASTER, TEXT_FORECASTER = "retrieve.build", "retrieve.build.texts"
"""Names of these forecasts in the ledger: of vectors, and of texts, off by other things."""
_SPREADS = {
    "retrieve.build_time": 0.2,
    "retrieve.index_time": 0.2,
    "retrieve.memory": 0.02,
    "retrieve.search_p50": 0.2,
    "retrieve.search_p95": 0.3,
    "retrieve.search_rate": 0.3,
    "retrieve.recall": 0.5,
}
"""Standard deviation of the logarithm before forecasts were checked here; of recall, that of the
share that is missed."""
_PILOT_LEAST, _PILOT_MOST, _PILOT_PART = 1000, 20_000, 8
_QUERIES, _BATCH, _K = 100, 64, 10
_WARM = 300
_MISS = 0.01
"""Added to the share that is missed, whose logarithm a recall of 1 would not have."""

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
    """

    build_s: float
    memory_bytes: float
    p50_s: float
    p95_s: float
    rate_per_s: float
    recall: float = 1.0
    is_exact: bool = True
    build_quantity: str = "retrieve.build_time"

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
        return [_forecast(name, value, past) for name, value in self.values().items()]

    def measurements(self) -> list[Measurement]:
        """Return figures as what was measured."""
        now_s = time.time()
        return [
            Measurement(quantity=name, value=value, time_s=now_s)
            for name, value in self.values().items()
        ]


def _forecast(name: str, value: float, past: Sequence[Check]) -> Forecast:
    """Return one figure with its interval."""
    own = [item for item in past if item.forecast.quantity == name]
    is_recall = name == "retrieve.recall"
    if is_recall:
        own = [_of_misses(item) for item in own]
    factor = float(np.exp(past_width(own, assumed_spread=_SPREADS[name])))
    if is_recall:
        miss = 1 - value + _MISS
        low, high = 1 - miss * factor + _MISS, 1 - miss / factor + _MISS
        low, high = max(low, 0.0), min(high, 1.0)
    else:
        low, high = value / factor, value * factor
    return Forecast(
        quantity=name,
        value=value,
        low=min(low, value),
        high=max(high, value),
        provenance="fitted",
        source="a pilot on a part of the data",
    )


def _of_misses(item: Check) -> Check:
    """Return a check of a recall as one of the share that was missed."""
    forecast, came = item.forecast, item.measurement
    missed = Forecast(
        quantity=forecast.quantity,
        value=1 - forecast.value + _MISS,
        low=1 - forecast.high + _MISS,
        high=1 - forecast.low + _MISS,
        provenance=forecast.provenance,
        source=forecast.source,
    )
    return Check(missed, Measurement(quantity=came.quantity, value=1 - came.value + _MISS))


def timed(search: Search, queries: Sequence[Any] | NDArray[Any]) -> tuple[float, float, float]:
    """Time searches.

    Args:
        search: is called with a slice of the queries.
        queries: at least one; the first 64 are asked once before.

    Returns:
        Median and 95th percentile of the seconds of one query, and queries a second when 64 are
        asked together.
    """
    search(queries[:_BATCH])
    taken = []
    for place in range(len(queries)):
        began_s = time.perf_counter()
        search(queries[place : place + 1])
        taken.append(time.perf_counter() - began_s)
    rounds = []
    for _ in range(3):
        began_s = time.perf_counter()
        search(queries[:_BATCH])
        rounds.append(time.perf_counter() - began_s)
    rate = min(len(queries), _BATCH) / float(np.median(rounds))
    return float(np.median(taken)), float(np.quantile(taken, 0.95)), rate


def forecast_vectors(
    index: IVF, rows: NDArray[Any], *, rates: SearchRates | None = None, seed: int = 0
) -> BuildFigures:
    """Forecast the build of an index of vectors, by a pilot of at most an eighth of them.

    Args:
        index: index without vectors; it stays so.
        rows: vectors that it will hold [N, D].
        rates: proportions of units of work; those of the package where this machine was not
            calibrated.
        seed: seed of the sample.

    Returns:
        The figures.
    """
    count = len(rows)
    part = min(max(count // _PILOT_PART, _PILOT_LEAST), _PILOT_MOST, max(count // 2, 1))
    places = np.random.default_rng(seed).choice(count, min(part + _QUERIES, count), replace=False)
    sample = np.ascontiguousarray(rows[np.sort(places)], np.float32)
    pilot, shape = _pilot(index, part, count), _shape(index, count)
    kept = sample[:part]
    _warm(index, kept)
    began_s = time.perf_counter()
    pilot.train(kept, seed=seed)
    pilot.add(kept)
    pilot.memory_bytes()  # what waits to be sorted into cells is
    build_s = time.perf_counter() - began_s
    small = measure_vectors(pilot, kept, build_s, seed=seed)
    known = rates or reference_search_rates()
    little = _shape(pilot, part)
    slower = _query_s(shape, index.nprobe, known) / _query_s(little, pilot.nprobe, known)
    longer = _build_s(shape, known) / _build_s(little, known)
    return BuildFigures(
        build_s=build_s * longer,
        memory_bytes=shape.memory_bytes,
        p50_s=small.p50_s * slower,
        p95_s=small.p95_s * slower,
        rate_per_s=small.rate_per_s / slower,
        recall=small.recall,
        is_exact=small.is_exact,
    )


def _warm(index: IVF, rows: NDArray[np.float32]) -> None:
    """Build and search a tiny index, so that nothing compiles or loads while it is timed."""
    few = rows[:_WARM]
    tiny = _pilot(index, len(few), max(len(rows), len(few)))
    tiny.train(few)
    tiny.add(few)
    tiny.search(few[:_BATCH], _K)


def measure_vectors(
    index: IVF, rows: NDArray[Any], build_s: float, *, seed: int = 0
) -> BuildFigures:
    """Measure the searches of an index of vectors.

    Args:
        index: the index.
        rows: vectors that it holds, by number.
        build_s: seconds that the build took.
        seed: seed of the queries, which are vectors of it.

    Returns:
        The figures.
    """
    drawn = np.random.default_rng(seed + 1).integers(0, len(rows), min(_QUERIES, len(rows)))
    queries = np.ascontiguousarray(rows[drawn], np.float32)
    p50_s, p95_s, rate = timed(lambda asked: index.search(asked, _K), queries)
    is_exact = index.nlist == 1 and isinstance(index, IVFFlat)
    recall = 1.0
    if not is_exact:
        truth = _exact(index, rows, queries).ids
        recall = float(recall_at(index.search(queries, _K).ids, truth).mean())
    return BuildFigures(
        build_s=build_s,
        memory_bytes=float(sum(index.memory_bytes().values())),
        p50_s=p50_s,
        p95_s=p95_s,
        rate_per_s=rate,
        recall=recall,
        is_exact=is_exact,
    )


def _exact(index: IVF, rows: NDArray[Any], queries: NDArray[np.float32]) -> Hits:
    """Return the true neighbours, comparing a part of the vectors at a time."""
    from steelyard.retrieve.merging import merge_hits

    found: list[Hits] = []
    for first in range(0, len(rows), 100_000):
        part = rows[first : first + 100_000]
        exact = IVFFlat(index.dim, metric=index.metric)
        exact.add(part, np.arange(first, first + len(part)))
        found.append(exact.search(queries, _K))
    return merge_hits(found, _K, index.metric)


def _pilot(index: IVF, part: int, count: int) -> IVF:
    """Return an empty index like another one, for fewer vectors."""
    settings: dict[str, Any] = index.settings()
    cells = 1
    if index.nlist > 1:
        cells = max(1, min(round(index.nlist * (part / count) ** 0.5), part))
    settings["nlist"] = cells
    settings["nprobe"] = max(1, min(round(index.nprobe * cells / index.nlist), cells))
    return type(index)(**settings)


def _shape(index: IVF, count: int) -> IndexShape:
    """Return the sizes of an index of so many vectors."""
    settings: Mapping[str, Any] = index.settings()
    kinds: dict[str, IndexKind] = {"ivf": "ivf", "ivfpq": "ivfpq", "fastscan": "fastscan"}
    kind = kinds[index.kind]
    return IndexShape(
        kind="flat" if kind == "ivf" and index.nlist == 1 else kind,
        num_vectors=count,
        dim=index.dim,
        nlist=index.nlist,
        parts=int(settings.get("parts", 0)),
        rerank=index.rerank,
        number_bytes=1 if settings.get("store") == "uint8" else 4,
        rotate=bool(settings.get("rotate", False)),
    )


def _query_s(shape: IndexShape, nprobe: int, rates: SearchRates) -> float:
    return sum(stage_seconds(shape, nprobe, rates, k=_K).values())


def _build_s(shape: IndexShape, rates: SearchRates) -> float:
    """Return seconds of a build; copying rows takes some time even of a flat index."""
    work = build_work(shape)
    counted = sum(rates.build_s.get(part, 0.0) * count for part, count in work.items())
    return counted + 1e-9 * work["rows"] + 1e-3
