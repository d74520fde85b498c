"""MinHash: short signatures of sets whose agreement estimates the sets' Jaccard similarity."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch.hashing import mix64
from steelyard.errors import ConfigError
from steelyard.jit import njit, njit_inner

__all__ = ["EMPTY", "MinHasher", "agreement", "equal_places", "similarity", "truncated"]

EMPTY = np.uint32(0xFFFFFFFF)
"""Place of a signature that no element has reached."""
BITS = (8, 16, 32)
"""Widths to which places may be cut."""
_COUNTED = 1 << 15
"""Places that are counted in 16 bits at a time."""


@njit()
def _least_of_sets(
    hashes: np.ndarray,
    offsets: np.ndarray,
    factors: np.ndarray,
    shifts: np.ndarray,
    least: np.ndarray,
) -> None:
    """Lower rows of `least` by the permuted elements of each set."""
    places = len(factors)
    for row in range(len(offsets) - 1):
        own = least[row]
        item, end = offsets[row], offsets[row + 1]
        # Eight elements in registers for each load and store of a place: with one, memory is the
        # limit and the loop takes four times as long.
        while item + 8 <= end:
            a, b = np.uint32(hashes[item]), np.uint32(hashes[item + 1])
            c, d = np.uint32(hashes[item + 2]), np.uint32(hashes[item + 3])
            e, f = np.uint32(hashes[item + 4]), np.uint32(hashes[item + 5])
            g, h = np.uint32(hashes[item + 6]), np.uint32(hashes[item + 7])
            for place in range(places):
                factor, shift = factors[place], shifts[place]
                ab = min(np.uint32(a * factor + shift), np.uint32(b * factor + shift))
                cd = min(np.uint32(c * factor + shift), np.uint32(d * factor + shift))
                ef = min(np.uint32(e * factor + shift), np.uint32(f * factor + shift))
                gh = min(np.uint32(g * factor + shift), np.uint32(h * factor + shift))
                abcd, efgh = min(ab, cd), min(ef, gh)
                eight = min(abcd, efgh)
                own[place] = min(own[place], eight)
            item += 8
        while item < end:
            a = np.uint32(hashes[item])
            for place in range(places):
                own[place] = min(own[place], np.uint32(a * factors[place] + shifts[place]))
            item += 1


@njit()
def _least_of_bins(
    hashes: np.ndarray, offsets: np.ndarray, salt: np.uint64, least: np.ndarray
) -> None:
    """Lower one place of a row per element: the bin that its hash falls into."""
    places = np.uint64(least.shape[1])
    half = np.uint64(32)
    for row in range(len(offsets) - 1):
        for item in range(offsets[row], offsets[row + 1]):
            code = mix64(hashes[item] ^ salt)
            bin_ = ((code & np.uint64(0xFFFFFFFF)) * places) >> half
            least[row, bin_] = min(least[row, bin_], np.uint32(code >> half))


@njit()
def _densify(least: np.ndarray, salt: np.uint64, filled: np.ndarray) -> None:
    """Fill each empty bin from one that is not, drawn alike for all sets."""
    rows, places = least.shape
    for row in range(rows):
        has_any = False
        for place in range(places):
            filled[row, place] = least[row, place]
            has_any |= least[row, place] != EMPTY
        for place in range(places if has_any else 0):
            draw = np.uint64(0)
            source = place
            while least[row, source] == EMPTY:
                draw += np.uint64(1)
                code = mix64(salt ^ (np.uint64(place) << np.uint64(32)) ^ draw)
                source = np.int64(
                    ((code & np.uint64(0xFFFFFFFF)) * np.uint64(places)) >> np.uint64(32)
                )
            filled[row, place] = least[row, source]


@njit_inner()
def equal_places(one: np.ndarray, other: np.ndarray) -> np.int64:
    """Count the places in which two signatures of one width agree."""
    total = np.int64(0)
    for first in range(0, len(one), _COUNTED):
        # Slices are counted from 0: places that could be negative keep the loop out of registers,
        # which hold twice as many counts of 16 bits as of 32.
        part, rest = one[first : first + _COUNTED], other[first : first + _COUNTED]
        same = np.uint16(0)
        for place in range(len(part)):
            same = np.uint16(same + np.uint16(part[place] == rest[place]))
        total += np.int64(same)
    return total


@njit()
def agreement(signed: np.ndarray, rows: np.ndarray, ones: np.ndarray, found: np.ndarray) -> None:
    """Count the places in which rows agree with each of some signatures.

    Args:
        signed: signatures of one width, [N, K].
        rows: which of them, int64 [R].
        ones: signatures of the same width, [S, K].
        found: takes the counts, int64 [S, R].
    """
    # A row comes from memory, or from a mapped file, once for all signatures.
    for number in range(len(rows)):
        row = signed[rows[number]]
        for other in range(len(ones)):
            found[other, number] = equal_places(row, ones[other])


def similarity(agreed: NDArray[np.int64], num_hashes: int, bits: int = 32) -> NDArray[np.float64]:
    """Return estimates of Jaccard similarity.

    Args:
        agreed: equal places of two signatures, [N].
        num_hashes: places K of a signature.
        bits: width of a place.

    Returns:
        [N], 0 to 1. The standard error is sqrt(J (1 - J) / K) for 32 bits.

    Source: Broder 1997, "On the resemblance and containment of documents"; Li and König 2010,
        arXiv 0910.3349, for fewer bits: places that differ agree by chance in 2^-bits.
    """
    chance = 0.0 if bits == BITS[-1] else 2.0**-bits
    return np.maximum((agreed / num_hashes - chance) / (1 - chance), 0.0)


def truncated(signed: NDArray[np.uint32], bits: int) -> NDArray[np.unsignedinteger]:
    """Return signatures of which each place keeps its lowest bits.

    Args:
        signed: [N, K].
        bits: 8, 16 or 32.

    Returns:
        [N, K] of that width.

    Raises:
        ConfigError: another width.

    Source: Li and König 2010, arXiv 0910.3349.
    """
    if bits not in BITS:
        raise ConfigError(f"signatures of {bits} bits a place", hint="give 8, 16 or 32")
    return signed.astype(np.dtype(f"u{bits // 8}"))


class MinHasher:
    """Turns sets of hashes into signatures whose agreement estimates Jaccard similarity.

    Signatures of parts are merged by their minima (`np.minimum`), whatever the order; `finished`
    comes after that.

    Attributes:
        num_hashes: length K of a signature.
        scheme: "k-permutation" permutes each element K times; "one-permutation" puts each into one
            of K bins and later fills those that are empty: K times less work, for sets of several K
            elements.
    """

    def __init__(
        self,
        seed: int = 0,
        num_hashes: int = 112,
        scheme: Literal["k-permutation", "one-permutation"] = "k-permutation",
    ) -> None:
        """Draw the hash functions.

        Args:
            seed: seed of the draw.
            num_hashes: length K of a signature, at least 1.
            scheme: "k-permutation" or "one-permutation".

        Raises:
            ConfigError: no place, or another scheme.
        """
        if num_hashes < 1 or scheme not in ("k-permutation", "one-permutation"):
            raise ConfigError(
                f"a MinHash of {num_hashes} places by {scheme}",
                hint="give 1 place or more, by k-permutation or one-permutation",
            )
        self.num_hashes, self.scheme = num_hashes, scheme
        rng = np.random.default_rng(seed)
        # An odd factor makes x -> ax + b a permutation of 32-bit numbers. Elements come as hashes,
        # so a linear map needs to mix no further.
        self._factors = rng.integers(0, 1 << 32, num_hashes, np.uint32) | np.uint32(1)
        self._shifts = rng.integers(0, 1 << 32, num_hashes, np.uint32)
        self._salt = rng.integers(0, 1 << 64, dtype=np.uint64)

    def empty(self, count: int) -> NDArray[np.uint32]:
        """Return signatures of `count` sets without elements, [count, K]."""
        return np.full((count, self.num_hashes), EMPTY)

    def update(
        self, least: NDArray[np.uint32], hashes: NDArray[np.uint64], offsets: NDArray[np.int64]
    ) -> None:
        """Add elements to sets.

        Args:
            least: signatures that are lowered in place, [N, K].
            hashes: elements of all sets, well mixed as those of `hash_column`, one set after the
                other; one that stands twice changes nothing.
            offsets: where each set begins, and the end, [N + 1].
        """
        if self.scheme == "k-permutation":
            _least_of_sets(hashes, offsets, self._factors, self._shifts, least)
        else:
            _least_of_bins(hashes, offsets, self._salt, least)

    def finished(self, least: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return signatures to compare: bins without an element are filled from others.

        Args:
            least: [N, K]; merged before, if at all.

        Returns:
            [N, K]; all places of an empty set stay `EMPTY`.

        Source: Shrivastava 2017, arXiv 1703.04664 (optimal densification).
        """
        if self.scheme == "k-permutation":
            return least
        filled = np.empty_like(least)
        _densify(least, self._salt, filled)
        return filled

    def signatures(
        self, hashes: NDArray[np.uint64], offsets: NDArray[np.int64]
    ) -> NDArray[np.uint32]:
        """Sign sets.

        Args:
            hashes: elements of all sets, one set after the other.
            offsets: where each set begins, and the end, [N + 1].

        Returns:
            [N, K]; all places of an empty set are `EMPTY`.
        """
        least = self.empty(len(offsets) - 1)
        self.update(least, hashes, offsets)
        return self.finished(least)

    def signature(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """Sign one set.

        Args:
            hashes: its elements, [N].

        Returns:
            [K].
        """
        return self.signatures(hashes, np.array([0, len(hashes)], np.int64))[0]
