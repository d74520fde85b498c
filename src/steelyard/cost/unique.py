"""Evaluate each combination of a few columns once, however many layouts share it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["on_unique"]

Array = NDArray[Any]
_TABLE = 1 << 22
"""Most entries of a look-up table; beyond it combinations are found by sorting."""


def on_unique(
    columns: Mapping[str, Array], evaluate: Callable[[dict[str, Array]], dict[str, Array]]
) -> dict[str, Array]:
    """Evaluate the combinations that occur, and give every layout the answer of its own.

    Args:
        columns: arrays [layouts] of whole numbers or truth values that are not negative, or of any
            numbers (these are sorted, which takes longer).
        evaluate: takes the columns [combinations] and returns arrays [..., combinations].

    Returns:
        What `evaluate` returned, [..., layouts].
    """
    codes, size = np.zeros(len(next(iter(columns.values()))), np.int64), 1
    for column in columns.values():
        ranks, count = _ranks(column)
        if count > 1:
            codes, size = codes * count + ranks, size * count
            if size > _TABLE:
                codes, size = _ranks(codes)
    inverse, count = _ranks(codes)
    first = np.empty(count, np.int64)
    first[inverse] = np.arange(len(inverse))
    found = evaluate({name: column[first] for name, column in columns.items()})
    return {name: np.take(values, inverse, axis=-1) for name, values in found.items()}


def _ranks(column: Array) -> tuple[NDArray[np.int64], int]:
    """Return the rank of each value among those that occur, and how many these are."""
    if column.size and not column.strides[0]:
        return np.zeros(len(column), np.int64), 1
    if column.size and column.dtype.kind == "f":
        whole = column.astype(np.int64)
        column = whole if np.array_equal(whole, column) else column
    low = column.min() if column.size else 0
    if column.dtype.kind in "iub" and column.size and low >= 0 and column.max() < _TABLE:
        seen = np.zeros(int(column.max()) + 1, np.int64)
        seen[column.astype(np.int64)] = 1
        count = int(seen.sum())
        return (np.cumsum(seen) - 1)[column.astype(np.int64)], count
    values, inverse = np.unique(column, return_inverse=True)
    return inverse.reshape(-1), len(values)
