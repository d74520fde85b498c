"""Runs of three letters of texts, as sorted hashes, and how many of them two texts share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch.hashing import mix64
from steelyard.jit import njit

__all__ = ["Grams", "grams_of"]


@njit()
def _hash_grams(payload: np.ndarray, ends: np.ndarray, found: np.ndarray) -> None:
    """Hash runs of three bytes, a blank before and behind each text counted in."""
    at = 0
    for row in range(len(ends) - 1):
        first, last = ends[row], ends[row + 1]
        before, here = np.uint64(32), np.uint64(32)
        for place in range(first, last + 1):
            after = np.uint64(payload[place]) if place < last else np.uint64(32)
            found[at] = mix64((before << np.uint64(16)) | (here << np.uint64(8)) | after)
            before, here = here, after
            at += 1


@njit()
def _shared(
    hashes: np.ndarray,
    ends: np.ndarray,
    others: np.ndarray,
    other_ends: np.ndarray,
    pairs: np.ndarray,
    found: np.ndarray,
) -> None:
    """Return the Dice coefficient of pairs of sorted sets, NaN where one is empty."""
    for number in range(len(pairs)):
        left, stop = ends[pairs[number, 0]], ends[pairs[number, 0] + 1]
        right, halt = other_ends[pairs[number, 1]], other_ends[pairs[number, 1] + 1]
        size, count = stop - left + halt - right, 0
        if left == stop or right == halt:
            found[number] = np.nan
            continue
        while left < stop and right < halt:
            if hashes[left] == others[right]:
                count += 1
                left += 1
                right += 1
            elif hashes[left] < others[right]:
                left += 1
            else:
                right += 1
        found[number] = 2 * count / size


@dataclass(frozen=True, slots=True)
class Grams:
    """Sets of runs of letters.

    Attributes:
        hashes: sets one after the other, each ascending [all].
        ends: where each begins, and the end [N + 1].
    """

    hashes: NDArray[np.uint64]
    ends: NDArray[np.int64]

    def similarity(self, others: "Grams", pairs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the Dice coefficients of pairs, NaN where a text is missing or empty.

        Args:
            others: sets of the second texts.
            pairs: places of the first and second [P, 2].

        Returns:
            0 to 1 [P].
        """
        found = np.empty(len(pairs))
        _shared(self.hashes, self.ends, others.hashes, others.ends, pairs, found)
        return found


def grams_of(texts: Sequence[str | None]) -> Grams:
    """Return the runs of three letters of texts, in any case.

    Args:
        texts: texts; a missing or empty one has none.

    Returns:
        Their sets.
    """
    raw = [" ".join((text or "").lower().split()).encode() for text in texts]
    sizes = np.array([len(item) + 1 if item else 0 for item in raw], np.int64)
    kept = [item for item in raw if item]
    ends = np.cumsum([0, *map(len, kept)], dtype=np.int64)
    found = np.empty(int(sizes.sum()), np.uint64)
    _hash_grams(np.frombuffer(b"".join(kept) or b"\0", np.uint8), ends, found)
    rows = np.repeat(np.arange(len(raw)), sizes)
    order = np.lexsort((found, rows))
    found, rows = found[order], rows[order]
    is_new = np.ones(len(found), bool)
    is_new[1:] = (found[1:] != found[:-1]) | (rows[1:] != rows[:-1])
    counts = np.bincount(rows[is_new], minlength=len(raw))
    return Grams(found[is_new], np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
