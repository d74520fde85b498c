"""Count-min: how often any value was seen, never too low, too high by a known share."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.data.sketch.hashing import NULL_HASH, mix64
from steelyard.errors import ConfigError
from steelyard.jit import njit

__all__ = ["CountMin"]


@njit()
def _add(cells: np.ndarray, width: int, hashes: np.ndarray) -> int:
    """Count hashes in each line of cells, and return how many there were."""
    last, seen = np.uint64(width - 1), 0
    for row in range(len(hashes)):
        if hashes[row] == NULL_HASH:
            continue
        seen += 1
        # Two halves of one hash make as many independent places as are needed.
        place, step = hashes[row], mix64(hashes[row]) | np.uint64(1)
        for line in range(0, len(cells), width):
            cells[np.uint64(line) + ((place >> np.uint64(32)) & last)] += 1
            place += step
    return seen


@njit()
def _least(cells: np.ndarray, width: int, hashes: np.ndarray, found: np.ndarray) -> None:
    """Look hashes up: the least of their cells."""
    last = np.uint64(width - 1)
    for row in range(len(hashes)):
        place, step = hashes[row], mix64(hashes[row]) | np.uint64(1)
        found[row] = cells[(place >> np.uint64(32)) & last]
        for line in range(0, len(cells), width):
            cell = cells[np.uint64(line) + ((place >> np.uint64(32)) & last)]
            found[row] = min(found[row], cell)
            place += step


class CountMin:
    """Lines of cells; each value counts in one cell of each line, and the least one is its count.

    A count is never below the true one. It is above it by more than `error` with a probability of
    at most exp(-depth).

    Attributes:
        count: values seen.

    Source: Cormode and Muthukrishnan 2005, "An improved data stream summary: the count-min sketch
        and its applications"; places of one hash by Kirsch and Mitzenmacher 2006, "Less hashing,
        same performance".
    """

    def __init__(self, width: int = 2048, depth: int = 4) -> None:
        """Begin without values.

        Args:
            width: cells of a line, a power of two from 16 to 2^24.
            depth: lines, 1 to 16.

        Raises:
            ConfigError: the width or depth is out of range.
        """
        if not 16 <= width <= 1 << 24 or width & (width - 1):
            raise ConfigError(f"{width} cells, but it must be a power of two in [16, 2^24]")
        if not 1 <= depth <= 16:
            raise ConfigError(f"{depth} lines, but it must be in [1, 16]")
        self.count = 0
        self._counts = np.zeros((depth, width), np.int64)

    @property
    def error(self) -> int:
        """Most by which a count is too high, but for one value in exp(depth)."""
        return math.ceil(math.e / self._counts.shape[1] * self.count)

    def update(self, hashes: ArrayLike) -> None:
        """Add values by their hashes; those that are missing (`NULL_HASH`) are left out.

        Args:
            hashes: uint64, [rows].
        """
        self.count += _add(
            self._counts.ravel(), self._counts.shape[1], np.ascontiguousarray(hashes, np.uint64)
        )

    def counts(self, hashes: ArrayLike) -> NDArray[np.int64]:
        """Return how often values were seen, at most.

        Args:
            hashes: uint64, [values].

        Returns:
            Counts, [values].
        """
        given = np.ascontiguousarray(hashes, np.uint64)
        found = np.zeros(len(given), np.int64)
        _least(self._counts.ravel(), self._counts.shape[1], given, found)
        return found

    def merge(self, other: "CountMin") -> None:
        """Take in another sketch.

        Args:
            other: one of the same cells; it is left as it is.

        Raises:
            ConfigError: it has others.
        """
        if other._counts.shape != self._counts.shape:
            raise ConfigError(
                f"{self._counts.shape} and {other._counts.shape} cells cannot be merged"
            )
        self._counts += other._counts
        self.count += other.count

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays by name."""
        return {"counts": self._counts, "count": np.array([self.count])}

    @classmethod
    def of(cls, sections: dict[str, NDArray[Any]]) -> "CountMin":
        """Return the sketch of a state."""
        depth, width = sections["counts"].shape
        made = cls(width, depth)
        made._counts, made.count = np.array(sections["counts"]), int(sections["count"][0])
        return made
