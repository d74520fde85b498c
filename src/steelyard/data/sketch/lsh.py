"""Locality-sensitive hashing of signatures as sorted arrays that can be mapped from a file."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch.hashing import mix64
from steelyard.errors import ConfigError, DataError
from steelyard.jit import njit

__all__ = ["LshTable", "band_keys", "choose_bands", "find_chance"]


@njit()
def _keys_of_bands(signed: np.ndarray, bands: int, rows: int, keys: np.ndarray) -> None:
    """Hash each band of each signature into one number."""
    for number in range(len(signed)):
        for band in range(bands):
            code = np.uint64(0)
            for place in range(band * rows, (band + 1) * rows):
                code = mix64(code ^ np.uint64(signed[number, place]))
            keys[band, number] = np.uint32(code >> np.uint64(32))


@njit()
def _shared(order: np.ndarray, keys: np.ndarray, kept: np.ndarray) -> int:
    """Copy keys that stand twice or more, with their members; return how many entries those are."""
    count, place = 0, 0
    while place < len(order):
        end = place + 1
        while end < len(order) and keys[order[end]] == keys[order[place]]:
            end += 1
        if end - place > 1:
            for item in range(place, end):
                kept[count] = order[item]
                count += 1
        place = end
    return count


@njit()
def _first_place(keys: np.ndarray, low: Any, high: Any, wanted: np.uint32) -> int:
    """Return the first place from `low` on, before `high`, of a key that is no less than wanted."""
    # Keys are spread evenly, so the place can be guessed; steps that double find both ends around
    # it, and few pages of a mapped file are touched.
    guess = low + np.int64((np.uint64(wanted) * np.uint64(high - low)) >> np.uint64(32))
    step = 32
    if guess < high and keys[guess] < wanted:
        low = guess + 1
        while low + step < high and keys[low + step] < wanted:
            low += step + 1
            step *= 2
        high = min(high, low + step)
    elif guess < high:
        high = guess
        while high - step > low and keys[high - step] >= wanted:
            high -= step
            step *= 2
        low = max(low, high - step)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@njit()
def _hits(
    keys: np.ndarray,
    members: np.ndarray,
    offsets: np.ndarray,
    wanted: np.ndarray,
    most: int,
    hits: np.ndarray,
) -> int:
    """Count for each set the bands it shares with one; return the buckets that were cut short."""
    cut = 0
    for band in range(len(wanted)):
        begin, end = offsets[band], offsets[band + 1]
        low = _first_place(keys, begin, end, wanted[band])
        first = low
        while low < end and keys[low] == wanted[band] and low - first < most:
            hits[members[low]] += 1
            low += 1
        cut += low < end and keys[low] == wanted[band]
    return cut


def band_keys(signed: NDArray[np.uint32], bands: int, rows: int) -> NDArray[np.uint32]:
    """Hash the bands of signatures.

    Args:
        signed: [N, K].
        bands: bands, each of the next `rows` places.
        rows: places of a band; bands * rows is K at most.

    Returns:
        uint32 [bands, N]: equal where all places of a band are.
    """
    keys = np.empty((bands, len(signed)), np.uint32)
    _keys_of_bands(signed, bands, rows, keys)
    return keys


def find_chance(similarity: Any, bands: int, rows: int) -> Any:
    """Return the probability 1 - (1 - J^rows)^bands that two sets share a band.

    Args:
        similarity: Jaccard similarity J, 0 to 1; a number or an array.
        bands: bands of a table.
        rows: places of a band.

    Returns:
        Of the same shape.

    Source: Leskovec et al., "Mining of Massive Datasets", section 3.4.2.
    """
    return 1 - (1 - similarity**rows) ** bands


def choose_bands(num_hashes: int, threshold: float, recall: float = 0.95) -> tuple[int, int]:
    """Return bands and rows that find pairs of a similarity, with as few others as can be.

    Args:
        num_hashes: places of a signature.
        threshold: least Jaccard similarity that is wanted.
        recall: least share of the pairs at the threshold that are to be found.

    Returns:
        Bands and rows of the most selective table that does; one row where none does.
    """
    fits = [
        rows
        for rows in range(1, num_hashes + 1)
        if find_chance(threshold, num_hashes // rows, rows) >= recall
    ]
    rows = max(fits, default=1)
    return num_hashes // rows, rows


class LshTable:
    """Sets by the hashes of their bands, in order, band after band; keys of one set are left out.

    Attributes:
        keys: hash of each entry, uint32; ascending within a band.
        members: number of the set of each entry, uint32; ascending within a key.
        offsets: where each band begins, and the end, int64 [bands + 1].
        count: number of sets N.
        rows: places of a band.
    """

    def __init__(
        self,
        keys: NDArray[np.uint32],
        members: NDArray[np.uint32],
        offsets: NDArray[np.int64],
        count: int,
        rows: int,
    ) -> None:
        """Take the arrays of a table; see `build` and `of`."""
        self.keys, self.members, self.offsets = keys, members, offsets
        self.count, self.rows = count, rows

    @classmethod
    def build(cls, keys: NDArray[np.uint32], rows: int) -> "LshTable":
        """Sort the keys of bands.

        Args:
            keys: keys of `band_keys`, [bands, N]; an array of a mapped file is read band by band.
            rows: places of a band.

        Returns:
            The table.
        """
        count = keys.shape[1]
        found, members, ends = [], [], [0]
        for band in keys:
            order = np.argsort(band, kind="stable").astype(np.uint32)
            kept = np.empty(count, np.uint32)
            own = kept[: _shared(order, band, kept)].copy()
            members.append(own)
            found.append(band[own])
            ends.append(ends[-1] + len(own))
        empty = np.zeros(0, np.uint32)
        return cls(
            np.concatenate([empty, *found]),
            np.concatenate([empty, *members]),
            np.array(ends, np.int64),
            count,
            rows,
        )

    @property
    def bands(self) -> int:
        """Number of bands."""
        return len(self.offsets) - 1

    def hits(
        self,
        signature: NDArray[np.uint32],
        most: int = 1 << 62,
        hits: NDArray[np.int32] | None = None,
    ) -> tuple[NDArray[np.int32], int]:
        """Find the sets that share bands with a signature.

        Args:
            signature: [K].
            most: members of a bucket that are looked at; the first ones.
            hits: counts that are added to, [N]; zeros when they are left out.

        Returns:
            Shared bands of each set, [N], and how many buckets were cut short.

        Raises:
            ConfigError: the signature is too short for the bands.
        """
        if self.bands * self.rows > len(signature):
            raise ConfigError(
                f"a signature of {len(signature)} places, but {self.bands} bands of {self.rows} "
                "need more"
            )
        wanted = band_keys(signature[None], self.bands, self.rows)[:, 0]
        counts = np.zeros(self.count, np.int32) if hits is None else hits
        cut = _hits(self.keys, self.members, self.offsets, wanted, most, counts)
        return counts, int(cut)

    def neighbours(self) -> NDArray[np.int64]:
        """Return pairs that connect all members of each bucket, [P, 2], the earlier first.

        All pairs of a bucket of n would be n^2 / 2. Each member is paired with the one before it
        and with the first: chains reach every member, and an odd one in between breaks none.
        """
        place = np.arange(len(self.keys))
        fresh = np.ones(len(self.keys), bool)
        fresh[1:] = self.keys[1:] != self.keys[:-1]
        fresh[self.offsets[:-1][self.offsets[:-1] < len(fresh)]] = True
        first = np.maximum.accumulate(np.where(fresh, place, 0))
        later = np.flatnonzero(~fresh)
        members = self.members.astype(np.int64)
        pairs = [
            np.stack((members[earlier], members[later]), axis=1)
            for earlier in (later - 1, first[later])
        ]
        return np.unique(np.concatenate(pairs), axis=0)

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the table as arrays by name."""
        return {
            "keys": self.keys,
            "members": self.members,
            "offsets": self.offsets,
            "shape": np.array([self.count, self.rows], np.int64),
        }

    @classmethod
    def of(cls, sections: dict[str, NDArray[Any]]) -> "LshTable":
        """Return the table of such arrays, which are not copied.

        Args:
            sections: sections of `sections`.

        Returns:
            The table.

        Raises:
            DataError: the arrays do not fit together.
        """
        keys, members, offsets = (sections[name] for name in ("keys", "members", "offsets"))
        if len(keys) != len(members) or not len(offsets) or offsets[-1] != len(keys):
            raise DataError("the arrays of an LSH table differ in length", hint="build it again")
        count, rows = (int(value) for value in sections["shape"])
        return cls(keys, members, offsets, count, rows)
