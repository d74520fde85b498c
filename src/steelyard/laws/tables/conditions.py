"""Conditions that choose rows of a table of runs."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.laws.fitting.terms import Array
from steelyard.laws.tables.conventions import Words

__all__ = ["Condition", "labels", "meets", "range_of"]

Condition = (
    str
    | float
    | bool
    | tuple[float | None, float | None]
    | Sequence[str]
    | Sequence[float]
    | Callable[[Any], Any]
)
"""A value, a pair (low, high) of numbers, a sequence of values, or a function from the column to a
mask."""


def meets(values: Array | Words, condition: Condition) -> NDArray[np.bool_]:
    """Say which values meet a condition.

    Args:
        values: numbers or words, [n].
        condition: a value; a pair (low, high) of numbers that holds both ends, None for an open
            one; a sequence of values; or a function of the whole column. A sequence of exactly two
            numbers to choose from is a list, not a tuple.

    Returns:
        The rows that do, [n].
    """
    if callable(condition):
        return np.asarray(condition(values), dtype=np.bool_)
    is_number = values.dtype.kind == "f"
    if isinstance(condition, tuple) and len(condition) == 2 and is_number:
        low, high = (None if end is None else float(end) for end in condition)
        numbers = np.asarray(values, dtype=np.float64)
        return (numbers >= (-np.inf if low is None else low)) & (
            numbers <= (np.inf if high is None else high)
        )
    wanted = [condition] if isinstance(condition, str | int | float) else list(condition)
    return np.isin(values, np.asarray(wanted, dtype=np.float64 if is_number else np.str_))


def labels(values: Array | Words) -> list[str]:
    """Write each value as a word; numbers with up to six digits."""
    return [f"{value:g}" if isinstance(value, float) else str(value) for value in values.tolist()]


def range_of(name: str, values: Array | Words) -> str:
    """Say what a column holds, for a hint.

    Args:
        name: name of the column.
        values: numbers or words, [n].

    Returns:
        Such as "flops runs from 1e+16 to 3e+19" or "train_set is c4, rpj".
    """
    if values.dtype.kind == "f":
        return f"{name} runs from {np.nanmin(values):g} to {np.nanmax(values):g}"
    return f"{name} is {', '.join(np.unique(values).tolist()[:8])}"
