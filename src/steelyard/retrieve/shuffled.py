"""Codes of 4 bits in blocks of 32 rows, scanned with one shuffle for 32 look-ups."""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import BackendError
from steelyard.jit import njit
from steelyard.native import NativeCode, load, switched_off, typed, verdict
from steelyard.retrieve.distance import new_heap, offer

__all__ = ["CodeBlocks", "byte_tables"]

_ROWS = 32
_CODE = NativeCode(name="fast_scan", sources=(Path(__file__).with_name("fast_scan.cpp"),))
_PLACE, _SIZE = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES = {
    "steelyard_fast_scan": (
        *(_PLACE, _PLACE, _PLACE, _PLACE, _SIZE),
        *(_PLACE, _SIZE, _PLACE, _PLACE, _SIZE),
    )
}


@dataclass(frozen=True, slots=True)
class CodeBlocks:
    """Codes of rows that are sorted by cell, 32 rows to a block; a cell begins a new one.

    Attributes:
        blocks: uint8 [blocks, parts, 16]: byte r has row r in its low half, row 16 + r in the high.
        block_starts: first block of each cell and the end of the last [cells + 1].
        row_starts: first row of each cell and the end of the last [cells + 1].
    """

    blocks: NDArray[np.uint8]
    block_starts: NDArray[np.int64]
    row_starts: NDArray[np.int64]
    _places: tuple[int, int, int]

    @classmethod
    def of(cls, codes: NDArray[np.uint8], row_starts: NDArray[np.int64]) -> "CodeBlocks":
        """Arrange codes.

        Args:
            codes: numbers below 16 [N, parts]; parts are even.
            row_starts: first row of each cell and the end of the last [cells + 1].

        Returns:
            The blocks.
        """
        counts = -(-np.diff(row_starts) // _ROWS)
        block_starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        blocks = np.zeros((int(block_starts[-1]), codes.shape[1], _ROWS // 2), np.uint8)
        _arrange(codes, row_starts, block_starts, blocks)
        starts = np.ascontiguousarray(row_starts)
        # Asking an array for its address takes longer than scanning a block.
        places = (blocks.ctypes.data, block_starts.ctypes.data, starts.ctypes.data)
        return cls(blocks, block_starts, starts, places)

    def scan(
        self,
        cells: NDArray[np.int64],
        tables: NDArray[np.uint8],
        distances: NDArray[np.float32],
        rows: NDArray[np.int64],
    ) -> None:
        """Add table entries up for all rows of some cells and keep the smallest sums.

        Args:
            cells: cells to scan [P].
            tables: entry of each code of each part [parts, 16]; a sum stays below 65,536.
            distances: heap of sums [K].
            rows: heap of rows [K].
        """
        library = _library()
        if library is None:
            _scan(self.blocks, self.block_starts, self.row_starts, cells, tables, distances, rows)
        else:
            _native_scan(library, self, cells, tables, distances, rows)


@njit(fastmath={"reassoc", "contract", "nsz"})
def byte_tables(query: Any, centers: Any, offsets: Any, factor: Any) -> Any:
    """Return tables in 8 bits, all parts on one scale; each part's smallest entry is 0.

    Args:
        query: float32 [D].
        centers: centers of the codes [parts, 16, D / parts].
        offsets: added to each entry [parts, 16].
        factor: factor of the inner product of a part of the query with a center.

    Returns:
        uint8 [parts, 16]: sums of entries are in the order of distances, but for rounding.
    """
    parts, count, width = centers.shape
    tables = np.empty((parts, count), np.float32)
    largest = np.float32(1e-30)
    for part in range(parts):
        for center in range(count):
            total = np.float32(0.0)
            for place in range(width):
                total += query[part * width + place] * centers[part, center, place]
            tables[part, center] = offsets[part, center] + factor * total
        tables[part] -= tables[part].min()
        largest = max(largest, tables[part].max())
    found = np.empty((parts, count), np.uint8)
    scale = np.float32(255) / largest
    for part in range(parts):
        for center in range(count):
            found[part, center] = np.uint8(tables[part, center] * scale + np.float32(0.5))
    return found


@njit()
def _arrange(codes: Any, row_starts: Any, block_starts: Any, blocks: Any) -> None:
    for cell in range(len(row_starts) - 1):
        for row in range(row_starts[cell], row_starts[cell + 1]):
            inside = row - row_starts[cell]
            block, lane = block_starts[cell] + inside // 32, inside % 32
            for part in range(codes.shape[1]):
                blocks[block, part, lane % 16] |= codes[row, part] << (4 * (lane // 16))


@njit()
def _scan(
    blocks: Any,
    block_starts: Any,
    row_starts: Any,
    cells: Any,
    tables: Any,
    distances: Any,
    rows: Any,
) -> None:
    for cell in cells:
        for row in range(row_starts[cell], row_starts[cell + 1]):
            inside = row - row_starts[cell]
            block, lane = block_starts[cell] + inside // 32, inside % 32
            total = 0
            for part in range(tables.shape[0]):
                code = blocks[block, part, lane % 16] >> (4 * (lane // 16))
                total += tables[part, code & 15]
            offer(distances, rows, np.float32(total), row)


def _native_scan(
    library: ctypes.CDLL,
    made: CodeBlocks,
    cells: NDArray[np.int64],
    tables: NDArray[np.uint8],
    distances: NDArray[np.float32],
    rows: NDArray[np.int64],
) -> None:
    library.steelyard_fast_scan(
        *made._places,
        *(_address(cells), len(cells), _address(tables), len(tables)),
        *(_address(distances), _address(rows), len(rows)),
    )


def _address(values: NDArray[Any]) -> int:
    # `values.ctypes.data` makes an object first and takes three times as long.
    return values.__array_interface__["data"][0]


@cache
def _library() -> ctypes.CDLL | None:
    """Load the kernel; None without a compiler, switched off, or where it finds other rows."""
    if switched_off():
        return None
    try:
        library = typed(load(_CODE), _SIGNATURES)
    except BackendError:
        return None
    return library if not verdict(library, "scan", lambda: _difference(library), 0.5) else None


def _difference(library: ctypes.CDLL) -> float:
    """Return how many of the kept rows and sums differ from the other path's."""
    rng = np.random.default_rng(0)
    starts = np.array([0, 70, 70, 71, 300], np.int64)
    made = CodeBlocks.of(rng.integers(0, 16, (300, 6), dtype=np.uint8), starts)
    tables = rng.integers(0, 256, (6, 16), dtype=np.uint8)
    cells = np.array([3, 0, 2, 1], np.int64)
    heaps = [new_heap(1, 40), new_heap(1, 40)]
    (one, own), (two, others) = ((heap[0], ids[0]) for heap, ids in heaps)
    _native_scan(library, made, cells, tables, one, own)
    _scan(made.blocks, made.block_starts, made.row_starts, cells, tables, two, others)
    return float((one != two).sum() + (own != others).sum())
