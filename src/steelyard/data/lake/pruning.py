"""Drop pairs of tables that statistics of footers contradict; no row is read."""

import numpy as np
from numpy.typing import NDArray

from steelyard.data.lake.index import ColumnIndex
from steelyard.jit import njit

__all__ = ["KEPT", "REASONS", "prune_by_statistics"]

KEPT = 0
REASONS = ("", "least and largest numbers", "least and largest texts", "missing values")
"""Why a pair was dropped, by code; 0 is one that was kept."""


def prune_by_statistics(
    index: ColumnIndex, children: NDArray[np.int64], parents: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Check pairs against the least and largest values and the missing ones of their columns.

    A child with a value below its parent's least or above its largest is not contained, nor one
    with a missing value where the parent has none. What is unknown drops nothing. Numbers count
    before texts, so that the first code is what the paper's step alone would drop.

    Args:
        index: columns of the tables.
        children: places of children, [pairs].
        parents: places of parents, [pairs]; they have all columns of the children.

    Returns:
        Code of the reason, [pairs], `KEPT` where there is none, and the place of the column in the
        child's table, [pairs], -1 where kept.

    Source: R2D2 (arXiv 2312.13427), min-max pruning; texts and missing values are added here.
    """
    return _contradicted(
        children,
        parents,
        index.starts,
        index.codes,
        index.places,
        index.kinds,
        index.low,
        index.high,
        index.nulls,
    )


@njit()
def _contradicted(
    children: np.ndarray,
    parents: np.ndarray,
    starts: np.ndarray,
    codes: np.ndarray,
    places: np.ndarray,
    kinds: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    nulls: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Walk the columns of both tables of each pair, which are in one order."""
    reasons = np.zeros(len(children), np.int64)
    columns = np.full(len(children), -1, np.int64)
    for pair in range(len(children)):
        other = starts[parents[pair]]
        for own in range(starts[children[pair]], starts[children[pair] + 1]):
            while codes[other] != codes[own]:
                other += 1
            reason = 0
            if kinds[own] == kinds[other] and (low[own] < low[other] or high[own] > high[other]):
                reason = 2 if kinds[own] == 0 else 1
            elif nulls[own] > 0 and nulls[other] == 0:
                reason = 3
            if reason and (not reasons[pair] or reason < reasons[pair]):
                reasons[pair], columns[pair] = reason, places[own]
            if reasons[pair] == 1:
                break
    return reasons, columns
