"""Vectors in cells around centers; a query looks into the nearest cells. One cell is exact."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.jit import njit
from steelyard.retrieve.cells import CellRows, cells_of, nearest_cells, train_centers
from steelyard.retrieve.distance import new_heap, scan_vectors, sorted_heap
from steelyard.retrieve.index import (
    Hits,
    Metric,
    SearchStats,
    checked_ids,
    checked_k,
    checked_vectors,
)
from steelyard.retrieve.storage import write_index

__all__ = ["IVFFlat"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
VectorKind = Literal["float32", "uint8"]


class IVFFlat:
    """Whole vectors in cells.

    With one cell nothing needs to be trained, every vector is compared, and the result is exact.

    Attributes:
        dim: numbers in a vector.
        metric: "l2" or "ip".
        nlist: cells.
        nprobe: cells that a query looks into, unless a search says otherwise.
    """

    kind = "ivf"

    def __init__(
        self,
        dim: int,
        *,
        nlist: int = 1,
        nprobe: int = 1,
        metric: Metric = "l2",
        store: VectorKind = "float32",
    ) -> None:
        """Make an index without vectors.

        Args:
            dim: numbers in a vector.
            nlist: cells; 1 for exact search.
            nprobe: cells that a query looks into.
            metric: "l2" or "ip" (inner product).
            store: what vectors are kept as; "uint8" for whole numbers from 0 to 255.

        Raises:
            ConfigError: a number is out of range.
        """
        if dim < 1 or not 1 <= nprobe <= nlist:
            raise ConfigError(
                f"{dim} numbers, {nlist} cells, {nprobe} of them searched",
                hint="give at least 1 of each, and no more searched cells than there are",
            )
        self.dim, self.nlist, self.nprobe = dim, nlist, nprobe
        self.metric: Metric = metric
        self.store: VectorKind = store
        self.centers = np.zeros((1, dim), np.float32) if nlist == 1 else np.empty((0, dim), "f4")
        self.rows = CellRows.empty(nlist, {"vectors": np.empty((0, dim), store)})

    def __len__(self) -> int:
        """Return how many vectors there are."""
        return len(self.rows)

    def train(self, vectors: NDArray[np.generic], *, seed: int = 0) -> None:
        """Place the centers of the cells.

        Args:
            vectors: sample [N, D], at least one per cell.
            seed: seed of the centers.

        Raises:
            ConfigError: there are vectors already, or fewer in the sample than cells.
            DataError: vectors of another width, or not finite.
        """
        if len(self):
            raise ConfigError("an index that holds vectors is not trained again")
        sample = checked_vectors(vectors, self.dim)
        if self.nlist > 1:
            self.centers = train_centers(sample, self.nlist, seed=seed)

    def add(self, vectors: NDArray[np.generic], ids: Ids | None = None) -> Ids:
        """Add vectors.

        Args:
            vectors: [N, D].
            ids: their numbers, from 0, each new; counted on where none are given.

        Returns:
            Their numbers [N].

        Raises:
            ConfigError: the index is not trained.
            DataError: vectors of another width, not finite or out of the range of the store; or a
                number that is there already.
        """
        if len(self.centers) < self.nlist:
            raise ConfigError("the index has no cells yet", hint="train it on a sample first")
        rows = checked_vectors(vectors, self.dim)
        numbers = checked_ids(ids, len(rows), self.rows.all_ids(), self.rows.next_id)
        cells = cells_of(rows, self.centers)
        self.rows.add(numbers, cells, {"vectors": _stored(rows, self.store)})
        return numbers

    def remove(self, ids: Ids) -> None:
        """Remove vectors.

        Args:
            ids: their numbers.

        Raises:
            DataError: a number is not there; then nothing is removed.
        """
        self.rows.remove(np.atleast_1d(np.asarray(ids, dtype=np.int64)))

    def search_steps(
        self, queries: NDArray[np.generic], k: int, *, nprobe: int | None = None
    ) -> Iterator[Hits]:
        """Look into the nearest cell, then into twice as many each time.

        Args:
            queries: [Q, D].
            k: neighbours that are wanted.
            nprobe: cells to look into at the end; the index's own number where none is given.

        Yields:
            What was found so far.

        Raises:
            ConfigError: k or nprobe is below 1.
            DataError: queries of another width, or not finite.
        """
        probes = _checked_probes(self.nprobe if nprobe is None else nprobe, self.nlist)
        yield from self._search(queries, k, probes, steps=True)

    def search(self, queries: NDArray[np.generic], k: int, *, nprobe: int | None = None) -> Hits:
        """Return the nearest vectors of each query.

        Args:
            queries: [Q, D].
            k: neighbours that are wanted.
            nprobe: cells to look into; the index's own number where none is given.

        Returns:
            The hits.

        Raises:
            ConfigError: k or nprobe is below 1.
            DataError: queries of another width, or not finite.
        """
        probes = _checked_probes(self.nprobe if nprobe is None else nprobe, self.nlist)
        return next(self._search(queries, k, probes, steps=False))

    def _search(
        self, queries: NDArray[np.generic], k: int, nprobe: int, *, steps: bool
    ) -> Iterator[Hits]:
        asked = checked_vectors(queries, self.dim, what="queries")
        self.rows.settle()
        is_l2 = self.metric == "l2"
        probes = nearest_cells(asked, self.centers, nprobe, is_l2=is_l2)
        heap, ids = new_heap(len(asked), checked_k(k))
        scanned = done = 0
        while done < probes.cells.shape[1]:
            upto = max(1, 2 * done) if steps else probes.cells.shape[1]
            part = np.ascontiguousarray(probes.cells[:, done:upto])
            vectors = self.rows.columns["vectors"]
            scanned += _scan_cells(
                asked, part, self.rows.starts, vectors, self.rows.ids, is_l2, heap, ids
            )
            done += part.shape[1]
            yield self._hits(heap, ids, scanned, done * len(asked))

    def _hits(self, heap: Floats, ids: Ids, scanned: int, probed: int) -> Hits:
        distances, numbers = sorted_heap(heap, ids)
        if self.metric == "ip":
            distances = -distances
        return Hits(
            ids=numbers, distances=distances, stats=SearchStats(scanned=scanned, probed=probed)
        )

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes by part."""
        return {**self.rows.memory_bytes(), "centers": self.centers.nbytes}

    def save(self, path: Path) -> None:
        """Write the index to a file.

        Args:
            path: the file; an older one is replaced at once.

        Raises:
            CapacityError: the disk is full; an older file stays.
        """
        write_index(path, self.kind, self.settings(), self.rows, {"centers": self.centers})

    def settings(self) -> dict[str, Any]:
        """Return what the index was made with."""
        names = ("dim", "nlist", "nprobe", "metric", "store")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def restored(
        cls, settings: Mapping[str, Any], rows: CellRows, learned: Mapping[str, NDArray[Any]]
    ) -> "IVFFlat":
        """Return the index that was written with these parts."""
        made = cls(**settings)
        made.centers, made.rows = np.asarray(learned["centers"]), rows
        return made


def _checked_probes(nprobe: int, nlist: int) -> int:
    """Return cells to look into, at most all."""
    if nprobe < 1:
        raise ConfigError(f"nprobe is {nprobe}", hint="look into 1 cell or more")
    return min(nprobe, nlist)


def _stored(vectors: Floats, kind: VectorKind) -> NDArray[np.generic]:
    """Return vectors as they are kept."""
    if kind == "float32":
        return vectors
    narrow = vectors.astype(np.uint8)
    if (narrow != vectors).any():
        row = int((narrow != vectors).any(axis=1).argmax())
        raise ConfigError(
            f"row {row} is not of whole numbers from 0 to 255", hint="keep vectors as float32"
        )
    return narrow


@njit()
def _scan_cells(
    queries: np.ndarray,
    cells: np.ndarray,
    starts: np.ndarray,
    vectors: np.ndarray,
    numbers: np.ndarray,
    is_l2: bool,
    distances: np.ndarray,
    ids: np.ndarray,
) -> Any:
    """Scan cells of each query; return the rows that were compared."""
    scanned = 0
    for row in range(len(queries)):
        for cell in cells[row]:
            first, last = starts[cell], starts[cell + 1]
            scan_vectors(
                queries[row], vectors, numbers, first, last, is_l2, distances[row], ids[row]
            )
            scanned += last - first
    return scanned
