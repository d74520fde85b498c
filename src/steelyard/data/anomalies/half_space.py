"""Half-space trees: how many rows of the last window lay where a row lies, for endless streams."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.anomalies.detector import drops
from steelyard.errors import DataError, require
from steelyard.jit import njit

__all__ = ["HalfSpaceTrees"]


@njit()
def _masses(
    row: np.ndarray,
    columns: np.ndarray,
    cuts: np.ndarray,
    latest: np.ndarray,
    enough: Any,
    taken: np.ndarray,
    takes: Any,
) -> Any:
    """Return the mass around a row, weighted by depth; count it in `taken` if wanted."""
    trees, nodes = columns.shape
    total = 0.0
    for tree in range(trees):
        node, weight = 0, 1.0
        while True:
            if takes:
                taken[tree, node] += 1
            is_leaf = 2 * node + 1 >= nodes
            if is_leaf or latest[tree, node] <= enough:
                total += latest[tree, node] * weight
                break
            node = 2 * node + (1 if row[columns[tree, node]] < cuts[tree, node] else 2)
            weight *= 2.0
        while takes and 2 * node + 1 < nodes:
            # What comes later is judged by all nodes, not by those that this row was judged by.
            node = 2 * node + (1 if row[columns[tree, node]] < cuts[tree, node] else 2)
            taken[tree, node] += 1
    return total


@njit()
def _stream(
    rows: np.ndarray,
    columns: np.ndarray,
    cuts: np.ndarray,
    latest: np.ndarray,
    taken: np.ndarray,
    enough: Any,
    window: Any,
    seen: Any,
    out: np.ndarray,
) -> Any:
    """Score rows one after the other, and learn from them; return rows seen."""
    for place in range(len(rows)):
        out[place] = _masses(rows[place], columns, cuts, latest, enough, taken, True)
        seen += 1
        if seen % window == 0:
            latest[:] = taken
            taken[:] = 0.0
    return seen


@njit()
def _score(
    rows: np.ndarray,
    columns: np.ndarray,
    cuts: np.ndarray,
    latest: np.ndarray,
    enough: Any,
    out: np.ndarray,
) -> None:
    """Score rows without learning from them."""
    for place in range(len(rows)):
        out[place] = _masses(rows[place], columns, cuts, latest, enough, latest, False)


@dataclass(kw_only=True)
class HalfSpaceTrees:
    """Trees of random halves with the masses of two windows of rows.

    Attributes:
        width: columns D.
        trees: trees.
        depth: halvings of a tree.
        window: rows of a window.
        enough: mass at or below which a tree looks no deeper, a share of the window.
        reach: columns are halved within as many standard deviations of 0: rows are standardized.
        seed: seed of the halves.

    Source: Tan, Ting and Liu 2011 (IJCAI), "Fast anomaly detection for streaming data", algorithms
        1 to 3.
    """

    width: int
    trees: int = 25
    depth: int = 12
    window: int = 250
    enough: float = 0.1
    reach: float = 4.0
    seed: int = 0
    seen: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Draw the halves."""
        require(
            self,
            width=(self.width >= 1, "at least 1"),
            trees=(self.trees >= 1, "at least 1"),
            depth=(1 <= self.depth <= 20, "1 to 20"),
            window=(self.window >= 1, "at least 1"),
        )
        rng = np.random.default_rng(self.seed)
        nodes = 2 ** (self.depth + 1) - 1
        self._columns = np.zeros((self.trees, nodes), np.int64)
        self._cuts = np.zeros((self.trees, nodes))
        self._latest = np.zeros((self.trees, nodes))
        self._taken = np.zeros((self.trees, nodes))
        for tree in range(self.trees):
            # Each tree's space is wider to one side by chance, so that halves differ.
            middle = rng.random(self.width)
            half = 2 * np.maximum(middle, 1 - middle)
            low = (middle - half) * 2 * self.reach - self.reach
            high = (middle + half) * 2 * self.reach - self.reach
            self._halve(tree, low, high, rng)

    def _halve(
        self,
        tree: int,
        low: NDArray[np.float64],
        high: NDArray[np.float64],
        rng: np.random.Generator,
    ) -> None:
        """Fill in the halves of a tree, level by level."""
        lows, highs = low[None], high[None]
        for level in range(self.depth):
            first, count = 2**level - 1, 2**level
            column, at = rng.integers(0, self.width, count), np.arange(count)
            middle = (lows[at, column] + highs[at, column]) / 2
            part = slice(first, first + count)
            self._columns[tree, part], self._cuts[tree, part] = column, middle
            lows, highs = np.repeat(lows, 2, axis=0), np.repeat(highs, 2, axis=0)
            highs[2 * at, column], lows[2 * at + 1, column] = middle, middle

    def update(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Score rows one after the other, and learn from each after it was scored.

        Args:
            rows: standardized rows in the order of time [N, D].

        Returns:
            Scores, larger ones odder; those of the first window know no other rows, and are of the
            masses after that window if it is whole [N].
        """
        given = np.ascontiguousarray(rows, np.float64)
        # The first window is judged by itself.
        early = min(max(self.window - self.seen, 0), len(given))
        found = np.empty(len(given))
        self.seen = self._feed(given[:early], found, 0)
        if early:
            if self.seen < self.window:
                self._latest[:] = self._taken
            self._score_into(given[:early], found[:early])
        self.seen = self._feed(given[early:], found, early)
        return self._odd(found)

    def _feed(self, rows: NDArray[np.float64], out: NDArray[np.float64], first: int) -> int:
        """Take rows in; return rows seen."""
        return _stream(
            rows,
            self._columns,
            self._cuts,
            self._latest,
            self._taken,
            self.enough * self.window,
            self.window,
            self.seen,
            out[first : first + len(rows)],
        )

    def _score_into(self, rows: NDArray[np.float64], out: NDArray[np.float64]) -> None:
        """Fill in the masses of rows."""
        enough = self.enough * self.window
        _score(rows, self._columns, self._cuts, self._latest, enough, out)

    def _odd(self, masses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return less for more mass."""
        return -np.log2(1 + masses / self.trees)

    def score(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Score rows by the last window, without learning from them.

        Args:
            rows: standardized rows [N, D].

        Returns:
            Scores, larger ones odder [N].

        Raises:
            DataError: no rows were seen.
        """
        if not self.seen:
            raise DataError("no rows were seen", hint="call update first")
        found = np.empty(len(rows))
        self._score_into(np.ascontiguousarray(rows, np.float64), found)
        return self._odd(found)

    def blame(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return how much less odd rows would be in the middle of each column [N, D]."""
        return drops(self, rows, np.zeros(self.width))

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the halves and the masses of both windows by name."""
        return {
            "columns": self._columns,
            "cuts": self._cuts,
            "latest": self._latest,
            "taken": self._taken,
        }

    @classmethod
    def restored(cls, about: dict[str, Any], sections: dict[str, NDArray[Any]]) -> "HalfSpaceTrees":
        """Return the trees of their attributes and of arrays by name; they go on learning."""
        told = dict(about)
        seen = told.pop("seen")
        found = cls(**told)
        # What was drawn is kept too: another version of the generator may draw otherwise.
        found._columns, found._cuts = sections["columns"], sections["cuts"]
        found._latest, found._taken, found.seen = sections["latest"], sections["taken"], seen
        return found
