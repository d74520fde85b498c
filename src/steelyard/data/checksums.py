"""Checksums of blocks of memory, as fast as memory is read."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit

__all__ = ["BLOCK_BYTES", "block_sums", "first_damaged", "word_sum"]

BLOCK_BYTES = 1 << 16
"""Bytes under one checksum."""
_WORDS = BLOCK_BYTES // 8
_PRIME = np.uint64(0x9E3779B97F4A7C15)


@njit()
def word_sum(words: np.ndarray, tail: np.ndarray) -> Any:
    """Return 32 bits that change with any byte.

    Each of eight lanes is multiplied by an odd number after each word, which is one to one: a
    change of one word always changes its lane.
    """
    a = b = c = d = e = f = g = h = _PRIME
    whole = len(words) // 8 * 8
    for at in range(0, whole, 8):
        a = (a ^ words[at]) * _PRIME
        b = (b ^ words[at + 1]) * _PRIME
        c = (c ^ words[at + 2]) * _PRIME
        d = (d ^ words[at + 3]) * _PRIME
        e = (e ^ words[at + 4]) * _PRIME
        f = (f ^ words[at + 5]) * _PRIME
        g = (g ^ words[at + 6]) * _PRIME
        h = (h ^ words[at + 7]) * _PRIME
    total = np.uint64(len(words) * 8 + len(tail))
    for lane in (a, b, c, d, e, f, g, h):
        total = (total ^ lane ^ (lane >> np.uint64(29))) * _PRIME
        total ^= total >> np.uint64(32)
    for at in range(whole, len(words)):
        total = (total ^ words[at]) * _PRIME
        total ^= total >> np.uint64(32)
    for at in range(len(tail)):
        total = (total ^ np.uint64(tail[at])) * _PRIME
        total ^= total >> np.uint64(32)
    return np.int64(total & np.uint64(0xFFFFFFFF))


@njit()
def _sums(words: np.ndarray, tail: np.ndarray, found: np.ndarray) -> None:
    """Fill in the checksum of each block."""
    last = len(found) - 1
    for block in range(len(found)):
        part = words[block * _WORDS : (block + 1) * _WORDS]
        found[block] = word_sum(part, tail if block == last else tail[:0])


@njit()
def _first_damaged(
    words: np.ndarray, tail: np.ndarray, sums: np.ndarray, done: np.ndarray, first: int, last: int
) -> int:
    """Return the first block that differs, -1 for none; others are marked as done."""
    for block in range(first, last):
        if done[block]:
            continue
        part = words[block * _WORDS : (block + 1) * _WORDS]
        if word_sum(part, tail if block == len(sums) - 1 else tail[:0]) != np.int64(sums[block]):
            return block
        done[block] = 1
    return -1


def _parts(raw: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    whole = len(raw) // 8 * 8
    return raw[:whole].view("<u8"), raw[whole:]


def block_sums(raw: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return a checksum for each 64 KiB.

    Args:
        raw: bytes that begin at a multiple of eight, [bytes].

    Returns:
        The checksums, [blocks]; a change within one word is always seen, another one but for one
        case in four billion.
    """
    found = np.zeros(-(-len(raw) // BLOCK_BYTES), "<u4")
    _sums(*_parts(raw), found)
    return found


def first_damaged(
    raw: NDArray[np.uint8],
    sums: NDArray[np.uint32],
    done: NDArray[np.uint8],
    first: int,
    last: int,
) -> int:
    """Check blocks that were not checked before.

    Args:
        raw: bytes that begin at a multiple of eight, [bytes].
        sums: what `block_sums` found, [blocks].
        done: 1 for blocks that were checked, filled in, [blocks].
        first: block at which to begin.
        last: one past the last.

    Returns:
        The first damaged block, -1 for none.
    """
    return int(_first_damaged(*_parts(raw), sums, done, first, last))
