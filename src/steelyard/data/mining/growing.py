"""Arrays that grow while a kernel fills them, and the tree of itemsets that miners write."""

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from steelyard.jit import njit

__all__ = ["expand_tree", "popcount", "reserve", "reserve_long", "reserve_words"]


def _population(typing_context: Any, word: Any) -> Any:
    """Tell numba how to count the bits of a word: one instruction."""

    def made(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), made


popcount: Any = intrinsic(_population)
"""Return the number of bits of a 64-bit word that are set; for kernels."""


@njit()
def reserve(values: np.ndarray, size: int) -> np.ndarray:
    """Return an int32 array of at least `size` places that begins as `values` does."""
    if len(values) >= size:
        return values
    grown = np.empty(max(size, 2 * len(values)), np.int32)
    grown[: len(values)] = values
    return grown


@njit()
def reserve_long(values: np.ndarray, size: int) -> np.ndarray:
    """Return an int64 array of at least `size` places that begins as `values` does."""
    if len(values) >= size:
        return values
    grown = np.empty(max(size, 2 * len(values)), np.int64)
    grown[: len(values)] = values
    return grown


@njit()
def reserve_words(values: np.ndarray, size: int) -> np.ndarray:
    """Return a uint64 array of at least `size` places that begins as `values` does."""
    if len(values) >= size:
        return values
    grown = np.empty(max(size, 2 * len(values)), np.uint64)
    grown[: len(values)] = values
    return grown


@njit()
def expand_tree(
    parents: np.ndarray, items: np.ndarray, codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Turn a tree of itemsets into rows of items.

    Args:
        parents: node that an itemset extends by one item, -1 for a single item; int64 [itemsets],
            each before those that extend it.
        items: the item that is added, int32 [itemsets].
        codes: number that an item has in the result, int32 by item.

    Returns:
        Begin of each itemset, int64 [itemsets + 1], and its items in ascending order, int32.
    """
    count = len(parents)
    begins = np.zeros(count + 1, np.int64)
    for node in range(count):
        parent = parents[node]
        length = 1 if parent < 0 else begins[parent + 1] - begins[parent] + 1
        begins[node + 1] = begins[node] + length
    found = np.empty(begins[count], np.int32)
    for node in range(count):
        parent, place = parents[node], begins[node]
        code = codes[items[node]]
        if parent >= 0:
            first, last = begins[parent], begins[parent + 1]
            # The prefix is sorted already: the new item is put in its place.
            while first < last and found[first] < code:
                found[place] = found[first]
                first += 1
                place += 1
            found[place] = code
            place += 1
            while first < last:
                found[place] = found[first]
                first += 1
                place += 1
        else:
            found[place] = code
    return begins, found
