"""A tree of cluster features: rows of any number in one pass and bounded memory."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.clustering.tree_kernels import (
    ENTRIES,
    SPARE_NODES,
    insert_rows,
    join_costs,
)
from steelyard.data.kmeans.seeding import weighted_centers
from steelyard.errors import DataError, require

__all__ = ["ClusterFeatureTree"]

_Rows = NDArray[np.floating]
_GROWTH, _JOINED = 1.05, 0.1
"""What the limit grows by at least when the tree is full, and the share of entries that it joins:
entries take each other's neighbours too, so that more would leave few of them."""


class ClusterFeatureTree:
    """Rows as at most so many small clusters: how many rows, their mean and squared deviations.

    The tree begins with a limit of 0, which joins equal rows alone. When it is full, the limit
    grows to what joins a tenth of its entries with a neighbour, and the entries are put into a new
    tree; rows are not looked at again. The result depends on the order of the rows.

    Attributes:
        width: columns D.
        most: entries of leaves that it holds at most.
        limit: mean squared deviation of an entry at most.
        rows: rows that were put in.

    Source: Zhang, Ramakrishnan and Livny 1996 (BIRCH), sections 4 and 5; Lang and Schubert 2020
        (arXiv 2006.12881, BETULA) for features that do not cancel.
    """

    def __init__(self, width: int, most: int = 4096) -> None:
        """Make an empty tree.

        Args:
            width: columns.
            most: entries of leaves at most; a tree takes about 16 bytes times the columns for each.

        Raises:
            ConfigError: a number is out of range.
        """
        self.width, self.most, self.limit, self.rows = width, most, 0.0, 0
        require(self, width=(width >= 1, "at least 1"), most=(most >= 2, "at least 2"))
        self._clear()

    def _clear(self) -> None:
        """Leave one empty leaf."""
        self._state = np.array([0, 1, 0], np.int64)
        self._counts = np.zeros(2 * SPARE_NODES, np.int64)
        self._is_leaf = np.zeros(len(self._counts), bool)
        self._is_leaf[0] = True
        shape = (len(self._counts), ENTRIES + 1)
        self._children = np.zeros(shape, np.int64)
        self._weights, self._spreads = np.zeros(shape), np.zeros(shape)
        self._means = np.zeros((*shape, self.width))

    def _grow(self) -> None:
        """Make room for twice as many nodes."""
        for name in ("_counts", "_is_leaf", "_children", "_weights", "_spreads", "_means"):
            held = getattr(self, name)
            setattr(self, name, np.concatenate([held, np.zeros_like(held)]))

    def update(self, rows: _Rows) -> None:
        """Put rows in.

        Args:
            rows: finite numbers [N, D].

        Raises:
            DataError: rows have another width, or are not finite.
        """
        given = np.ascontiguousarray(rows, np.float64)
        if given.ndim != 2 or given.shape[1] != self.width or not np.isfinite(given).all():
            raise DataError(
                f"rows of shape {given.shape} for a tree of {self.width} columns, or not finite",
                hint="leave out columns that are not",
            )
        self._insert(given, np.ones(len(given)), np.zeros(len(given)))
        self.rows += len(given)

    def merge(self, later: "ClusterFeatureTree") -> None:
        """Take in the entries of a tree of rows that come later; the wider limit counts."""
        self.limit = max(self.limit, later.limit)
        self._insert(*later.entries())
        self.rows += later.rows

    def _insert(
        self, means: NDArray[np.float64], weights: NDArray[Any], spreads: NDArray[Any]
    ) -> None:
        """Put cluster features in; make room, or a new tree, where it is full."""
        done = 0
        while done < len(means):
            done += insert_rows(
                means[done:],
                weights[done:],
                spreads[done:],
                self.limit,
                self.most,
                self._state,
                self._counts,
                self._is_leaf,
                self._children,
                self._weights,
                self._means,
                self._spreads,
            )
            if self._state[2] >= self.most:
                self._rebuild()
            elif self._state[1] + SPARE_NODES > len(self._counts):
                self._grow()

    def _rebuild(self) -> None:
        """Put all entries into a tree with a wider limit, until it is not full."""
        while self._state[2] >= self.most:
            arrays = (self._counts, self._is_leaf, self._weights, self._means, self._spreads)
            costs = np.zeros(int(self._state[2]))
            known = costs[: join_costs(self._state[1], *arrays, costs)]
            some = float(np.quantile(known, _JOINED)) if len(known) else 0.0
            # Entries that lie alone in their leaves tell no cost: any growth ends in the end.
            least = self.limit * _GROWTH or float(known[known > 0].min(initial=np.inf))
            self.limit = max(some, least if np.isfinite(least) else 1e-12)
            held = self.entries()
            self._clear()
            self._insert(*held)

    def entries(
        self,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return means [M, D], rows and squared deviations [M] of the entries of all leaves."""
        used = int(self._state[1])
        kept = np.arange(ENTRIES + 1) < self._counts[:used, None]
        kept &= self._is_leaf[:used, None]
        parts = (self._means[:used], self._weights[:used], self._spreads[:used])
        means, weights, spreads = (part[kept] for part in parts)
        return means, weights, spreads

    def centers(self, count: int, seed: int = 0) -> NDArray[np.float64]:
        """Return the means of clusters of the entries, each by its rows.

        Args:
            count: clusters; there are fewer where there are fewer entries.
            seed: seed of the first centers.

        Returns:
            [K, D].

        Raises:
            DataError: no rows were put in.
        """
        means, weights, _ = self.entries()
        if not len(means):
            raise DataError("no rows were put in", hint="call update first")
        rng = np.random.default_rng(seed)
        return weighted_centers(means, weights, min(count, len(means)), rng)
