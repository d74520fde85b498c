"""Baskets made ready for miners: frequent items alone, by ascending frequency, rows and columns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit

__all__ = ["Prepared", "arranged", "count_items", "prepare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Baskets of frequent items.

    Items are numbered from the least frequent: 0 is the rarest of those that are frequent.

    Attributes:
        codes: item of the baskets by number, int32.
        supports: baskets that hold each item, int64.
        row_begins: begin of each basket, int64 [rows + 1]; baskets without frequent items are
            left out.
        row_items: items of each basket in ascending order, int32.
        column_begins: begin of each item's baskets, int64 [items + 1].
        column_rows: baskets of each item in ascending order, int32.
    """

    codes: NDArray[np.int32]
    supports: NDArray[np.int64]
    row_begins: NDArray[np.int64]
    row_items: NDArray[np.int32]
    column_begins: NDArray[np.int64]
    column_rows: NDArray[np.int32]

    @property
    def num_items(self) -> int:
        """Frequent items."""
        return len(self.codes)

    @property
    def num_rows(self) -> int:
        """Baskets with a frequent item."""
        return len(self.row_begins) - 1


def prepare(
    begins: NDArray[np.int64], items: NDArray[np.int32], num_items: int, min_count: int
) -> Prepared:
    """Drop infrequent items, and number the others by ascending frequency.

    Args:
        begins: begin of each basket, [baskets + 1].
        items: items of all baskets; one that a basket holds twice counts once.
        num_items: one more than the largest item.
        min_count: baskets that must hold an item.

    Returns:
        The baskets by rows and by columns.
    """
    counts = count_items(begins, items, num_items)
    frequent = np.flatnonzero(counts >= min_count)
    codes = frequent[np.lexsort((frequent, counts[frequent]))].astype(np.int32)
    numbers = np.full(num_items, -1, np.int32)
    numbers[codes] = np.arange(len(codes), dtype=np.int32)
    return arranged(begins, items, numbers, codes, counts[codes])


def arranged(
    begins: NDArray[np.int64],
    items: NDArray[np.int32],
    numbers: NDArray[np.int32],
    codes: NDArray[np.int32],
    supports: NDArray[np.int64],
) -> Prepared:
    """Return baskets with items that were numbered before.

    Args:
        begins: begin of each basket, [baskets + 1].
        items: items of all baskets.
        numbers: number by item, -1 for one that is dropped.
        codes: item by number.
        supports: baskets that hold each item, by number.

    Returns:
        The baskets by rows and by columns.
    """
    columns = np.concatenate([[0], np.cumsum(supports)])
    rows, row_begins = _columns(begins, items, numbers, columns)
    row_items = _rows(row_begins, columns, rows)
    return Prepared(
        codes=codes,
        supports=supports,
        row_begins=row_begins,
        row_items=row_items,
        column_begins=columns,
        column_rows=rows,
    )


@njit()
def count_items(begins: np.ndarray, items: np.ndarray, num_items: int) -> np.ndarray:
    """Count the baskets of each item."""
    counts = np.zeros(num_items, np.int64)
    last = np.full(num_items, -1, np.int64)
    for row in range(len(begins) - 1):
        for place in range(begins[row], begins[row + 1]):
            item = items[place]
            if last[item] != row:
                last[item] = row
                counts[item] += 1
    return counts


@njit()
def _columns(
    begins: np.ndarray, items: np.ndarray, numbers: np.ndarray, columns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """List the baskets of each frequent item, and the begin of each basket that holds any."""
    cursor = columns[:-1].copy()
    rows = np.empty(columns[-1], np.int32)
    row_begins = np.zeros(len(begins), np.int64)
    row = 0
    for basket in range(len(begins) - 1):
        held = 0
        for place in range(begins[basket], begins[basket + 1]):
            number = numbers[items[place]]
            if number < 0:
                continue
            at = cursor[number]
            # Its last basket is this one where the basket holds it twice.
            if at > columns[number] and rows[at - 1] == row:
                continue
            rows[at] = row
            cursor[number] = at + 1
            held += 1
        if held:
            row_begins[row + 1] = row_begins[row] + held
            row += 1
    return rows, row_begins[: row + 1].copy()


@njit()
def _rows(row_begins: np.ndarray, columns: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """List the items of each basket; going by items sorts every one of them."""
    cursor = row_begins[:-1].copy()
    found = np.empty(len(rows), np.int32)
    for item in range(len(columns) - 1):
        for place in range(columns[item], columns[item + 1]):
            row = rows[place]
            found[cursor[row]] = item
            cursor[row] += 1
    return found
