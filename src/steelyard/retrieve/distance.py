"""Kernels that compare a query with vectors or codes and keep the nearest.

The nearest are a heap of K distances and numbers, the worst on top, so that a search can stop and
go on. Smaller is nearer: an inner product counts negative. Of equal distances the smaller number
is nearer, so that results do not depend on the order of the scan.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit

__all__ = ["compare_rows", "new_heap", "offer", "scan_codes", "scan_vectors", "sorted_heap"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
_NO_ID = int(np.iinfo(np.int64).max)


@njit()
def new_heap(queries: int, k: int) -> tuple[Floats, Ids]:
    """Return heaps that hold nothing.

    Args:
        queries: Q.
        k: K.

    Returns:
        Distances, infinite [Q, K], and numbers [Q, K].
    """
    distances = np.full((queries, k), np.inf, np.float32)
    return distances, np.full((queries, k), _NO_ID, np.int64)


def sorted_heap(distances: Floats, ids: Ids) -> tuple[Floats, Ids]:
    """Return what heaps hold, the nearest first.

    Args:
        distances: distances of heaps [Q, K].
        ids: ids of heaps [Q, K].

    Returns:
        Distances and numbers [Q, K]; -1 where a heap is not full.
    """
    return sorted_rows(distances, ids)


@njit()
def offer(distances: np.ndarray, ids: np.ndarray, distance: Any, number: int) -> None:
    """Put a vector on a heap in place of the worst, if it is nearer.

    Args:
        distances: heap [K].
        ids: heap [K].
        distance: distance of the vector.
        number: number of the vector.
    """
    if distance < distances[0] or (distance == distances[0] and number < ids[0]):
        _sink(distances, ids, len(distances), distance, number)


@njit()
def _sink(distances: np.ndarray, ids: np.ndarray, size: int, distance: Any, number: int) -> None:
    """Put an entry in place of the top of a heap of some size, the worst on top."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            distances[other] > distances[child]
            or (distances[other] == distances[child] and ids[other] > ids[child])
        ):
            child = other
        if distances[child] < distance or (distances[child] == distance and ids[child] < number):
            break
        distances[place] = distances[child]
        ids[place] = ids[child]
        place = child
    distances[place] = distance
    ids[place] = number


@njit()
def sorted_rows(distances: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return copies of heaps in order: the worst goes to the end again and again."""
    found, numbers = distances.copy(), ids.copy()
    for row in range(len(found)):
        near, own = found[row], numbers[row]
        for end in range(len(near) - 1, 0, -1):
            distance, number = near[end], own[end]
            near[end], own[end] = near[0], own[0]
            _sink(near, own, end, distance, number)
        for place in range(len(own)):
            if own[place] == _NO_ID:
                own[place] = -1
    return found, numbers


@njit(fastmath={"reassoc", "contract", "nsz"})
def scan_vectors(
    query: np.ndarray,
    vectors: np.ndarray,
    numbers: np.ndarray,
    first: Any,
    last: Any,
    is_l2: bool,
    distances: np.ndarray,
    ids: np.ndarray,
) -> None:
    """Compare a query with rows of vectors.

    Args:
        query: float32 [D].
        vectors: [N, D] of any number type.
        numbers: number of each row [N].
        first: first row.
        last: one past the last row.
        is_l2: squared distances, else inner products, negative.
        distances: heap [K].
        ids: heap [K].
    """
    dim = len(query)
    for row in range(first, last):
        vector = vectors[row]
        total = np.float32(0.0)
        if is_l2:
            for place in range(dim):
                apart = query[place] - np.float32(vector[place])
                total += apart * apart
        else:
            for place in range(dim):
                total -= query[place] * np.float32(vector[place])
        if total <= distances[0]:
            offer(distances, ids, total, numbers[row])


@njit(fastmath={"reassoc", "contract", "nsz"})
def scan_codes(
    tables: np.ndarray,
    base: Any,
    codes: np.ndarray,
    extra: np.ndarray,
    numbers: np.ndarray,
    first: Any,
    last: Any,
    distances: np.ndarray,
    ids: np.ndarray,
) -> None:
    """Add distances of parts up, from tables, for rows of codes of 16 bytes or of any length.

    Args:
        tables: distance of each part of the query to each center [parts, 256].
        base: added to every row.
        codes: uint8 [N, parts].
        extra: added to each row [N].
        numbers: number of each row [N].
        first: first row.
        last: one past the last row.
        distances: heap [K].
        ids: heap [K].
    """
    parts = codes.shape[1]
    whole = parts - parts % 4
    for row in range(first, last):
        code = codes[row]
        # Four sums do not wait for each other.
        one = base + extra[row]
        two = three = four = np.float32(0.0)
        for part in range(0, whole, 4):
            one += tables[part, code[part]]
            two += tables[part + 1, code[part + 1]]
            three += tables[part + 2, code[part + 2]]
            four += tables[part + 3, code[part + 3]]
        for part in range(whole, parts):
            one += tables[part, code[part]]
        total = (one + two) + (three + four)
        if total <= distances[0]:
            offer(distances, ids, total, numbers[row])


@njit()
def compare_rows(
    queries: np.ndarray,
    rows: np.ndarray,
    vectors: np.ndarray,
    numbers: np.ndarray,
    is_l2: bool,
    distances: np.ndarray,
    ids: np.ndarray,
) -> None:
    """Compare queries with some rows each.

    Args:
        queries: float32 [Q, D].
        rows: candidates [Q, C]; those below 0 are left out.
        vectors: [N, D] of any number type.
        numbers: number of each row [N].
        is_l2: squared distances, else inner products, negative.
        distances: heaps [Q, K].
        ids: heaps [Q, K].
    """
    for query in range(len(queries)):
        for row in rows[query]:
            if row >= 0:
                scan_vectors(
                    queries[query],
                    vectors,
                    numbers,
                    row,
                    row + 1,
                    is_l2,
                    distances[query],
                    ids[query],
                )
