"""What an index of vectors will take, forecast by one that learns from a part, and checked after.

The pilot places as many centers as the index will have, but by an eighth of the vectors; then it
holds all of them, up to some number. So it is searched as the index will be, and what it finds is
compared with true neighbours as near as they will be. Training, which takes most of a build, is
carried over by units of work (`cost.vector_search`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.search_rates import SearchRates, reference_search_rates
from steelyard.cost.vector_search import (
    IndexKind,
    IndexShape,
    adding_work,
    stage_seconds,
    training_work,
)
from steelyard.retrieve.cells import cells_of
from steelyard.retrieve.forecasts import BuildFigures, angle_of, share_at, timed
from steelyard.retrieve.index import Hits, checked_vectors
from steelyard.retrieve.ivf import IVF
from steelyard.retrieve.kinds import IVFFlat
from steelyard.retrieve.merging import merge_hits
from steelyard.retrieve.tuning import recall_at
from steelyard.retrieve.work_clock import WorkClock, fastest, free_threads

__all__ = [
    "SearchSetting",
    "VectorPilot",
    "forecast_vectors",
    "measure_vectors",
    "try_settings",
]

_LEAST, _MOST, _PART = 1000, 20_000, 8
_HELD_MOST = 200_000
"""Vectors that a pilot learns from, and that it holds at most."""
_PASS_PART = 4
"""Of what it holds, it goes through a quarter to see what one pass of training takes."""
_CELL_SHARE, _CODE_SHARE = 1.0, 1.2
"""Seconds of a counted pass of training over those of a pass that only looks for the nearest."""
_PLACED = 0.045
"""Angle of a recall that centers gain which all vectors have placed, not an eighth of them."""
_QUERIES, _K = 100, 10
_WARM = 300
_PILOT_QUERIES = 7919
"""Added to the seed of a pilot's queries: they are others than those that measure the index."""
_EXACT_PART = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSetting:
    """What a search with some number of cells finds and takes.

    Attributes:
        nprobe: cells that are looked into.
        recall: share of the ten nearest vectors that is found.
        query_s: median seconds of a query.
    """

    nprobe: int
    recall: float
    query_s: float


class VectorPilot:
    """An index that learns from a part of the vectors and holds all, or 200,000 of them.

    Attributes:
        figures: what is forecast of the whole index.
    """

    def __init__(
        self, index: IVF, rows: NDArray[Any], *, rates: SearchRates | None = None, seed: int = 0
    ) -> None:
        """Build and search the pilot.

        Args:
            index: index without vectors; it stays so.
            rows: vectors that it will hold [N, D].
            rates: proportions of units of work; those of the package where this machine was not
                calibrated.
            seed: seed of the draws.
        """
        count = len(rows)
        part, held = min(max(count // _PART, _LEAST), _MOST, count), min(count, _HELD_MOST)
        rng = np.random.default_rng(seed)
        places = np.sort(rng.choice(count, held, replace=False)) if held < count else slice(None)
        self._kept = np.ascontiguousarray(rows[places], np.float32)
        self._seed, self._rates = seed + _PILOT_QUERIES, rates or reference_search_rates()
        self._index, self._whole = _pilot(index, part), _shape(index, count)
        self._little = _shape(self._index, held)
        sample = self._kept[np.sort(rng.choice(held, part, replace=False))]
        # Threads that wait for a processor would make it a forecast of the load, not of the work.
        with free_threads():
            _warm(index, sample)
            self._index.train(sample, seed=seed)
            learn_s = self._learn_s(count)
            clock = WorkClock()
            self._index.add(self._kept)
            self._index.memory_bytes()  # what waits to be sorted into cells is
            self.figures = self._figures(learn_s + clock.read_s() * count / held)

    def _learn_s(self, count: int) -> float:
        """Return the seconds of training, from those of single passes over some of the vectors."""
        index, some = self._index, self._kept[: -(-len(self._kept) // _PASS_PART)]
        check_s, rows = fastest(lambda: checked_vectors(some, index.dim))
        turned = index.codec.turned(rows)
        cells_s, cells = fastest(lambda: cells_of(turned, index.centers))
        codes_s, _ = fastest(lambda: index.codec.columns(turned, cells, index.centers))
        learned = training_work(self._whole, count)
        added = adding_work(replace(self._whole, num_vectors=max(len(rows), self._whole.nlist)))
        found = check_s * count / len(rows)
        for unit, pass_s, share in (
            ("assign", cells_s, _CELL_SHARE),
            ("codes", codes_s, _CODE_SHARE),
        ):
            found += share * pass_s * learned[unit] / added[unit] if added[unit] else 0.0
        return found

    def _figures(self, build_s: float) -> BuildFigures:
        """Return what is forecast."""
        # By other queries than those that measure the index: one draw would flatter the forecast.
        small = measure_vectors(self._index, self._kept, build_s, seed=self._seed)
        slower = self._slower(self._index.nprobe)
        return replace(
            small,
            memory_bytes=small.memory_bytes * self._whole.memory_bytes / self._little.memory_bytes,
            p50_s=small.p50_s * slower,
            p95_s=small.p95_s * slower,
            rate_per_s=small.rate_per_s / slower,
            recall=_placed(small.recall),
        )

    def settings(self, probes: Sequence[int]) -> list[SearchSetting]:
        """Return what searches are forecast to find, and to take, by cells that are looked into.

        Args:
            probes: numbers of cells.

        Returns:
            One of each.
        """
        tried = try_settings(self._index, self._kept, probes, seed=self._seed)
        return [
            replace(
                item,
                recall=_placed(item.recall),
                query_s=item.query_s * self._slower(item.nprobe),
            )
            for item in tried
        ]

    def _slower(self, nprobe: int) -> float:
        """Return a query of the whole index over one of the pilot, in time."""
        whole, little = (
            sum(stage_seconds(shape, nprobe, self._rates, k=_K).values())
            for shape in (self._whole, self._little)
        )
        return whole / little


def forecast_vectors(
    index: IVF, rows: NDArray[Any], *, rates: SearchRates | None = None, seed: int = 0
) -> BuildFigures:
    """Forecast the build of an index of vectors and its searches; see `VectorPilot`.

    Args:
        index: index without vectors; it stays so.
        rows: vectors that it will hold [N, D].
        rates: proportions of units of work; those of the package where this machine was not
            calibrated.
        seed: seed of the draws.

    Returns:
        The figures.
    """
    return VectorPilot(index, rows, rates=rates, seed=seed).figures


def _placed(recall: float) -> float:
    """Return the recall of centers that all vectors have placed; one of 1 stays."""
    return share_at(angle_of(recall) + _PLACED)


def _warm(index: IVF, rows: NDArray[np.float32]) -> None:
    """Build and search a tiny index, so that nothing compiles or loads while it is timed."""
    few = rows[:_WARM]
    tiny = _pilot(index, len(few) // 8 or 1)
    tiny.train(few)
    tiny.add(few)
    tiny.search(few[:64], _K)


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
    queries = _queries(rows, seed)
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


def try_settings(
    index: IVF, rows: NDArray[Any], probes: Sequence[int], *, seed: int = 0
) -> list[SearchSetting]:
    """Search with several numbers of cells, and say what is found and how fast.

    Args:
        index: the index.
        rows: vectors that it holds, by number.
        probes: numbers of cells.
        seed: seed of the queries, which are vectors of it.

    Returns:
        One of each number.
    """
    queries = _queries(rows, seed)
    truth = _exact(index, rows, queries).ids
    found = []
    for nprobe in probes:

        def search(asked: NDArray[np.float32], nprobe: int = nprobe) -> Hits:
            return index.search(asked, _K, nprobe=nprobe)

        recall = float(recall_at(search(queries).ids, truth).mean())
        query_s = timed(search, queries, passes=1)[0]
        found.append(SearchSetting(nprobe=nprobe, recall=recall, query_s=query_s))
    return found


def _queries(rows: NDArray[Any], seed: int) -> NDArray[np.float32]:
    """Draw queries among the vectors."""
    drawn = np.random.default_rng(seed + 1).integers(0, len(rows), min(_QUERIES, len(rows)))
    return np.ascontiguousarray(rows[drawn], np.float32)


def _exact(index: IVF, rows: NDArray[Any], queries: NDArray[np.float32]) -> Hits:
    """Return the true neighbours, comparing a part of the vectors at a time."""
    found: list[Hits] = []
    for first in range(0, len(rows), _EXACT_PART):
        part = rows[first : first + _EXACT_PART]
        exact = IVFFlat(index.dim, metric=index.metric)
        exact.add(part, np.arange(first, first + len(part)))
        found.append(exact.search(queries, _K))
    return merge_hits(found, _K, index.metric)


def _pilot(index: IVF, most: int) -> IVF:
    """Return an empty index like another one, with no more cells than it can learn."""
    settings: dict[str, Any] = index.settings()
    settings["nlist"] = min(index.nlist, most)
    settings["nprobe"] = min(index.nprobe, settings["nlist"])
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
