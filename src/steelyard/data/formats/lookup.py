"""Kernels that put values of a dictionary in the places of their codes."""

import numpy as np

from steelyard.data.formats.bits import load8, store8
from steelyard.jit import njit

__all__ = ["copy_texts", "gather", "text_offsets"]


@njit()
def gather(kept: np.ndarray, codes: np.ndarray, found: np.ndarray) -> None:
    """Fill in values of a dictionary.

    Args:
        kept: the values, [values].
        codes: which, [rows].
        found: filled, [rows].
    """
    for row in range(len(codes)):
        found[row] = kept[codes[row]]


@njit()
def text_offsets(ends: np.ndarray, codes: np.ndarray, offsets: np.ndarray) -> None:
    """Fill in where texts of a dictionary begin when they stand behind each other.

    Args:
        ends: begins of the texts and the end of the last, [texts + 1].
        codes: which, [rows].
        offsets: filled from 0 on, [rows + 1].
    """
    total = np.int64(0)
    offsets[0] = 0
    for row in range(len(codes)):
        total += np.int64(ends[codes[row] + 1]) - np.int64(ends[codes[row]])
        offsets[row + 1] = total


@njit()
def copy_texts(
    heap: np.ndarray, ends: np.ndarray, codes: np.ndarray, offsets: np.ndarray, found: np.ndarray
) -> None:
    """Copy texts of a dictionary behind each other.

    Args:
        heap: their bytes, [bytes + 16].
        ends: begins of the texts and the end of the last, [texts + 1].
        codes: which, [rows].
        offsets: where each is to begin, and the end of the last, [rows + 1].
        found: filled, [bytes + 16].
    """
    for row in range(len(codes)):
        place, to = np.int64(ends[codes[row]]), np.int64(offsets[row])
        size = np.int64(offsets[row + 1]) - to
        # Sixteen bytes at once run over the end; the next text overwrites what is too many. Most
        # texts are that short, and a branch on the length of each would be guessed wrong often.
        store8(found, to, load8(heap, place))
        store8(found, to + 8, load8(heap, place + 8))
        for at in range(16, size, 8):
            store8(found, to + at, load8(heap, place + at))
