"""Rows of an index sorted by the cell they lie in, with new and removed rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.kmeans import kmeans, nearest
from steelyard.errors import ConfigError, DataError
from steelyard.jit import njit
from steelyard.retrieve.distance import new_heap, scan_vectors, sorted_rows

__all__ = ["CellRows", "Probes", "cells_of", "nearest_cells", "train_centers"]

_SAMPLE_PER_CELL = 64
_ITERATIONS = 12


@dataclass(frozen=True, slots=True)
class Probes:
    """Cells that queries look into, the nearest first.

    Attributes:
        cells: int64 [Q, P].
        distances: float32 [Q, P], squared, or negative inner products.
    """

    cells: NDArray[np.int64]
    distances: NDArray[np.float32]

    def part(self, first: int, last: int) -> "Probes":
        """Return some of the cells of each query: from one place to before another."""
        if first == 0 and last >= self.cells.shape[1]:
            return self
        cells, distances = self.cells[:, first:last], self.distances[:, first:last]
        return Probes(np.ascontiguousarray(cells), np.ascontiguousarray(distances))


def train_centers(
    vectors: NDArray[np.float32], cells: int, *, seed: int = 0
) -> NDArray[np.float32]:
    """Place the centers of cells.

    Args:
        vectors: sample [N, D]; at most 64 per cell are used, drawn at random.
        cells: number of centers.
        seed: seed of the draw.

    Returns:
        float32 [cells, D].

    Raises:
        ConfigError: more cells than vectors.
    """
    if not 1 <= cells <= len(vectors):
        raise ConfigError(
            f"{cells} cells for a sample of {len(vectors)} vectors",
            hint="give fewer cells, or a larger sample",
        )
    rng = np.random.default_rng(seed)
    most = _SAMPLE_PER_CELL * cells
    if len(vectors) > most:
        vectors = vectors[np.sort(rng.choice(len(vectors), most, replace=False))]
    found = kmeans(
        vectors,
        cells,
        seed=seed,
        iterations=_ITERATIONS,
        tolerance=1e-3,
        start="drawn",
        precision="float32",
    )
    return np.ascontiguousarray(found.centers, dtype=np.float32)


def nearest_cells(
    queries: NDArray[np.float32], centers: NDArray[np.float32], count: int, *, is_l2: bool
) -> Probes:
    """Find the nearest centers of each query.

    Args:
        queries: [Q, D].
        centers: [C, D].
        count: how many; all where there are fewer.
        is_l2: by squared distance, else by inner product.

    Returns:
        Cells with their distances.
    """
    distances, cells = _nearest(queries, centers, min(count, len(centers)), is_l2)
    return Probes(cells, distances)


@njit()
def _nearest(queries: Any, centers: Any, count: Any, is_l2: Any) -> Any:
    """Compare queries with all centers; return distances and cells [Q, count] in order."""
    heap, cells = new_heap(len(queries), count)
    numbers = np.arange(len(centers))
    for row in range(len(queries)):
        scan_vectors(queries[row], centers, numbers, 0, len(centers), is_l2, heap[row], cells[row])
    return sorted_rows(heap, cells)


@dataclass(slots=True)
class CellRows:
    """Rows with some columns, sorted by cell.

    Attributes:
        cells: number of cells.
        starts: first row of each cell and the end of the last [cells + 1].
        ids: number of each row [N].
        columns: arrays [N, ...] by name.
        next_id: first number that was never given.
    """

    cells: int
    starts: NDArray[np.int64]
    ids: NDArray[np.int64]
    columns: dict[str, NDArray[np.generic]]
    next_id: int = 0
    _new: list[tuple[NDArray[np.int64], NDArray[np.int64], Mapping[str, NDArray[np.generic]]]] = (
        field(default_factory=list)
    )
    _places: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def empty(cls, cells: int, columns: Mapping[str, NDArray[np.generic]]) -> "CellRows":
        """Return no rows, with columns like those given."""
        made = {name: values[:0].copy() for name, values in columns.items()}
        return cls(cells, np.zeros(cells + 1, np.int64), np.empty(0, np.int64), made)

    def __len__(self) -> int:
        """Return how many rows there are, new ones among them."""
        return len(self.ids) + sum(len(ids) for ids, _, _ in self._new)

    def all_ids(self) -> NDArray[np.int64]:
        """Return the numbers of all rows."""
        return np.concatenate([self.ids, *(ids for ids, _, _ in self._new)])

    def add(
        self,
        ids: NDArray[np.int64],
        cells: NDArray[np.int64],
        columns: Mapping[str, NDArray[np.generic]],
    ) -> None:
        """Take rows; they are sorted in when rows are next looked at."""
        if len(ids):
            self._new.append((ids, cells, dict(columns)))
            self.next_id = max(self.next_id, int(ids.max()) + 1)

    @property
    def places(self) -> NDArray[np.int64]:
        """Return the place of each row, for searches that want rows and not their numbers."""
        if len(self._places) != len(self.ids):
            self._places = np.arange(len(self.ids))
        return self._places

    def counted(self, cells: NDArray[np.int64]) -> int:
        """Return how many rows some cells hold, a cell as often as it is named."""
        return int((self.starts[cells + 1] - self.starts[cells]).sum())

    def settle(self) -> None:
        """Sort new rows into their cells; rows of a cell stay in the order in which they came."""
        if not self._new:
            return
        old = np.repeat(np.arange(self.cells), np.diff(self.starts))
        cells = np.concatenate([old, *(cells for _, cells, _ in self._new)])
        order = np.argsort(cells, kind="stable")
        self.ids = self.all_ids()[order]
        self.columns = {
            name: np.concatenate([values, *(given[name] for _, _, given in self._new)])[order]
            for name, values in self.columns.items()
        }
        self._new.clear()
        self._count(cells)

    def remove(self, ids: NDArray[np.int64]) -> None:
        """Remove rows.

        Args:
            ids: their numbers.

        Raises:
            DataError: a number is not there; then nothing is removed.
        """
        self.settle()
        unknown = np.setdiff1d(ids, self.ids)
        if len(unknown):
            raise DataError(f"there is no vector {int(unknown[0])}")
        stay = ~np.isin(self.ids, ids)
        cells = np.repeat(np.arange(self.cells), np.diff(self.starts))[stay]
        self.ids = self.ids[stay]
        self.columns = {name: values[stay] for name, values in self.columns.items()}
        self._count(cells)

    def _count(self, cells: NDArray[np.int64]) -> None:
        counts = np.bincount(cells, minlength=self.cells)
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes by part."""
        self.settle()
        found = {name: values.nbytes for name, values in self.columns.items()}
        return {**found, "ids": self.ids.nbytes, "cells": self.starts.nbytes}


def cells_of(vectors: NDArray[np.float32], centers: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the cell of each vector: that of the nearest center, whatever the metric."""
    return nearest(vectors, centers)[0]
