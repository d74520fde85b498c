"""Isolation forest: what is odd is cut off by few random cuts."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.data.anomalies.detector import drops
from steelyard.errors import DataError
from steelyard.jit import njit

__all__ = ["IsolationForest"]

_EULER = 0.5772156649015329


@njit()
def _add_lengths(
    rows: np.ndarray,
    columns: np.ndarray,
    cuts: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    lengths: np.ndarray,
    roots: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Follow rows down all trees.

    Args:
        rows: [N, D].
        columns: column of each node's cut, -1 for a leaf [M].
        cuts: smaller values go left [M].
        left: node on the left [M].
        right: node on the right [M].
        lengths: depth of each leaf, with what its rows would have been cut further [M].
        roots: first node of each tree [T].
        sums: lengths of the paths of each row are added to it [N].
    """
    for place in range(len(rows)):
        for root in roots:
            node = root
            while columns[node] >= 0:
                is_left = rows[place, columns[node]] < cuts[node]
                node = left[node] if is_left else right[node]
            sums[place] += lengths[node]


@dataclass(frozen=True, kw_only=True)
class IsolationForest:
    """Trees of random cuts through samples of rows, their nodes behind each other.

    Attributes:
        columns: column of each node's cut, -1 for a leaf [M].
        cuts: smaller values go left [M].
        left: node on the left [M].
        right: node on the right [M].
        lengths: depth of each node, with what its rows would have been cut further [M].
        roots: first node of each tree [T].
        sample: rows a tree was grown with.
        threshold: score above which a row is flagged.
        usual: medians of the columns [D].

    Source: Liu et al. 2008 (ICDM), algorithms 1 to 3 and equations 1 and 2.
    """

    columns: NDArray[np.int64]
    cuts: NDArray[np.float64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    lengths: NDArray[np.float64]
    roots: NDArray[np.int64]
    sample: int
    threshold: float
    usual: NDArray[np.float64]

    @classmethod
    def fit(
        cls,
        rows: NDArray[np.floating],
        *,
        trees: int = 100,
        sample: int = 256,
        flagged: float = 0.03,
        seed: int = 0,
    ) -> "IsolationForest":
        """Grow a forest.

        Args:
            rows: mostly usual rows, [N, D].
            trees: how many.
            sample: rows of each tree.
            flagged: share of these rows that are above the threshold.
            seed: seed of samples and cuts.

        Returns:
            The forest.

        Raises:
            DataError: fewer than two rows.
        """
        if len(rows) < 2:
            raise DataError("a forest needs at least two rows")
        rng = np.random.default_rng(seed)
        size, parts, roots, first = min(sample, len(rows)), [], [], 0
        for _ in range(trees):
            drawn = rows[rng.choice(len(rows), size, replace=False)]
            nodes = _grow(np.asarray(drawn, np.float64), rng)
            # Nodes are counted through all trees.
            nodes[2:4] += first
            roots.append(first)
            first += nodes.shape[1]
            parts.append(nodes)
        columns, cuts, left, right, lengths = np.concatenate(parts, axis=1)
        forest = cls(
            columns=columns.astype(np.int64),
            cuts=cuts,
            left=left.astype(np.int64),
            right=right.astype(np.int64),
            lengths=lengths,
            roots=np.array(roots, np.int64),
            sample=size,
            threshold=1.0,
            usual=np.median(rows, axis=0).astype(np.float64),
        )
        level = float(np.quantile(forest.score(rows), 1 - flagged))
        return replace(forest, threshold=level)

    def score(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return scores from 0 to 1, near 1 for the oddest [N]."""
        sums = np.zeros(len(rows))
        arrays = (self.columns, self.cuts, self.left, self.right, self.lengths, self.roots)
        _add_lengths(np.ascontiguousarray(rows), *arrays, sums)
        return 2.0 ** (-sums / len(self.roots) / _mean_length(self.sample))

    def blame(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return how much less odd rows would be with the median of each column [N, D]."""
        return drops(self, rows, self.usual)


def _mean_length(size: int) -> float:
    """Return the mean length of an unsuccessful search in a binary tree of some leaves."""
    if size <= 1:
        return 0.0
    return 1.0 if size == 2 else 2 * (np.log(size - 1) + _EULER) - 2 * (size - 1) / size


def _grow(rows: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Cut rows apart down to the depth that the mean tree has; return nodes as columns [5, M]."""
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
    return np.array(nodes).T
