"""Vectors in cells around centers: one way to train, fill, search and save them for all codecs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.retrieve.cells import CellRows, cells_of, train_centers
from steelyard.retrieve.codec import CellCodec, CellScanner
from steelyard.retrieve.distance import new_heap
from steelyard.retrieve.engine import CellEngine, CellHits, SteppedCells
from steelyard.retrieve.index import (
    Hits,
    Metric,
    SearchStats,
    checked_ids,
    checked_k,
    checked_probes,
    checked_vectors,
)
from steelyard.retrieve.native import native_cells
from steelyard.retrieve.storage import write_index

__all__ = ["IVF"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
_SAMPLE = 65_536
"""Vectors that a codec learns from, at most."""


class IVF:
    """Vectors in cells; a codec says what cells keep of them and how that is scanned.

    A query looks into the cells with the nearest centers. Where whole vectors are kept beside
    codes, the best by codes are compared again by them.

    Attributes:
        dim: numbers in a vector.
        metric: "l2" or "ip".
        nlist: cells.
        nprobe: cells that a query looks into, unless a search says otherwise.
        rerank: candidates per wanted neighbour that are compared again by whole vectors; 0 for
            none, and then they are not kept beside codes.
        codec: what cells keep.
        centers: centers of the cells, float32 [nlist, D]; none before training.
        rows: what the cells hold.
    """

    kind: ClassVar[str]
    least_rerank: ClassVar[int] = 0
    """Candidates per neighbour that every search compares again: codes that only rank need 1."""

    def __init__(
        self,
        codec: CellCodec,
        *,
        dim: int,
        nlist: int,
        nprobe: int,
        metric: Metric,
        rerank: int = 0,
    ) -> None:
        """Make an index without vectors.

        Args:
            codec: what cells keep.
            dim: numbers in a vector.
            nlist: cells; 1 needs no training of its center.
            nprobe: cells that a query looks into.
            metric: "l2" or "ip" (inner product).
            rerank: candidates per wanted neighbour that are compared again.

        Raises:
            ConfigError: a number is out of range.
        """
        if dim < 1 or not 1 <= nprobe <= nlist or rerank < self.least_rerank:
            raise ConfigError(
                f"{dim} numbers, {nlist} cells, {nprobe} of them searched, {rerank} candidates "
                "compared again",
                hint="give at least 1 of each, no more searched cells than there are, and compare "
                f"{self.least_rerank} candidates or more again",
            )
        self.dim, self.nlist, self.nprobe, self.rerank = dim, nlist, nprobe, rerank
        self.metric: Metric = metric
        self.codec = codec
        self.centers = np.empty((0, dim), np.float32)
        none = np.empty((0, dim), np.float32)
        self.rows = CellRows.empty(nlist, self._columns(none, none, np.empty(0, np.int64)))
        self._scanner: CellScanner | None = None
        self._engine: CellEngine | None = None

    def __len__(self) -> int:
        """Return how many vectors there are."""
        return len(self.rows)

    def train(self, vectors: NDArray[np.generic], *, seed: int = 0) -> None:
        """Place the centers of cells, and learn what the codec needs.

        Args:
            vectors: sample [N, D], at least one per cell, and one per center of the codes.
            seed: seed of draws and first centers.

        Raises:
            ConfigError: there are vectors already, or the sample is too small.
            DataError: vectors of another width, or not finite.
        """
        if len(self):
            raise ConfigError("an index that holds vectors is not trained again")
        sample = checked_vectors(vectors, self.dim)
        few = sample
        if len(sample) > _SAMPLE:
            rng = np.random.default_rng(seed)
            few = sample[np.sort(rng.choice(len(sample), _SAMPLE, replace=False))]
        self.codec.train(few, seed=seed)
        self.centers = train_centers(self.codec.turned(sample), self.nlist, seed=seed)
        self.codec.train_codes(self.codec.turned(few), self.centers, seed=seed)

    def add(self, vectors: NDArray[np.generic], ids: Ids | None = None) -> Ids:
        """Add vectors.

        Args:
            vectors: [N, D].
            ids: their numbers, from 0, each new; counted on where none are given.

        Returns:
            Their numbers [N].

        Raises:
            ConfigError: the index is not trained.
            DataError: vectors of another width, not finite or out of the range of what keeps them;
                or a number that is there already.
        """
        if not len(self.centers):
            raise ConfigError("the index has no cells yet", hint="train it on a sample first")
        rows = checked_vectors(vectors, self.dim)
        numbers = checked_ids(ids, len(rows), self.rows.all_ids(), self.rows.next_id)
        turned = self.codec.turned(rows)
        cells = cells_of(turned, self.centers)
        self.rows.add(numbers, cells, self._columns(rows, turned, cells))
        self._engine = None
        return numbers

    def _columns(self, rows: Floats, turned: Floats, cells: Ids) -> dict[str, NDArray[Any]]:
        """Return what is kept: whole vectors where they are compared again, and the codec's."""
        whole: dict[str, NDArray[Any]] = {"vectors": rows} if self.rerank else {}
        return {**whole, **self.codec.columns(turned, cells, self.centers)}

    def remove(self, ids: Ids) -> None:
        """Remove vectors.

        Args:
            ids: their numbers.

        Raises:
            DataError: a number is not there; then nothing is removed.
        """
        self.rows.remove(np.atleast_1d(np.asarray(ids, dtype=np.int64)))
        self._engine = None

    def search_steps(
        self,
        queries: NDArray[np.generic],
        k: int,
        *,
        nprobe: int | None = None,
        rerank: int | None = None,
        stops: Sequence[int] = (),
    ) -> Iterator[Hits]:
        """Look into the nearest cell, then into twice as many each time, or stop where told.

        Args:
            queries: [Q, D].
            k: neighbours that are wanted.
            nprobe: cells to look into at the end; the index's own number where none is given.
            rerank: candidates per neighbour that are compared again; likewise.
            stops: numbers of cells after which something is yielded, ascending, beside the end;
                doubled each time where none are given.

        Yields:
            What was found so far.

        Raises:
            ConfigError: k or nprobe is below 1, or whole vectors are wanted that are not kept.
            DataError: queries of another width, or not finite.
        """
        asked = checked_vectors(queries, self.dim, what="queries")
        again = self._checked_rerank(rerank)
        count = checked_probes(self.nprobe if nprobe is None else nprobe, self.nlist)
        engine, turned = self._settled(), self.codec.turned(asked)
        probes = engine.nearest(turned, count)
        # Where whole vectors follow, a heap keeps rows, otherwise numbers.
        heap, ids = new_heap(len(asked), checked_k(k) * max(again, 1))
        scanned = done = 0
        ends = iter(stops or _doubled())
        while done < count:
            part = probes.part(done, next((stop for stop in ends if stop > done), count))
            scanned += engine.scan(turned, part, heap, ids, keeps_rows=again > 0)
            done += part.cells.shape[1]
            found = engine.finish(asked, heap, ids, k, again)
            found.scanned = scanned
            yield _hits(found, done * len(asked))

    def search(
        self,
        queries: NDArray[np.generic],
        k: int,
        *,
        nprobe: int | None = None,
        rerank: int | None = None,
    ) -> Hits:
        """Return the nearest vectors of each query among those in the nearest cells.

        Args:
            queries: [Q, D].
            k: neighbours that are wanted.
            nprobe: cells to look into; the index's own number where none is given.
            rerank: candidates per neighbour that are compared again; likewise.

        Returns:
            The hits.

        Raises:
            ConfigError: k or nprobe is below 1, or whole vectors are wanted that are not kept.
            DataError: queries of another width, or not finite.
        """
        asked = checked_vectors(queries, self.dim, what="queries")
        again = self._checked_rerank(rerank)
        count = checked_probes(self.nprobe if nprobe is None else nprobe, self.nlist)
        turned = self.codec.turned(asked)
        found = self._settled().search(asked, turned, count, checked_k(k), again)
        return _hits(found, count * len(asked))

    def _settled(self) -> CellEngine:
        """Return what searches the rows; they are arranged for it after a change."""
        self.rows.settle()
        if self._engine is None:
            self._scanner = self.codec.scanner(self.rows, self.metric)
            codes = self._scanner.native()
            self._engine = native_cells(
                self.rows, self.centers, codes, self.metric
            ) or SteppedCells(self.rows, self.centers, self._scanner, self.metric)
        return self._engine

    def _checked_rerank(self, rerank: int | None) -> int:
        """Return how many candidates per neighbour are compared again."""
        again = self.rerank if rerank is None else rerank
        if again < self.least_rerank or (again and not self.rerank):
            error = ConfigError(
                f"rerank is {again}",
                hint=f"give {self.least_rerank} or more"
                if self.rerank
                else "give 0: this index keeps no whole vectors beside to compare again",
            )
            error.field = "rerank"
            raise error
        return again

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes by part."""
        learned = sum(values.nbytes for values in self.codec.learned().values())
        engine = self._settled()
        assert self._scanner is not None
        return {
            **self.rows.memory_bytes(),
            **self._scanner.memory_bytes(),
            **engine.memory_bytes(),
            "centers": self.centers.nbytes,
            "codec": learned,
        }

    def save(self, path: Path) -> None:
        """Write the index to a file.

        Args:
            path: the file; an older one is replaced at once.

        Raises:
            CapacityError: the disk is full; an older file stays.
        """
        learned = {"centers": self.centers, **self.codec.learned()}
        write_index(path, self.kind, self.settings(), self.rows, learned)

    def settings(self) -> dict[str, Any]:
        """Return what the index was made with."""
        names = ("dim", "nlist", "nprobe", "metric")
        return {**{name: getattr(self, name) for name in names}, **self.codec.settings()}

    @classmethod
    def restored(
        cls, settings: Mapping[str, Any], rows: CellRows, learned: Mapping[str, NDArray[Any]]
    ) -> Self:
        """Return the index that was written with these parts."""
        made = cls(**settings)
        made.centers, made.rows = np.asarray(learned["centers"]), rows
        made.codec.restore(learned)
        return made


def _doubled() -> Iterator[int]:
    """Yield 1, 2, 4 and so on."""
    count = 1
    while True:
        yield count
        count *= 2


def _hits(found: CellHits, probed: int) -> Hits:
    """Return what was found with what was done."""
    stats = SearchStats(scanned=found.scanned, probed=probed, reranked=found.reranked)
    return Hits(ids=found.ids, distances=found.distances, stats=stats)
