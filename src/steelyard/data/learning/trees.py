"""One tree on codes: leaves with the largest gain are split first."""

import heapq
import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.learning.kernels import (
    best_splits,
    fill_histograms,
    part_rows,
    score_rows,
)

__all__ = ["Grower", "Tree", "TreeLimits", "tree_sections", "trees_of"]

_PARTS = ("features", "splits", "missing_left", "children", "values", "gains")
_ALONE = 20_000
"""Values below which a histogram is not worth a second thread."""


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
    histograms: NDArray[np.float64]
    gain: float
    feature: int
    code: int
    missing_left: bool


class Grower:
    """Grows trees on the same codes.

    The result does not depend on the threads: each adds up whole features, row by row.
    """

    def __init__(
        self,
        codes: NDArray[np.uint8],
        num_codes: NDArray[np.int64],
        limits: TreeLimits,
        threads: int,
    ) -> None:
        """Take the codes.

        Args:
            codes: uint8 [F, N].
            num_codes: codes of each feature [F].
            limits: how far trees grow.
            threads: threads that add up features.
        """
        self.codes, self.num_codes, self.limits = codes, num_codes, limits
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._free: list[NDArray[np.float64]] = []

    def grow(
        self,
        rows: NDArray[np.int32],
        gradients: NDArray[np.float32],
        hessians: NDArray[np.float32],
        spare: tuple[NDArray[Any], ...],
        rate: float,
        leaf: Callable[[NDArray[np.int32], float], None],
    ) -> Tree:
        """Grow one tree.

        Args:
            rows: rows of the tree; reordered by leaf.
            gradients: gradient of each of these rows; reordered as they are.
            hessians: hessian of each; reordered too.
            spare: arrays like these three, as room.
            rate: factor of the leaves' values.
            leaf: is told the rows and the value of each leaf.

        Returns:
            The tree.
        """
        self._rows, self._gradients, self._hessians = rows, gradients, hessians
        self._spare: Any = spare
        nodes = [self._node(0, 0, len(rows), None)]
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
        part = slice(node.first, node.last)
        total = float(self._gradients[part].sum(dtype=np.float64))
        weight = float(self._hessians[part].sum(dtype=np.float64))
        return -rate * total / (weight + self.limits.l2)

    def _split(self, node: _OpenNode, number: int) -> tuple[_OpenNode, _OpenNode]:
        """Return the two sides of a node."""
        part = slice(node.first, node.last)
        left = node.first + int(
            part_rows(
                self.codes[node.feature],
                self._rows[part],
                self._gradients[part],
                self._hessians[part],
                node.code,
                node.missing_left,
                self._spare,
            )
        )
        ends = ((node.first, left), (left, node.last))
        # The larger side is what the smaller one leaves of the node.
        small = 0 if left - node.first <= node.last - left else 1
        first = self._node(number + small, *ends[small], None)
        other = node.histograms
        other -= first.histograms
        second = self._node(number + 1 - small, *ends[1 - small], other)
        return (first, second) if small == 0 else (second, first)

    def _node(
        self, number: int, first: int, last: int, histograms: NDArray[np.float64] | None
    ) -> _OpenNode:
        """Return a node with its best split."""
        if histograms is None:
            histograms = self._filled(first, last)
        found = np.zeros((len(self.codes), 3))
        limits = self.limits
        best_splits(histograms, self.num_codes, limits.l2, float(limits.least_rows), found)
        feature = int(found[:, 0].argmax())
        gain, code, missing_left = found[feature].tolist()
        return _OpenNode(
            number, first, last, histograms, gain, feature, int(code), bool(missing_left)
        )

    def _filled(self, first: int, last: int) -> NDArray[np.float64]:
        """Return the histograms of some rows."""
        count = len(self.codes)
        made = self._free.pop() if self._free else np.empty((count, 256, 3))
        rows = self._rows[first:last].view(np.uint32)
        given = (self.codes, rows, self._gradients[first:last])
        given = (*given, self._hessians[first:last])
        if self._pool is None or (last - first) * count < _ALONE:
            fill_histograms(*given, 0, count, made)
            return made
        cuts = np.linspace(0, count, self._threads + 1).astype(int).tolist()
        parts = [
            self._pool.submit(fill_histograms, *given, begin, end, made)
            for begin, end in itertools.pairwise(cuts)
        ]
        for part in parts:
            part.result()
        return made

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()


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
