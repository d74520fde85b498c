"""The most frequent values of a stream, with a bound on how far each count is off."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.data.sketch.hashing import NULL_HASH
from steelyard.errors import ConfigError
from steelyard.jit import njit

__all__ = ["FrequentHashes"]

_EMPTY = np.int64(0)
_BUCKETS = 4096
_SHARE = 512
"""A bucket drops at most one in so many values of the stream before it lets others pass."""


@njit()
def _slot(keys: np.ndarray, counts: np.ndarray, key: np.uint64) -> Any:
    """Return the slot of a key, or the empty one where it would go."""
    last = len(keys) - 1
    # The lowest bits choose a bucket: others spread those that pass one.
    place = np.int64((key >> np.uint64(20)) & np.uint64(last))
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
def _count(
    keys: np.ndarray,
    counts: np.ndarray,
    rows: np.ndarray,
    facts: np.ndarray,
    counted: tuple[np.uint64, np.int64, int],
    most: int,
) -> None:
    """Add to the counter of a hash: `counted` holds it, its weight, and its row."""
    key, weight, row = counted
    slot = _slot(keys, counts, key)
    if counts[slot] == _EMPTY:
        facts[0] += 1
        keys[slot] = key
    counts[slot] += weight
    rows[slot] = row
    if facts[0] > most:
        _purge(keys, counts, rows, facts)


@njit()
def _weigh(
    keys: np.ndarray,
    counts: np.ndarray,
    rows: np.ndarray,
    facts: np.ndarray,
    hashes: np.ndarray,
    weights: np.ndarray,
    most: int,
) -> None:
    """Add counters of another sketch."""
    for row in range(len(hashes)):
        _count(keys, counts, rows, facts, (hashes[row], weights[row], row), most)


@njit()
def _add(
    keys: np.ndarray,
    counts: np.ndarray,
    rows: np.ndarray,
    facts: np.ndarray,
    dropped: np.ndarray,
    hashes: np.ndarray,
    most: int,
) -> None:
    """Count hashes one after the other.

    While no counter was purged, the counts are exact and nothing is dropped. Afterwards a hash is
    dropped while its bucket has dropped less than a small share of the stream: rare values, of
    which most columns have many, then cost one look at a bucket in place of a counter.
    """
    last, one = np.uint64(len(dropped) - 1), np.int64(1)
    row, seen = 0, facts[2]
    while row < len(hashes) and facts[1] == 0:
        key = hashes[row]
        if key != NULL_HASH:
            seen += 1
            slot = _slot(keys, counts, key)
            if counts[slot]:
                counts[slot] += one
                rows[slot] = row
            else:
                _count(keys, counts, rows, facts, (key, one, row), most)
        row += 1
    limit, until = seen // _SHARE, (seen // _SHARE + 1) * _SHARE
    while row < len(hashes):
        key = hashes[row]
        if key != NULL_HASH:
            seen += 1
            if seen == until:
                limit, until = limit + 1, until + _SHARE
            bucket = np.int64(key & last)
            if dropped[bucket] < limit:
                dropped[bucket] += 1
            else:
                _count(keys, counts, rows, facts, (key, one, row), most)
        row += 1
    facts[2] = seen


class FrequentHashes:
    """Counters of the most frequent hashes; the others share one bound.

    A count is never above the true one, and below it by at most `error`, which is at most 1/512 of
    the values and their number over half the counters. Every value more frequent than that is among
    them. As long as there are no more distinct values than counters, counts are exact.

    Attributes:
        size: most counters, a power of two.

    Source: Misra and Gries 1982; with the purge of Anderson et al. 2017, "A high-performance
        algorithm for identifying frequent items in data streams", arXiv 1705.07001. Agarwal et al.
        2012, "Mergeable summaries": its counters and those of Space-Saving say the same. Rare
        values are kept from the counters by a table of buckets, as in Estan and Varghese 2002,
        "New directions in traffic measurement and accounting" (multistage filters).
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
        self.size = size
        # A table that is half empty finds slots fast.
        self._keys = np.zeros(2 * size, np.uint64)
        self._counts = np.zeros(2 * size, np.int64)
        self._rows = np.full(2 * size, -1)
        # Counters in use, what purges subtracted, and values seen.
        self._facts = np.zeros(3, np.int64)
        self._dropped = np.zeros(_BUCKETS, np.int32)

    @property
    def count(self) -> int:
        """Values seen."""
        return int(self._facts[2])

    @property
    def error(self) -> int:
        """Most by which a count is too low."""
        return int(self._facts[1]) + int(self._dropped.max())

    def update(self, hashes: ArrayLike) -> NDArray[np.int64]:
        """Add values by their hashes; those that are missing (`NULL_HASH`) are left out.

        Args:
            hashes: uint64, [rows].

        Returns:
            Rows at which counted values of this batch stand, one for each, so that the values can
            be kept beside the hashes, [counted].
        """
        given = np.ascontiguousarray(hashes, np.uint64)
        self._rows[:] = -1
        table = (self._keys, self._counts, self._rows, self._facts)
        _add(*table, self._dropped, given, self.size)
        return self._rows[(self._rows >= 0) & (self._counts > 0)]

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
        self._facts[1:] += other._facts[1:]
        self._dropped += other._dropped
        self._take(keys[order], counts[order])

    def _take(self, hashes: NDArray[np.uint64], weights: NDArray[np.int64]) -> None:
        table = (self._keys, self._counts, self._rows, self._facts)
        _weigh(*table, hashes, weights, self.size)

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
            "dropped": self._dropped if self._dropped.any() else self._dropped[:0],
            "facts": np.array([self.size, *self._facts[1:]]),
        }

    @classmethod
    def of(cls, sections: dict[str, NDArray[Any]]) -> "FrequentHashes":
        """Return the sketch of a state."""
        size, less, count = (int(value) for value in sections["facts"])
        made = cls(size)
        keys = np.asarray(sections["keys"], np.uint64)
        made._take(keys, np.asarray(sections["counts"], np.int64))
        made._facts[1:] = less, count
        if len(sections["dropped"]):
            made._dropped = np.array(sections["dropped"], np.int32)
        return made
