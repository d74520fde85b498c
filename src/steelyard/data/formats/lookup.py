"""Kernels that put values of a dictionary in the places of their codes."""

import numpy as np

from steelyard.data.formats.memory import copy32, prefetch
from steelyard.jit import njit

__all__ = ["ROOM", "copy_texts", "gather", "repeat_runs", "text_offsets"]

ROOM = 32
"""Bytes behind texts that may be overwritten."""
_AHEAD = 16


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
def repeat_runs(kept: np.ndarray, ends: np.ndarray, first: int, found: np.ndarray) -> None:
    """Fill in values of runs.

    Args:
        kept: value of each run, [runs].
        ends: one past the last row of each, [runs].
        first: row at which `found` begins, in the first run.
        found: filled, [rows].
    """
    rows, at = len(found), 0
    for run in range(len(ends)):
        value, end = kept[run], min(np.int64(ends[run]) - first, rows)
        if at + 8 <= rows:
            # So many at once; the next run overwrites what is too many.
            for row in range(at, at + 8):
                found[row] = value
            at += 8
        for row in range(at, end):
            found[row] = value
        at = end


@njit()
def text_offsets(lengths: np.ndarray, codes: np.ndarray, offsets: np.ndarray) -> None:
    """Fill in where texts of a dictionary begin when they stand behind each other.

    Args:
        lengths: bytes of the texts, [texts].
        codes: which, [rows].
        offsets: filled from 0 on, [rows + 1].
    """
    total = np.int64(0)
    offsets[0] = 0
    for row in range(len(codes)):
        total += np.int64(lengths[codes[row]])
        offsets[row + 1] = total


@njit()
def copy_texts(
    heap: np.ndarray, ends: np.ndarray, codes: np.ndarray, offsets: np.ndarray, found: np.ndarray
) -> None:
    """Copy texts of a dictionary behind each other.

    Args:
        heap: their bytes, [bytes].
        ends: begins of the texts and the end of the last, [texts + 1].
        codes: which, [rows].
        offsets: where each is to begin, and the end of the last, [rows + 1].
        found: filled, [bytes + 32].
    """
    rows, last = len(codes), len(heap) - ROOM
    for row in range(rows):
        if row + _AHEAD < rows:
            # A large dictionary lies outside of the near caches, and codes lead anywhere in it.
            ahead = np.int64(ends[codes[row + _AHEAD]])
            prefetch(heap, ahead)
            prefetch(heap, ahead + 64)
        place, to = np.int64(ends[codes[row]]), np.int64(offsets[row])
        size = np.int64(offsets[row + 1]) - to
        if place + size <= last:
            # So many bytes at once run over the end; the next text overwrites what is too many.
            # Most texts are that short, and a branch on the length would be guessed wrong often.
            copy32(found, to, heap, place)
            for at in range(32, size, 32):
                copy32(found, to + at, heap, place + at)
        else:
            for at in range(size):
                found[to + at] = heap[place + at]
