"""Index, cells and candidates chosen for a recall from few measurements and a forecast of speed."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.search_rates import SearchRates
from steelyard.cost.vector_search.prediction import stage_seconds
from steelyard.cost.vector_search.work import IndexShape
from steelyard.errors import CapacityError, ConfigError
from steelyard.retrieve.index import checked_recall
from steelyard.retrieve.ivf import IVF
from steelyard.retrieve.kinds import IVFPQ, IVFFastScan
from steelyard.retrieve.tuning import recall_at, require_queries

__all__ = ["Chosen", "IndexCandidate", "choose_index", "shape_of_index"]

_FACTORS = (2, 4, 8, 16)
"""Candidates per neighbour that are tried where codes are compared again."""
_TIMED = 3
"""Candidates that are timed, the fastest by forecast first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexCandidate:
    """One setting of one index.

    Attributes:
        index: name of the index.
        nprobe: cells to look into.
        rerank: candidates per neighbour that are compared again.
        forecast_s: seconds of a query, forecast.
        recall: share of the true neighbours that is expected, or that was measured.
        measured_s: seconds of a query, measured; 0 where it was not.
        expected_recall: share that was expected before it was measured; 0 where it was not.
    """

    index: str
    nprobe: int
    rerank: int
    forecast_s: float
    recall: float
    measured_s: float = 0.0
    expected_recall: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """What was chosen, and what it took.

    Attributes:
        best: the fastest that reaches the recall.
        candidates: settings with forecasts, the fastest first; measured ones are marked by a time.
        measurements: passes over the queries that it took.
        heldout_recall: recall of queries that nothing was chosen on.
        heldout_error: standard error of that.
    """

    best: IndexCandidate
    candidates: Sequence[IndexCandidate] = field(default_factory=list)
    measurements: int
    heldout_recall: float
    heldout_error: float


def shape_of_index(index: IVF, *, rerank: int, scan_ratio: float = 0.0) -> IndexShape:
    """Return the sizes of an index.

    Args:
        index: index with vectors.
        rerank: candidates per neighbour that are compared again.
        scan_ratio: rows that queries meet over those of cells of mean size.

    Returns:
        Its sizes.
    """
    vectors = index.rows.columns.get("vectors")
    codec = index.codec
    kind = "fastscan" if isinstance(index, IVFFastScan) else "ivf"
    return IndexShape(
        kind="ivfpq" if isinstance(index, IVFPQ) else "flat" if index.nlist == 1 else kind,
        num_vectors=len(index),
        dim=index.dim,
        nlist=index.nlist,
        parts=getattr(codec, "parts", 0),
        rerank=rerank,
        number_bytes=4 if vectors is None else vectors.itemsize,
        rotate=getattr(codec, "rotate", False),
        scan_ratio=scan_ratio,
    )


def choose_index(
    indexes: Mapping[str, IVF],
    queries: NDArray[np.generic],
    truth: NDArray[np.int64],
    rates: SearchRates,
    *,
    recall: float,
) -> Chosen:
    """Choose among indexes of the same vectors.

    One pass over the centers tells for every number of cells which share of the true neighbours
    lies in them, which whole vectors then find; codes find a share of that, which is measured once
    for each number of candidates. Then the settings that should suffice are ordered by forecast,
    and the fastest few are measured.

    Args:
        indexes: indexes by name, with the same numbers for the same vectors.
        queries: [Q, D], 20 or more; every second one is kept for the check.
        truth: their true neighbours [Q, K].
        rates: what `steelyard retrieve calibrate` measured.
        recall: share of the K true neighbours to find, above 0 to 1.

    Returns:
        The choice.

    Raises:
        ConfigError: too few queries, no index, or a recall out of range.
        CapacityError: no setting reaches the recall; the ceiling is named.
    """
    checked_recall(recall)
    require_queries(len(queries))
    if not indexes:
        raise ConfigError("no index to choose from", hint="give one or more")
    asked = np.ascontiguousarray(queries, np.float32)
    search = _Choosing(indexes, asked[::2], truth[::2], rates, recall)
    tried = sorted(search.candidates(), key=lambda item: item.forecast_s)
    done: list[IndexCandidate] = []
    for candidate in tried:
        if len(done) == _TIMED:
            break
        found = search.measured(candidate)
        if found is not None:
            done.append(found)
    if not done:
        raise CapacityError(
            f"no setting finds {recall:g} of the neighbours; the best finds {search.ceiling:.3f}",
            hint="compare more candidates again, or use longer codes: whole vectors find all",
        )
    best = min(done, key=lambda item: item.measured_s)
    hits = indexes[best.index].search(
        asked[1::2], truth.shape[1], nprobe=best.nprobe, rerank=best.rerank
    )
    unseen = recall_at(hits.ids, truth[1::2])
    settings = {(item.index, item.rerank) for item in done}
    rest = [item for item in tried if (item.index, item.rerank) not in settings]
    return Chosen(
        best=best,
        candidates=sorted([*done, *rest], key=lambda item: item.forecast_s),
        measurements=search.measurements,
        heldout_recall=float(unseen.mean()),
        heldout_error=float(unseen.std(ddof=1) / np.sqrt(len(unseen))),
    )


class _Choosing:
    """Measurements of one choice."""

    def __init__(
        self,
        indexes: Mapping[str, IVF],
        queries: NDArray[np.float32],
        truth: NDArray[np.int64],
        rates: SearchRates,
        recall: float,
    ) -> None:
        # Native code reads rows that lie beside each other.
        self.indexes, self.queries, self.truth = indexes, np.ascontiguousarray(queries), truth
        self.rates, self.recall = rates, recall
        self.measurements, self.ceiling = 0, 0.0
        self._kept_share: dict[tuple[str, int], float] = {}
        self._ratio: dict[str, NDArray[np.float64]] = {}

    def candidates(self) -> Iterator[IndexCandidate]:
        """List for every index and number of candidates the fewest cells that should suffice."""
        for name, index in self.indexes.items():
            covered, met = self._coverage(index)
            self._ratio[name] = met / np.arange(1, index.nlist + 1) * index.nlist / len(index)
            factors: tuple[int, ...] = (index.rerank,)
            if index.rerank:
                factors = tuple(sorted({*_FACTORS, index.rerank}))
            for factor in factors:
                share = self._share(index, factor, covered)
                self.ceiling = max(self.ceiling, float(covered[-1]) * share)
                enough = np.flatnonzero(covered * share >= self.recall)
                if len(enough):
                    nprobe = int(enough[0]) + 1
                    yield IndexCandidate(
                        index=name,
                        nprobe=nprobe,
                        rerank=factor,
                        forecast_s=self._forecast_s(name, nprobe, factor),
                        recall=float(covered[nprobe - 1]) * share,
                    )

    def _coverage(self, index: IVF) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return, by number of cells, the share of neighbours in them and the rows they hold."""
        self.measurements += 1
        engine, turned = index._settled(), index.codec.turned(self.queries)
        cells = engine.nearest(turned, index.nlist).cells
        ranks = np.empty_like(cells)
        np.put_along_axis(ranks, cells, np.broadcast_to(np.arange(index.nlist), cells.shape), 1)
        order = np.argsort(index.rows.ids)
        is_there = self.truth >= 0  # fewer vectors than neighbours that are asked for
        rows = order[np.searchsorted(index.rows.ids, np.maximum(self.truth, 0), sorter=order)]
        own = np.searchsorted(index.rows.starts, rows, side="right") - 1
        placed = np.take_along_axis(ranks, own, axis=1)[is_there]
        counts = np.bincount(placed, minlength=index.nlist)
        sizes = np.diff(index.rows.starts)[cells]
        return np.cumsum(counts) / placed.size, np.cumsum(sizes.mean(axis=0))

    def _share(self, index: IVF, factor: int, covered: NDArray[np.float64]) -> float:
        """Return the share of the neighbours in its cells that an index finds."""
        if index.kind == "ivf":
            return 1.0
        # How well codes tell vectors apart hardly depends on the cells: one index tells for all.
        key = (f"{index.kind} {getattr(index.codec, 'parts', 0)}", factor)
        if key not in self._kept_share:
            enough = np.flatnonzero(covered >= min(self.recall * 1.05, covered[-1]))
            nprobe = int(enough[0]) + 1
            found = self._recall(index, nprobe, factor)
            self._kept_share[key] = min(found / float(covered[nprobe - 1]), 1.0)
        return self._kept_share[key]

    def _recall(self, index: IVF, nprobe: int, factor: int) -> float:
        self.measurements += 1
        k = self.truth.shape[1]
        hits = index.search(self.queries, k, nprobe=nprobe, rerank=factor)
        return float(recall_at(hits.ids, self.truth).mean())

    def _forecast_s(self, name: str, nprobe: int, factor: int) -> float:
        ratio = float(self._ratio[name][nprobe - 1])
        shape = shape_of_index(self.indexes[name], rerank=factor, scan_ratio=ratio)
        k = self.truth.shape[1]
        return sum(stage_seconds(shape, nprobe, self.rates, k=k).values())

    def measured(self, candidate: IndexCandidate) -> IndexCandidate | None:
        """Time a candidate, with more cells where it finds too little; None where none suffice."""
        index, nprobe = self.indexes[candidate.index], candidate.nprobe
        k = self.truth.shape[1]
        while True:
            self.measurements += 1
            began_s = time.perf_counter()
            found = [
                index.search(query, k, nprobe=nprobe, rerank=candidate.rerank).ids
                for query in self.queries
            ]
            took_s = (time.perf_counter() - began_s) / len(self.queries)
            shares = recall_at(np.concatenate(found), self.truth)
            reached = float(shares.mean())
            self.ceiling = max(self.ceiling, reached)
            # Other queries find more or less by chance: half a standard error is kept free.
            spare = 0.5 * float(shares.std() / np.sqrt(len(shares)))
            if reached >= self.recall + (spare if nprobe < index.nlist else 0.0):
                break
            if nprobe == index.nlist:
                return None
            nprobe = min(nprobe + max(1, nprobe // 8), index.nlist)
        return IndexCandidate(
            index=candidate.index,
            nprobe=nprobe,
            rerank=candidate.rerank,
            forecast_s=self._forecast_s(candidate.index, nprobe, candidate.rerank),
            recall=reached,
            measured_s=took_s,
            expected_recall=candidate.recall,
        )
