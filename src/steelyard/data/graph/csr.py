"""A graph as compressed sparse rows, in memory or mapped from a pack."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.data.graph.node_ids import NodeIds
from steelyard.data.pack import Pack
from steelyard.errors import DataError

__all__ = ["CSRGraph"]


class CSRGraph:
    """Lists of neighbours one after the other.

    Rows and columns of a graph of one kind of nodes are the same nodes, and each edge stands in the
    rows of both its ends. Where there are two kinds, such as accounts and who follows them, rows
    are nodes of the one and columns nodes of the other.

    Attributes:
        offsets: where each row begins in `targets`, and the end, int64 [N + 1].
        targets: column of each edge, ascending within a row and distinct, uint32 [M].
        weights: weights of each edge, float64 [M]; None where all are 1.
        num_columns: number of columns; N for nodes of one kind.
        ids: names of the rows' nodes, [N].
        hashes: hash of each row's node, ascending, uint64 [N]; None for a graph made in memory.
        column_hashes: hash of each column's node, ascending, uint64; None as well.
    """

    def __init__(
        self,
        offsets: NDArray[np.int64],
        targets: NDArray[np.uint32],
        *,
        weights: NDArray[np.float64] | None = None,
        num_columns: int | None = None,
        ids: NodeIds | None = None,
        hashes: NDArray[np.uint64] | None = None,
        column_hashes: NDArray[np.uint64] | None = None,
    ) -> None:
        """Take the arrays; see `of_edges` and `open`."""
        self.offsets, self.targets, self.weights = offsets, targets, weights
        self.num_columns = len(offsets) - 1 if num_columns is None else num_columns
        self.ids = ids or NodeIds(np.arange(len(offsets) - 1))
        self.hashes, self.column_hashes = hashes, column_hashes

    def __len__(self) -> int:
        """Return the number of rows N."""
        return len(self.offsets) - 1

    @property
    def num_edges(self) -> int:
        """Entries M of all rows; an edge between two nodes of one kind counts twice."""
        return len(self.targets)

    @property
    def degrees(self) -> NDArray[np.int64]:
        """Neighbours of each row, [N]."""
        return np.diff(self.offsets)

    def row(self, node: int) -> NDArray[np.uint32]:
        """Return the neighbours of a node, ascending."""
        return self.targets[self.offsets[node] : self.offsets[node + 1]]

    @classmethod
    def of_edges(
        cls,
        sources: ArrayLike,
        targets: ArrayLike,
        weights: ArrayLike | None = None,
        count: int = 0,
    ) -> "CSRGraph":
        """Return the undirected graph of edges in memory.

        Args:
            sources: one end of each edge, numbers from 0, [E].
            targets: the other end; loops are left out.
            weights: weight of each edge; those of one that stands twice, in any direction, add up.
                Without weights it counts once.
            count: number of nodes; one more than the largest number where it is larger.

        Returns:
            The graph.
        """
        one, other = np.asarray(sources, np.int64), np.asarray(targets, np.int64)
        keep = one != other
        largest = max(int(one.max(initial=-1)), int(other.max(initial=-1)))
        nodes = max(count, largest + 1)
        rows = np.concatenate((one[keep], other[keep]))
        columns = np.concatenate((other[keep], one[keep]))
        codes, inverse = np.unique(rows * nodes + columns, return_inverse=True)
        summed: Any = None
        if weights is not None:
            given = np.asarray(weights, np.float64)[keep]
            summed = np.bincount(inverse, np.concatenate((given, given)), len(codes))
        offsets = np.zeros(nodes + 1, np.int64)
        np.cumsum(np.bincount(codes // max(nodes, 1), minlength=nodes), out=offsets[1:])
        return cls(offsets, (codes % max(nodes, 1)).astype(np.uint32), weights=summed)

    @classmethod
    def open(cls, path: Path) -> "CSRGraph":
        """Map a graph that `build_graph` wrote.

        Args:
            path: its pack.

        Returns:
            The graph; its arrays share the file's memory.

        Raises:
            DataError: the file cannot be read, is damaged, or holds no graph.
        """
        pack = Pack.open(path)
        if pack.find("offsets") is None or pack.find("targets") is None:
            raise DataError(f"{path} holds no graph", hint="give a pack that build_graph wrote")
        names = {
            name.removeprefix("ids/"): pack[name] for name in pack.names if name.startswith("ids/")
        }
        rows = pack["hashes"]
        columns = pack["column_hashes"] if pack.find("column_hashes") is not None else rows
        return cls(
            pack["offsets"],
            pack["targets"],
            num_columns=len(columns),
            ids=NodeIds.of(names),
            hashes=rows,
            column_hashes=columns,
        )

    def find(self, names: Sequence[int | str]) -> NDArray[np.int64]:
        """Return the rows of nodes by their names, -1 where there is none.

        Args:
            names: numbers, or text.

        Returns:
            int64, [names].
        """
        if self.hashes is None:
            known = {self.ids[row]: row for row in range(len(self))}
            return np.array([known.get(name, -1) for name in names], np.int64)
        wanted = self.ids.hashes(names)
        places = np.searchsorted(self.hashes, wanted)
        places = np.minimum(places, max(len(self) - 1, 0)).astype(np.int64)
        is_there = self.hashes[places] == wanted if len(self) else np.zeros(len(names), bool)
        return np.where(is_there, places, -1)

    def induced(self, nodes: NDArray[np.int64]) -> "CSRGraph":
        """Return the part of a graph of one kind of nodes that lies between some of them.

        Args:
            nodes: distinct rows, [n]; they become 0 to n - 1.

        Returns:
            The graph.
        """
        place = np.full(self.num_columns, -1, np.int64)
        place[nodes] = np.arange(len(nodes))
        lengths = self.degrees[nodes]
        ends = np.concatenate(([0], np.cumsum(lengths)))
        entries = np.arange(ends[-1]) + np.repeat(self.offsets[nodes] - ends[:-1], lengths)
        rows, columns = np.repeat(np.arange(len(nodes)), lengths), place[self.targets[entries]]
        keep = columns >= 0
        given: Any = None if self.weights is None else self.weights[entries][keep] / 2
        return CSRGraph.of_edges(rows[keep], columns[keep], given, len(nodes))
