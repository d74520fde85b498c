"""Searches of cells among the vectors that a bitmap admits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError
from steelyard.jit import njit
from steelyard.retrieve.cells import CellRows
from steelyard.retrieve.distance import new_heap, offer, sorted_heap

__all__ = ["admitted", "scan_admitted"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


def admitted(ids: Ids, next_id: int) -> NDArray[np.uint8]:
    """Return a bitmap of numbers.

    Args:
        ids: numbers of vectors, each below `next_id`.
        next_id: first number that was never given.

    Returns:
        Bytes; the lowest bit of the first is number 0.

    Raises:
        DataError: a number is out of range.
    """
    numbers = np.asarray(ids, np.int64)
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < next_id:
        raise DataError(
            f"numbers {int(numbers.min())} to {int(numbers.max())} of vectors 0 to {next_id - 1}"
        )
    is_in = np.zeros(next_id, np.bool_)
    is_in[numbers] = True
    return np.packbits(is_in, bitorder="little")


def scan_admitted(
    queries: Floats, cells: Ids, rows: CellRows, bitmap: NDArray[np.uint8], k: int, *, is_l2: bool
) -> tuple[Floats, Ids, int]:
    """Compare queries with what a bitmap admits of their cells.

    Args:
        queries: [Q, D].
        cells: cells of each query [Q, P].
        rows: settled rows with a column "vectors".
        bitmap: what `admitted` returned.
        k: neighbours.
        is_l2: squared distances, else inner products.

    Returns:
        Distances and numbers [Q, K], the nearest first, and how many vectors were compared.
    """
    heap, ids = new_heap(len(queries), k)
    compared = _scan(
        queries, cells, rows.starts, rows.columns["vectors"], rows.ids, bitmap, is_l2, heap, ids
    )
    found, numbers = sorted_heap(heap, ids)
    return found if is_l2 else -found, numbers, int(compared)


@njit()
def _admitted_of(
    first: Any, last: Any, numbers: np.ndarray, bitmap: np.ndarray, room: np.ndarray
) -> int:
    """Put the rows of a range that are admitted into a room; return how many there are."""
    count = 0
    # Without a branch: whether a row is admitted cannot be foreseen.
    for row in range(first, last):
        number = numbers[row]
        room[count] = row
        count += (bitmap[number >> 3] >> (number & 7)) & 1
    return count


@njit(fastmath={"reassoc", "contract", "nsz"})
def _distance(query: np.ndarray, vector: np.ndarray, is_l2: bool) -> Any:
    """Return the squared distance, or the negative inner product."""
    total = np.float32(0.0)
    if is_l2:
        for place in range(len(query)):
            apart = query[place] - np.float32(vector[place])
            total += apart * apart
    else:
        for place in range(len(query)):
            total -= query[place] * np.float32(vector[place])
    return total


@njit()
def _scan(
    queries: np.ndarray,
    cells: np.ndarray,
    starts: np.ndarray,
    vectors: np.ndarray,
    numbers: np.ndarray,
    bitmap: np.ndarray,
    is_l2: bool,
    heap: np.ndarray,
    ids: np.ndarray,
) -> int:
    """Scan cells of each query."""
    compared = 0
    largest = 0
    for cell in range(len(starts) - 1):
        largest = max(largest, starts[cell + 1] - starts[cell])
    # One place more: what comes after the last is written, but not counted.
    room = np.empty(largest + 1, np.int64)
    for query in range(len(queries)):
        for cell in cells[query]:
            count = _admitted_of(starts[cell], starts[cell + 1], numbers, bitmap, room)
            compared += count
            for place in range(count):
                row: Any = room[place]
                distance = _distance(queries[query], vectors[row], is_l2)
                if distance <= heap[query, 0]:
                    number: Any = numbers[row]
                    offer(heap[query], ids[query], distance, number)
    return compared
