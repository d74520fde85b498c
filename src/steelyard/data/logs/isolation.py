"""Isolation forest: what is strange is cut off by few random cuts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError

__all__ = ["IsolationForest"]

_EULER = 0.5772156649015329


@dataclass(frozen=True)
class _CutTree:
    """Nodes of a tree: column and place of a cut, children, and depth with leaves' corrections."""

    columns: NDArray[np.int64]
    cuts: NDArray[np.float64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    lengths: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class IsolationForest:
    """Trees of random cuts through samples of sessions.

    Attributes:
        trees: the forest.
        sample: sessions a tree was grown with.
        threshold: score above which a session is flagged.

    Source: Liu et al. 2008 (ICDM), algorithms 1 to 3 and equations 1 and 2.
    """

    trees: tuple[_CutTree, ...]
    sample: int
    threshold: float

    @classmethod
    def fit(
        cls,
        counts: NDArray[np.float64],
        *,
        trees: int = 100,
        sample: int = 256,
        flagged: float = 0.03,
        seed: int = 0,
    ) -> "IsolationForest":
        """Grow a forest.

        Args:
            counts: counts of sessions, [sessions, columns].
            trees: how many.
            sample: sessions of each tree.
            flagged: share of these sessions that are above the threshold.
            seed: seed of samples and cuts.

        Returns:
            The forest.

        Raises:
            DataError: fewer than two sessions.
        """
        if len(counts) < 2:
            raise DataError("a forest needs at least two sessions")
        rng = np.random.default_rng(seed)
        size = min(sample, len(counts))
        grown = [
            _grow(counts[rng.choice(len(counts), size, replace=False)], rng) for _ in range(trees)
        ]
        forest = cls(trees=tuple(grown), sample=size, threshold=1.0)
        level = float(np.quantile(forest.score(counts), 1 - flagged))
        return cls(trees=forest.trees, sample=size, threshold=level)

    def score(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return scores from 0 to 1, near 1 for the strangest, [sessions]."""
        lengths = np.mean([_path_lengths(tree, counts) for tree in self.trees], axis=0)
        return 2.0 ** (-lengths / _mean_length(self.sample))


def _mean_length(size: int) -> float:
    """Return the mean length of an unsuccessful search in a binary tree of some leaves."""
    if size <= 1:
        return 0.0
    return 1.0 if size == 2 else 2 * (np.log(size - 1) + _EULER) - 2 * (size - 1) / size


def _grow(rows: NDArray[np.float64], rng: np.random.Generator) -> _CutTree:
    """Cut rows apart down to the depth that the mean tree has."""
    limit = int(np.ceil(np.log2(max(len(rows), 2))))
    nodes: list[list[float]] = []
    waiting: list[tuple[NDArray[np.float64], int, int, int]] = [(rows, 0, -1, 0)]
    while waiting:
        held, depth, parent, side = waiting.pop()
        here = len(nodes)
        nodes.append([-1, 0.0, -1, -1, depth + _mean_length(len(held))])
        if parent >= 0:
            nodes[parent][2 + side] = here
        low, high = held.min(axis=0), held.max(axis=0)
        free = np.flatnonzero(high > low)
        if depth >= limit or len(held) < 2 or not len(free):
            continue
        column = int(rng.choice(free))
        cut = float(rng.uniform(low[column], high[column]))
        nodes[here][:2] = [column, cut]
        is_left = held[:, column] < cut
        waiting += [(held[is_left], depth + 1, here, 0), (held[~is_left], depth + 1, here, 1)]
    columns, cuts, left, right, lengths = np.array(nodes).T
    return _CutTree(
        columns.astype(np.int64), cuts, left.astype(np.int64), right.astype(np.int64), lengths
    )


def _path_lengths(tree: _CutTree, counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Follow all rows down a tree at once."""
    at = np.zeros(len(counts), np.int64)
    rows = np.arange(len(counts))
    while True:
        columns = tree.columns[at]
        inner = columns >= 0
        if not inner.any():
            return tree.lengths[at]
        values = counts[rows[inner], columns[inner]]
        goes_left = values < tree.cuts[at[inner]]
        at[inner] = np.where(goes_left, tree.left[at[inner]], tree.right[at[inner]])
