"""An index of cells as native code sees it: one call for a whole search."""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.cells import CellRows, Probes
from steelyard.retrieve.codec import CodeArrays
from steelyard.retrieve.distance import sorted_heap
from steelyard.retrieve.engine import CellHits
from steelyard.retrieve.index import Metric
from steelyard.retrieve.native.library import CellFields, address

__all__ = ["NativeCells"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
_LANES = 16
_NONE = np.empty(0, np.float32)


class NativeCells:
    """Searches of settled rows by native code; the arrays are held as long as this."""

    def __init__(
        self,
        library: ctypes.CDLL,
        rows: CellRows,
        centers: Floats,
        codes: CodeArrays,
        metric: Metric,
    ) -> None:
        """Take what is searched.

        Args:
            library: compiled code.
            rows: settled rows.
            centers: centers of cells.
            codes: what the codec keeps.
            metric: "l2" or "ip".
        """
        vectors = rows.columns.get("vectors")
        own = codes.centers
        if own.ndim == 3:
            # Numbers of all centers of a part side by side: a register holds sixteen.
            own = own.transpose(0, 2, 1)
        # Native code reads by address: what is not in the form it expects is copied, and all is
        # kept here.
        self._kept: dict[str, NDArray[Any]] = {
            "centers": _in_lanes(centers),
            "row_starts": np.ascontiguousarray(rows.starts, np.int64),
            "ids": np.ascontiguousarray(rows.ids, np.int64),
            "vectors": _NONE if vectors is None else np.ascontiguousarray(vectors),
            "codes": np.ascontiguousarray(codes.codes),
            "block_starts": np.ascontiguousarray(codes.block_starts, np.int64),
            "code_centers": np.ascontiguousarray(own, np.float32),
            "extra": np.ascontiguousarray(codes.extra, np.float32),
        }
        self._library, self._nlist, self._starts = library, len(centers), rows.starts
        self._fields = CellFields(
            dim=centers.shape[1],
            nlist=len(centers),
            is_l2=metric == "l2",
            codec=codes.codec,
            number_bytes=0 if vectors is None else vectors.itemsize,
            parts=codes.centers.shape[0] if codes.codec else 1,
            factor=codes.factor,
            **{name: address(values) for name, values in self._kept.items()},
        )
        self._place = ctypes.addressof(self._fields)

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes beside the rows: the centers in another order."""
        return {"centers in lanes": self._kept["centers"].nbytes}

    def search(self, asked: Floats, turned: Floats, nprobe: int, k: int, again: int) -> CellHits:
        """Search in one call."""
        count = len(asked)
        distances, ids = np.empty((count, k), np.float32), np.empty((count, k), np.int64)
        counts = np.zeros(2, np.int64)
        self._library.steelyard_search_cells(
            self._place,
            *(address(asked), address(turned), count, nprobe, k, again),
            *(address(distances), address(ids), address(counts)),
        )
        scanned, reranked = counts.tolist()
        return CellHits(ids, distances, scanned, reranked)

    def nearest(self, turned: Floats, count: int) -> Probes:
        """Return the nearest cells of each query."""
        count = min(count, self._nlist)
        distances = np.empty((len(turned), count), np.float32)
        cells = np.empty((len(turned), count), np.int64)
        self._library.steelyard_nearest_cells(
            *(self._place, address(turned), len(turned), count),
            *(address(distances), address(cells)),
        )
        return Probes(cells, distances)

    def scan(
        self, turned: Floats, probes: Probes, heap: Floats, ids: Ids, *, keeps_rows: bool
    ) -> int:
        """Scan cells into heaps."""
        cells = probes.cells
        self._library.steelyard_scan_cells(
            *(self._place, address(turned), len(turned)),
            *(address(cells), address(probes.distances), cells.shape[1], keeps_rows),
            *(address(heap), address(ids), heap.shape[1]),
        )
        return int((self._starts[cells + 1] - self._starts[cells]).sum())

    def finish(self, asked: Floats, heap: Floats, ids: Ids, k: int, again: int) -> CellHits:
        """Bring heaps in order."""
        if not again:
            found, numbers = sorted_heap(heap, ids)
            return CellHits(numbers, found if self._fields.is_l2 else -found, 0, 0)
        count = len(asked)
        distances, numbers = np.empty((count, k), np.float32), np.empty((count, k), np.int64)
        counts = np.zeros(2, np.int64)
        self._library.steelyard_compare_again(
            *(self._place, address(asked), count, address(ids), ids.shape[1], k),
            *(address(distances), address(numbers), address(counts)),
        )
        return CellHits(numbers, distances, 0, int(counts[1]))


def _in_lanes(centers: Floats) -> Floats:
    """Return centers in blocks of sixteen [blocks, D, 16]; behind the last stand zeros."""
    count, dim = centers.shape
    padded = np.zeros((-(-count // _LANES) * _LANES, dim), np.float32)
    padded[:count] = centers
    return np.ascontiguousarray(padded.reshape(-1, _LANES, dim).transpose(0, 2, 1))
