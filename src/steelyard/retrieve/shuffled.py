"""Codes of 4 bits in blocks of 32 rows, of which native code looks 32 up with one shuffle."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit
from steelyard.retrieve.distance import offer

__all__ = ["CodeBlocks", "byte_tables"]

_ROWS = 32


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
        return cls(blocks, block_starts, starts)

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
        _scan(self.blocks, self.block_starts, self.row_starts, cells, tables, distances, rows)


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
