"""Candidates in one prefix tree, and how many baskets hold each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit

__all__ = ["CandidateTree", "count_candidates", "plant_candidates"]


@dataclass(frozen=True, slots=True)
class CandidateTree:
    """Itemsets as nodes; every prefix of one is there too.

    Attributes:
        parents: node of the itemset less its last item, -1 for single items; int64 [itemsets].
        items: last item of each, int32.
        firsts: first node that extends each, int64.
        lasts: one past the last.
        num_roots: single items; they come first.
    """

    parents: NDArray[np.int64]
    items: NDArray[np.int32]
    firsts: NDArray[np.int64]
    lasts: NDArray[np.int64]
    num_roots: int


def plant_candidates(parts: Sequence[tuple[NDArray[np.int64], NDArray[np.int32]]]) -> CandidateTree:
    """Put itemsets of several parts into one tree, each once.

    Args:
        parts: begins and items of itemsets, items ascending; with each itemset its prefixes too.

    Returns:
        The tree.
    """
    longest = max((int(np.diff(begins).max(initial=0)) for begins, _ in parts), default=0)
    parents, items, before, offset = [], [], np.zeros((1, 0), np.int32), -1
    firsts: list[NDArray[np.int64]] = []
    for length in range(1, longest + 1):
        rows = np.concatenate([_of_length(begins, values, length) for begins, values in parts])
        level = np.unique(rows, axis=0)
        places = _prefixes(level, before)
        parents.append(places + offset)
        items.append(level[:, -1])
        # Children lie side by side, in the order of their parents.
        edges = np.searchsorted(places, np.arange(len(before) + 1))
        firsts.append(edges + offset + len(before))
        before, offset = level, offset + len(before)
    if not items:
        none = np.zeros(0, np.int64)
        return CandidateTree(none, none.astype(np.int32), none, none, 0)
    bounds = [*firsts[1:], np.full(len(before) + 1, offset + len(before))]
    return CandidateTree(
        np.concatenate(parents),
        np.concatenate(items).astype(np.int32),
        np.concatenate([edges[:-1] for edges in bounds]),
        np.concatenate([edges[1:] for edges in bounds]),
        len(items[0]),
    )


def _of_length(
    begins: NDArray[np.int64], items: NDArray[np.int32], length: int
) -> NDArray[np.int32]:
    """Return the itemsets of one length, [itemsets, length]."""
    chosen = begins[:-1][np.diff(begins) == length]
    return items[chosen[:, None] + np.arange(length)]


@njit()
def _prefixes(level: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return where each itemset's prefix stands among those one shorter; both are sorted."""
    found, at = np.zeros(len(level), np.int64), 0
    for row in range(len(level)):
        while not np.all(before[at] == level[row, :-1]):
            at += 1
        found[row] = at
    return found


@njit()
def count_candidates(
    begins: np.ndarray,
    baskets: np.ndarray,
    items: np.ndarray,
    firsts: np.ndarray,
    lasts: np.ndarray,
    num_roots: int,
) -> np.ndarray:
    """Count the baskets that hold each candidate.

    Args:
        begins: begin of each basket.
        baskets: their items, ascending in each.
        items: items of `CandidateTree`.
        firsts: first child of each node of `CandidateTree`.
        lasts: ends of children of `CandidateTree`.
        num_roots: number of roots of `CandidateTree`.

    Returns:
        Counts, int64 [itemsets].
    """
    found = np.zeros(len(items), np.int64)
    longest = 0
    for row in range(len(begins) - 1):
        longest = max(longest, begins[row + 1] - begins[row])
    nexts, ends = np.empty(longest + 2, np.int64), np.empty(longest + 2, np.int64)
    places = np.empty(longest + 2, np.int64)
    for row in range(len(begins) - 1):
        depth, nexts[0], ends[0], places[0] = 0, 0, num_roots, begins[row]
        while depth >= 0:
            node, place = nexts[depth], places[depth]
            if node == ends[depth] or place == begins[row + 1]:
                depth -= 1
            elif items[node] < baskets[place]:
                nexts[depth] += 1
            elif items[node] > baskets[place]:
                places[depth] += 1
            else:
                found[node] += 1
                nexts[depth], places[depth] = node + 1, place + 1
                if lasts[node] > firsts[node]:
                    depth += 1
                    nexts[depth], ends[depth] = firsts[node], lasts[node]
                    places[depth] = place + 1
    return found
