"""One tree on codes: leaves with the largest gain are split first."""

import heapq
import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.learning.kernels import part_rows, score_rows, split_features
from steelyard.data.learning.packing import PackScale

__all__ = ["Grower", "Tree", "TreeLimits", "tree_sections", "trees_of"]

_PARTS = ("features", "splits", "missing_left", "children", "values", "gains")
_ALONE, _SEARCH = 20_000, 500
"""Values below which a split is not worth a second thread; the search counts as so many rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeLimits:
    """How far trees grow.

    Attributes:
        leaves: most leaves.
        least_rows: rows of a leaf at least.
        l2: added to sums of hessians.
    """

    leaves: int = 31
    least_rows: int = 20
    l2: float = 1.0


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree as arrays over its nodes; node 0 is the root.

    Attributes:
        features: feature of each node, -1 for a leaf.
        splits: last code that goes left.
        missing_left: whether rows without a value go left.
        children: nodes on both sides [M, 2].
        values: value of each leaf.
        gains: what the split gained.
    """

    features: NDArray[np.int32]
    splits: NDArray[np.uint8]
    missing_left: NDArray[np.bool_]
    children: NDArray[np.int32]
    values: NDArray[np.float32]
    gains: NDArray[np.float32]

    def add_to(
        self, codes: NDArray[np.uint8], rows: NDArray[np.integer], scores: NDArray[np.float32]
    ) -> None:
        """Add the tree's values to the scores of some rows."""
        arrays = (self.features, self.splits, self.missing_left, self.children, self.values)
        score_rows(codes, *arrays, rows, scores)


@dataclass(slots=True)
class _OpenNode:
    """A node that may still be split: its rows, sums and best split."""

    number: int
    first: int
    last: int
    histograms: NDArray[np.int64]
    gain: float
    feature: int
    code: int
    missing_left: bool


class Grower:
    """Grows trees on the same codes.

    The result does not depend on the threads: sums are of whole numbers.
    """

    def __init__(
        self,
        codes: NDArray[np.uint8],
        num_codes: NDArray[np.int64],
        limits: TreeLimits,
        pool: ThreadPoolExecutor | None = None,
        threads: int = 1,
    ) -> None:
        """Take the codes.

        Args:
            codes: uint8 [F, N].
            num_codes: codes of each feature [F].
            limits: how far trees grow.
            pool: threads that add up features; None works in this one.
            threads: how many they are.
        """
        self.codes, self.num_codes, self.limits = codes, num_codes, limits
        self._pool, self._threads = pool, threads
        self._free: list[NDArray[np.int64]] = []

    def grow(
        self,
        rows: NDArray[np.uint32],
        packed: NDArray[np.int64],
        scale: PackScale,
        spare: NDArray[np.uint32],
        rate: float,
        leaf: Callable[[NDArray[np.uint32], float], None],
    ) -> Tree:
        """Grow one tree.

        Args:
            rows: rows of the tree; reordered by leaf.
            packed: gradient, hessian and count of each row of the codes in one number [N].
            scale: what steps of these stand for.
            spare: as many numbers as there are rows, as room.
            rate: factor of the leaves' values.
            leaf: is told the rows and the value of each leaf.

        Returns:
            The tree.
        """
        self._rows, self._packed, self._scale, self._spare = rows, packed, scale, spare
        small, found = self._searched(0, len(rows), None)
        nodes = [_node(0, 0, len(rows), small, found[0])]
        heap = [(-nodes[0].gain, 0)]
        arrays: list[tuple[int, int, bool, int, int, float]] = [(-1, 0, False, 0, 0, 0.0)]
        leaves = 1
        while heap and leaves < self.limits.leaves:
            node = nodes[heapq.heappop(heap)[1]]
            if node.gain <= 0:
                break
            made = self._split(node, len(nodes))
            parts = (node.feature, node.code, node.missing_left)
            arrays[node.number] = (*parts, len(nodes), len(nodes) + 1, node.gain)
            for child in made:
                nodes.append(child)
                arrays.append((-1, 0, False, 0, 0, 0.0))
                heapq.heappush(heap, (-child.gain, child.number))
            leaves += 1
        values = [0.0] * len(nodes)
        for node in nodes:
            if arrays[node.number][0] < 0:
                values[node.number] = self._value(node, rate)
                leaf(rows[node.first : node.last], values[node.number])
                self._free.append(node.histograms)
        return _tree(arrays, values)

    def _value(self, node: _OpenNode, rate: float) -> float:
        """Return the value of a leaf."""
        slope, curve, _ = node.histograms[0].sum(axis=1).tolist()
        total = slope * self._scale.gradient
        weight = curve * (self._scale.hessian or 1.0)
        return -rate * total / (weight + self.limits.l2)

    def _split(self, node: _OpenNode, number: int) -> tuple[_OpenNode, _OpenNode]:
        """Return the two sides of a node."""
        part = slice(node.first, node.last)
        left = node.first + int(
            part_rows(
                self.codes[node.feature],
                self._rows[part],
                node.code,
                node.missing_left,
                self._spare,
            )
        )
        ends = ((node.first, left), (left, node.last))
        small = 0 if left - node.first <= node.last - left else 1
        made, found = self._searched(*ends[small], node.histograms)
        first = _node(number + small, *ends[small], made, found[0])
        second = _node(number + 1 - small, *ends[1 - small], node.histograms, found[1])
        return (first, second) if small == 0 else (second, first)

    def _searched(
        self, first: int, last: int, both: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the histograms of some rows, and the best splits of these and of the others.

        `both` are the histograms of rows and their sibling's, and become the sibling's.
        """
        count, limits, scale = len(self.codes), self.limits, self._scale
        made = self._free.pop() if self._free else np.empty((count, 3, 256), np.int64)
        found = np.zeros((2, count, 3))
        large = both if both is not None else np.empty((0, 3, 256), np.int64)
        given = (self.codes, self._rows[first:last], self._packed, self.num_codes)
        steps = (scale.gradient, scale.hessian, limits.l2, float(limits.least_rows))
        if self._pool is None or (last - first + _SEARCH) * count < _ALONE:
            split_features(*given, *steps, 0, count, made, large, found)
            return made, found
        cuts = np.linspace(0, count, self._threads + 1).astype(int).tolist()
        parts = [
            self._pool.submit(split_features, *given, *steps, begin, end, made, large, found)
            for begin, end in itertools.pairwise(cuts)
        ]
        for part in parts:
            part.result()
        return made, found


def _node(
    number: int,
    first: int,
    last: int,
    histograms: NDArray[np.int64],
    found: NDArray[np.float64],
) -> _OpenNode:
    """Return a node with its best split."""
    feature = int(found[:, 0].argmax())
    gain, code, missing_left = found[feature].tolist()
    return _OpenNode(number, first, last, histograms, gain, feature, int(code), bool(missing_left))


def _tree(arrays: list[tuple[int, int, bool, int, int, float]], values: list[float]) -> Tree:
    """Return nodes as arrays."""
    features, splits, missing, left, right, gains = zip(*arrays, strict=True)
    return Tree(
        np.array(features, np.int32),
        np.array(splits, np.uint8),
        np.array(missing, bool),
        np.stack([left, right], axis=1).astype(np.int32),
        np.array(values, np.float32),
        np.array(gains, np.float32),
    )


def tree_sections(trees: list[Tree]) -> dict[str, NDArray[Any]]:
    """Return trees as arrays by name: their nodes behind each other, and how many each has."""
    found: dict[str, NDArray[Any]] = {
        "sizes": np.array([len(tree.features) for tree in trees], np.int64)
    }
    for name in _PARTS:
        parts = [getattr(tree, name) for tree in trees]
        found[name] = np.concatenate(parts) if parts else np.empty(0)
    return found


def trees_of(sections: Mapping[str, NDArray[Any]]) -> list[Tree]:
    """Return the trees of arrays by name."""
    arrays = [np.asarray(sections[name]) for name in _PARTS]
    found, begin = [], 0
    for size in sections["sizes"].tolist():
        found.append(Tree(*(values[begin : begin + size] for values in arrays)))
        begin += size
    return found
