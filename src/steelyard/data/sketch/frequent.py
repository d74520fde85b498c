"""The most frequent values of a stream, with a bound on how far each count is off."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.data.sketch.hashing import mix64
from steelyard.errors import ConfigError
from steelyard.jit import njit

__all__ = ["FrequentHashes"]

_EMPTY = np.int64(0)


@njit()
def _slot(keys: np.ndarray, counts: np.ndarray, key: np.uint64) -> Any:
    """Return the slot of a key, or the empty one where it would go."""
    last = len(keys) - 1
    place = np.int64(mix64(key) & np.uint64(last))
    while counts[place] != _EMPTY and keys[place] != key:
        place = (place + 1) & last
    return place


@njit()
def _purge(keys: np.ndarray, counts: np.ndarray, rows: np.ndarray, facts: np.ndarray) -> None:
    """Subtract the median count from all counters, and forget those that reach zero.

    Args:
        keys: hashes, [slots].
        counts: their counts, 0 for an empty slot, [slots].
        rows: row in which each was seen last in this batch, -1 for none, [slots].
        facts: counters in use, and the sum of what was subtracted, [2].
    """
    used = np.flatnonzero(counts)
    less = np.int64(np.median(counts[used]))
    kept = used[counts[used] > less]
    old_keys, old_counts, old_rows = keys[kept], counts[kept] - less, rows[kept]
    counts[:] = _EMPTY
    facts[0], facts[1] = len(kept), facts[1] + less
    for place in range(len(kept)):
        slot = _slot(keys, counts, old_keys[place])
        keys[slot], counts[slot] = old_keys[place], old_counts[place]
        rows[slot] = old_rows[place]


@njit()
def _add(
    keys: np.ndarray,
    counts: np.ndarray,
    rows: np.ndarray,
    facts: np.ndarray,
    hashes: np.ndarray,
    weights: np.ndarray,
    most: int,
) -> None:
    """Count hashes one after the other; no weights stand for ones."""
    for row in range(len(hashes)):
        slot = _slot(keys, counts, hashes[row])
        if counts[slot] == _EMPTY:
            facts[0] += 1
            keys[slot] = hashes[row]
        counts[slot] += weights[row] if len(weights) else 1
        rows[slot] = row
        if facts[0] > most:
            _purge(keys, counts, rows, facts)


class FrequentHashes:
    """Counters of the most frequent hashes; the others share one bound.

    A count is never above the true one, and below it by at most `error`, which is at most the
    number of values over half the counters. Every value more frequent than that is among them.

    Attributes:
        size: most counters, a power of two.
        count: values seen.

    Source: Misra and Gries 1982; with the purge of Anderson et al. 2017, "A high-performance
        algorithm for identifying frequent items in data streams", arXiv 1705.07001. Agarwal et al.
        2012, "Mergeable summaries": its counters and those of Space-Saving say the same.
    """

    def __init__(self, size: int = 1024) -> None:
        """Begin without values.

        Args:
            size: most counters, a power of two from 16 to 65,536.

        Raises:
            ConfigError: it is none.
        """
        if not 16 <= size <= 65_536 or size & (size - 1):
            raise ConfigError(f"{size} counters, but it must be a power of two in [16, 65536]")
        self.size, self.count = size, 0
        # A table that is half empty finds slots fast.
        self._keys = np.zeros(2 * size, np.uint64)
        self._counts = np.zeros(2 * size, np.int64)
        self._rows = np.full(2 * size, -1)
        self._facts = np.zeros(2, np.int64)

    @property
    def error(self) -> int:
        """Most by which a count is too low."""
        return int(self._facts[1])

    def update(self, hashes: ArrayLike) -> NDArray[np.int64]:
        """Add values by their hashes.

        Args:
            hashes: uint64, [rows].

        Returns:
            Rows at which counted values of this batch stand, one for each, so that the values can
            be kept beside the hashes, [counted].
        """
        given = np.ascontiguousarray(hashes, np.uint64)
        self._rows[:] = -1
        self._take(given, np.zeros(0, np.int64))
        self.count += len(given)
        return self._rows[(self._rows >= 0) & (self._counts > 0)]

    def _take(self, hashes: NDArray[np.uint64], weights: NDArray[np.int64]) -> None:
        _add(self._keys, self._counts, self._rows, self._facts, hashes, weights, self.size)

    def merge(self, other: "FrequentHashes") -> None:
        """Take in another sketch.

        Args:
            other: one of the same size; it is left as it is.

        Raises:
            ConfigError: it has another size.
        """
        if other.size != self.size:
            raise ConfigError(f"{self.size} and {other.size} counters cannot be merged")
        used = other._counts > 0
        keys, counts = other._keys[used], other._counts[used]
        # Where a value stands in a table depends on the order it came in; its hash does not.
        order = np.argsort(keys)
        self._facts[1] += other._facts[1]
        self._take(keys[order], counts[order])
        self.count += other.count

    def counters(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return hashes and counts, the most frequent first, [counters] each."""
        used = self._counts > 0
        keys, counts = self._keys[used], self._counts[used]
        order = np.lexsort((keys, -counts))
        return keys[order], counts[order]

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays by name."""
        keys, counts = self.counters()
        return {
            "keys": keys,
            "counts": counts,
            "facts": np.array([self.size, self.count, self.error]),
        }

    @classmethod
    def of(cls, sections: dict[str, NDArray[Any]]) -> "FrequentHashes":
        """Return the sketch of a state."""
        size, count, error = (int(value) for value in sections["facts"])
        made = cls(size)
        keys = np.asarray(sections["keys"], np.uint64)
        made._take(keys, np.asarray(sections["counts"], np.int64))
        made._facts[1], made.count = error, count
        return made
