"""What runs a search of cells: steps that numba compiles, or one native call for all of them."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.cells import CellRows, Probes, nearest_cells
from steelyard.retrieve.codec import CellScanner
from steelyard.retrieve.distance import compare_rows, new_heap, sorted_heap
from steelyard.retrieve.index import Metric

__all__ = ["CellEngine", "CellHits", "SteppedCells"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(slots=True)
class CellHits:
    """The nearest vectors of some queries, and what it took to find them.

    Attributes:
        ids: int64 [Q, K], the nearest first; -1 where there are fewer than K.
        distances: float32 [Q, K], as a user sees them.
        scanned: rows whose distance was computed.
        reranked: rows that were compared again by whole vectors.
    """

    ids: Ids
    distances: Floats
    scanned: int
    reranked: int


class CellEngine(Protocol):
    """Searches of settled rows; whole ones, or step by step with the same result."""

    def search(self, asked: Floats, turned: Floats, nprobe: int, k: int, again: int) -> CellHits:
        """Look into the nearest cells of each query.

        Args:
            asked: queries [Q, D].
            turned: queries as cells see them [Q, D].
            nprobe: cells of each query, at most as many as there are.
            k: neighbours.
            again: candidates per neighbour that are compared again; 0 for none.

        Returns:
            The nearest.
        """
        ...

    def nearest(self, turned: Floats, count: int) -> Probes:
        """Return the nearest cells of each query."""
        ...

    def scan(
        self, turned: Floats, probes: Probes, heap: Floats, ids: Ids, *, keeps_rows: bool
    ) -> int:
        """Scan cells into heaps of rows, or of their numbers; return how many rows they hold."""
        ...

    def finish(self, asked: Floats, heap: Floats, ids: Ids, k: int, again: int) -> CellHits:
        """Return what heaps hold so far, compared again where that is wanted."""
        ...

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes that are held beside the rows, by part."""
        ...


class SteppedCells:
    """One compiled function for each step: needs no compiler on the machine."""

    def __init__(
        self, rows: CellRows, centers: Floats, scanner: CellScanner, metric: Metric
    ) -> None:
        """Take what is searched.

        Args:
            rows: settled rows.
            centers: centers of cells.
            scanner: scans cells.
            metric: "l2" or "ip".
        """
        self._rows, self._centers, self._scanner = rows, centers, scanner
        self._is_l2 = metric == "l2"

    def search(self, asked: Floats, turned: Floats, nprobe: int, k: int, again: int) -> CellHits:
        """Take all steps."""
        heap, ids = new_heap(len(asked), k * max(again, 1))
        probes = self.nearest(turned, nprobe)
        scanned = self.scan(turned, probes, heap, ids, keeps_rows=again > 0)
        found = self.finish(asked, heap, ids, k, again)
        found.scanned = scanned
        return found

    def nearest(self, turned: Floats, count: int) -> Probes:
        """Return the nearest cells of each query."""
        return nearest_cells(turned, self._centers, count, is_l2=self._is_l2)

    def scan(
        self, turned: Floats, probes: Probes, heap: Floats, ids: Ids, *, keeps_rows: bool
    ) -> int:
        """Scan cells into heaps."""
        numbers = self._rows.places if keeps_rows else self._rows.ids
        self._scanner.scan(turned, probes, numbers, heap, ids)
        return self._rows.counted(probes.cells)

    def finish(self, asked: Floats, heap: Floats, ids: Ids, k: int, again: int) -> CellHits:
        """Bring heaps in order."""
        reranked = 0
        if again:
            _, rows = sorted_heap(heap, ids)
            reranked = int((rows >= 0).sum())
            heap, ids = new_heap(len(asked), k)
            vectors = self._rows.columns["vectors"]
            compare_rows(asked, rows, vectors, self._rows.ids, self._is_l2, heap, ids)
        distances, numbers = sorted_heap(heap, ids)
        return CellHits(numbers, distances if self._is_l2 else -distances, 0, reranked)

    def memory_bytes(self) -> dict[str, int]:
        """Return nothing: all lies elsewhere."""
        return {}
