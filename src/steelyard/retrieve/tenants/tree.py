"""A tree of clusters over all vectors, which every tenant's vectors are found through."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.kmeans import kmeans
from steelyard.errors import ConfigError
from steelyard.jit import njit

__all__ = ["ClusterTree", "train_tree"]

_ITERATIONS, _SAMPLE, _LEAST_LEAF, _DEEPEST = 20, 100_000, 4, 12
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ClusterTree:
    """Nodes of a tree, the children of a node beside each other.

    Leaves are numbered from left to right, so that the leaves below a node are a range: vectors
    that are sorted by their leaf are sorted by every node above it, too.

    Attributes:
        centers: center of each node float32 [M, D]; the root is node 0.
        first_child: node of the first child, 0 for a leaf [M].
        num_children: children [M].
        first_leaf: number of the leftmost leaf below a node [M].
        last_leaf: one past the number of the rightmost leaf [M].
        variances: mean squared distance of the sample below a node to its center float32 [M].
    """

    centers: Floats
    first_child: Ints
    num_children: Ints
    first_leaf: Ints
    last_leaf: Ints
    variances: Floats

    @property
    def num_leaves(self) -> int:
        """Leaves of the tree."""
        return int(self.last_leaf[0])

    def leaves_of(self, vectors: Floats) -> Ints:
        """Return the leaf of each vector, down from the root by the nearest child.

        Args:
            vectors: float32 [N, D].

        Returns:
            int32 [N].
        """
        found = np.empty(len(vectors), np.int32)
        _descend(vectors, self.centers, self.first_child, self.num_children, self.first_leaf, found)
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> "ClusterTree":
        """Return a tree of arrays by name."""
        return cls(**{name: np.asarray(arrays[name]) for name in cls.__slots__})


def train_tree(
    vectors: Floats,
    *,
    branching: int = 16,
    leaf_size: int = 128,
    expected: int | None = None,
    seed: int = 0,
) -> ClusterTree:
    """Cut a sample into clusters, and these into clusters again.

    Args:
        vectors: sample float32 [N, D]; at most 100,000 are used, drawn at random.
        branching: children of a node, 2 or more.
        leaf_size: vectors of a leaf at most, when all are there.
        expected: vectors that the tree is for; those of the sample when None.
        seed: seed of the draw and of the clusters.

    Returns:
        The tree.

    Raises:
        ConfigError: a number is out of range, or the sample is empty.

    Source: Jin et al. 2024 (Curator, arXiv 2401.07119), section 3: recursive k-means.
    """
    if branching < 2 or leaf_size < 1 or not len(vectors):
        raise ConfigError(
            f"{branching} children, leaves of {leaf_size}, a sample of {len(vectors)} vectors",
            hint="give 2 children or more, leaves of 1 or more, and a vector at least",
        )
    rng = np.random.default_rng(seed)
    if len(vectors) > _SAMPLE:
        vectors = vectors[np.sort(rng.choice(len(vectors), _SAMPLE, replace=False))]
    share = len(vectors) / max(expected or len(vectors), len(vectors))
    return _Growing(vectors, branching, max(_LEAST_LEAF, round(leaf_size * share)), seed).grown()


class _Growing:
    """Nodes of a tree that grows level by level."""

    def __init__(self, vectors: Floats, branching: int, leaf: int, seed: int) -> None:
        self.vectors, self.branching, self.leaf, self.seed = vectors, branching, leaf, seed
        self.centers = [vectors.mean(axis=0)]
        self.variances = [_variance(vectors, self.centers[0])]
        self.children: list[tuple[int, int]] = [(0, 0)]

    def grown(self) -> ClusterTree:
        """Split nodes until all are small, and number the leaves."""
        level = [(0, np.arange(len(self.vectors)))]
        for _ in range(_DEEPEST):
            level = [child for node, rows in level for child in self._split(node, rows)]
        count = len(self.centers)
        first, last = np.zeros(count, np.int32), np.zeros(count, np.int32)
        self._number(first, last)
        children = np.array(self.children, np.int32)
        return ClusterTree(
            np.array(self.centers, np.float32),
            children[:, 0].copy(),
            children[:, 1].copy(),
            first,
            last,
            np.array(self.variances, np.float32),
        )

    def _split(self, node: int, rows: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """Give a large node children; return them with their rows."""
        if len(rows) <= self.leaf:
            return []
        points = self.vectors[rows]
        count = min(self.branching, -(-2 * len(rows) // self.leaf))
        found = kmeans(
            points,
            count,
            seed=self.seed + node,
            iterations=_ITERATIONS,
            tolerance=1e-3,
            start="drawn",
            precision="float32",
        )
        used = [part for part in range(count) if (found.labels == part).any()]
        # Equal points cannot be told apart: they stay one leaf.
        if len(used) < 2:
            return []
        self.children[node] = (len(self.centers), len(used))
        made = []
        for part in used:
            own = rows[found.labels == part]
            made.append((len(self.centers), own))
            self.centers.append(found.centers[part])
            self.variances.append(_variance(self.vectors[own], found.centers[part]))
            self.children.append((0, 0))
        return made

    def _number(self, first: Ints, last: Ints) -> None:
        """Number the leaves from left to right."""
        count, stack = 0, [(0, False)]
        while stack:
            node, is_done = stack.pop()
            begin, size = self.children[node]
            if is_done:
                first[node], last[node] = first[begin], last[begin + size - 1]
            elif not size:
                first[node], last[node] = count, count + 1
                count += 1
            else:
                stack.append((node, True))
                stack += [(child, False) for child in range(begin + size - 1, begin - 1, -1)]


def _variance(points: Floats, center: NDArray[Any]) -> float:
    """Return the mean squared distance of points to a center."""
    return float(((points - center) ** 2).sum(axis=1).mean())


@njit(fastmath={"reassoc", "contract", "nsz"})
def _descend(
    vectors: np.ndarray,
    centers: np.ndarray,
    first_child: np.ndarray,
    num_children: np.ndarray,
    first_leaf: np.ndarray,
    found: np.ndarray,
) -> None:
    """Go down to the nearest child again and again."""
    for row in range(len(vectors)):
        node = 0
        while num_children[node]:
            best, nearest = np.float32(np.inf), 0
            for child in range(first_child[node], first_child[node] + num_children[node]):
                total = np.float32(0.0)
                for place in range(vectors.shape[1]):
                    apart = vectors[row, place] - centers[child, place]
                    total += apart * apart
                if total < best:
                    best, nearest = total, child
            node = nearest
        found[row] = first_leaf[node]
