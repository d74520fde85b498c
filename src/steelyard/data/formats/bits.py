"""Kernels that pack and unpack bits: fixed widths, differences, and prefix codes."""

from typing import Any

import numpy as np

from steelyard.data.formats.memory import load8, store8
from steelyard.jit import njit

__all__ = [
    "BLOCK",
    "CODE_BLOCK",
    "add_up",
    "decode_prefix",
    "encode_prefix",
    "pack_blocks",
    "take_prefix",
    "take_running",
    "take_widths",
    "unpack_blocks",
]

BLOCK = 1024
"""Values that share a reference and a width."""
CODE_BLOCK = 128
"""Values between two places at which prefix codes can be entered."""
_LOOKUP = 12
_SPARE = 16
"""Bytes after each packed buffer, so that a load of eight bytes stays inside."""


@njit()
def _put(raw: np.ndarray, bit: Any, value: Any, width: Any) -> None:
    """Or a value of up to 64 bits into zeroed bytes at a bit."""
    place, shift = bit >> 3, np.uint64(bit & 7)
    store8(raw, place, load8(raw, place) | (value << shift))
    if width + (bit & 7) > 64:
        raw[place + 8] |= np.uint8(value >> (np.uint64(64) - shift))


@njit()
def _get(raw: np.ndarray, bit: Any, width: Any) -> Any:
    """Return up to 64 bits from a bit on."""
    place, shift = bit >> 3, np.uint64(bit & 7)
    value = load8(raw, place) >> shift
    if width + (bit & 7) > 64:
        value |= np.uint64(raw[place + 8]) << (np.uint64(64) - shift)
    if width == 64:
        return value
    return value & ((np.uint64(1) << np.uint64(width)) - np.uint64(1))


@njit()
def pack_blocks(
    values: np.ndarray, least: np.ndarray, widths: np.ndarray, starts: np.ndarray, raw: np.ndarray
) -> None:
    """Pack values less the least of their block.

    Args:
        values: int64, [values].
        least: least value of each block, [blocks].
        widths: bits of each value of a block, [blocks].
        starts: byte at which each block begins, [blocks].
        raw: zeros, filled, [bytes + 16].
    """
    for block in range(len(least)):
        width, bit = np.int64(widths[block]), np.int64(starts[block]) * 8
        if not width:
            continue
        for row in range(block * BLOCK, min((block + 1) * BLOCK, len(values))):
            _put(raw, bit, np.uint64(values[row]) - np.uint64(least[block]), width)
            bit += width


@njit()
def unpack_blocks(
    raw: np.ndarray,
    least: np.ndarray,
    widths: np.ndarray,
    starts: np.ndarray,
    first: Any,
    found: np.ndarray,
) -> None:
    """Unpack values of neighbouring blocks.

    Args:
        raw: packed bytes, [bytes + 16].
        least: least value of each block, [blocks].
        widths: bits of each value of a block, [blocks].
        starts: byte at which each block begins, [blocks].
        first: block at which to begin.
        found: signed integers, filled, [values].
    """
    size = len(found)
    for block in range(first, first + (size + BLOCK - 1) // BLOCK):
        width, base = np.int64(widths[block]), np.int64(least[block])
        begin = (block - first) * BLOCK
        end = min(begin + BLOCK, size)
        bit = np.int64(starts[block]) * 8
        if not width:
            found[begin:end] = base
        elif width <= 56:
            # A value and the bits before it fit into one load of eight bytes.
            mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
            for row in range(end - begin):
                at = bit + row * width
                value = (load8(raw, at >> 3) >> np.uint64(at & 7)) & mask
                found[begin + row] = np.int64(value) + base
        else:
            for row in range(end - begin):
                found[begin + row] = np.int64(_get(raw, bit + row * width, width)) + base


@njit()
def take_widths(
    raw: np.ndarray,
    least: np.ndarray,
    widths: np.ndarray,
    starts: np.ndarray,
    rows: np.ndarray,
    found: np.ndarray,
) -> None:
    """Unpack single values.

    Args:
        raw: packed bytes, [bytes + 16].
        least: least value of each block, [blocks].
        widths: bits of each value of a block, [blocks].
        starts: byte at which each block begins, [blocks].
        rows: which, [rows].
        found: int64, filled, [rows].
    """
    for place in range(len(rows)):
        block = rows[place] // BLOCK
        width = np.int64(widths[block])
        value = np.uint64(0)
        if width:
            bit = np.int64(starts[block]) * 8 + (rows[place] % BLOCK) * width
            value = _get(raw, bit, width)
        found[place] = np.int64(value) + np.int64(least[block])


@njit()
def add_up(found: np.ndarray, heads: np.ndarray, first: Any) -> None:
    """Turn differences into values, block by block.

    Args:
        found: differences, of which the first of each block is left out; turned in place, [values].
        heads: first value of each block, [blocks].
        first: block at which `found` begins.
    """
    for begin in range(0, len(found), BLOCK):
        value = np.int64(heads[first + begin // BLOCK])
        found[begin] = value
        for row in range(begin + 1, min(begin + BLOCK, len(found))):
            value += np.int64(found[row])
            found[row] = value


@njit()
def take_running(
    raw: np.ndarray,
    least: np.ndarray,
    widths: np.ndarray,
    starts: np.ndarray,
    heads: np.ndarray,
    rows: np.ndarray,
    found: np.ndarray,
) -> None:
    """Take single values of differences, each from the head of its block on.

    Args:
        raw: packed differences, [bytes + 16].
        least: least value of each block, [blocks].
        widths: bits of each difference of a block, [blocks].
        starts: byte at which each block begins, [blocks].
        heads: first value of each block, [blocks].
        rows: which, [rows].
        found: int64, filled, [rows].
    """
    for place in range(len(rows)):
        block, inside = rows[place] // BLOCK, rows[place] % BLOCK
        width, value = np.int64(widths[block]), np.int64(heads[block])
        value += inside * np.int64(least[block])
        bit = np.int64(starts[block]) * 8
        for step in range(1, inside + 1 if width else 0):
            value += np.int64(_get(raw, bit + step * width, width))
        found[place] = value


@njit()
def _symbol(code: Any) -> Any:
    """Return a code's symbol and the bits that follow it.

    Codes below 32 are symbols; larger ones are their highest five bits, the others follow.
    """
    if code < 32:
        return code, 0
    extra = 0
    while code >> (extra + 5):
        extra += 1
    return 16 + extra * 16 + ((code >> extra) & 15), extra


@njit()
def encode_prefix(
    codes: np.ndarray,
    lengths: np.ndarray,
    words: np.ndarray,
    sizes: np.ndarray,
    raw: np.ndarray,
) -> Any:
    """Write prefix codes; without room for bytes only count.

    Args:
        codes: integers from 0, [values].
        lengths: bits of each symbol, [symbols]; where all are 0, uses are counted into `words`.
        words: code of each symbol, or its uses, [symbols].
        sizes: filled with the bits of each block of 128, [blocks].
        raw: zeros, filled, [bytes + 16]; may be empty to only count.

    Returns:
        Bits written.
    """
    bit = 0
    for row in range(len(codes)):
        symbol, extra = _symbol(np.int64(codes[row]))
        if not len(raw):
            words[symbol] += 1
            continue
        length = np.int64(lengths[symbol])
        rest = np.uint64(codes[row]) & ((np.uint64(1) << np.uint64(extra)) - np.uint64(1))
        _put(raw, bit, np.uint64(words[symbol]) | (rest << np.uint64(length)), length + extra)
        bit += length + extra
        sizes[row // CODE_BLOCK] += length + extra
    return bit


@njit()
def decode_prefix(
    raw: np.ndarray, places: np.ndarray, table: np.ndarray, first: Any, found: np.ndarray
) -> None:
    """Read prefix codes of neighbouring blocks, four blocks side by side.

    One code must be read before the next one's place is known; blocks do not wait for each other.

    Args:
        raw: bytes, [bytes + 16].
        places: first bit of each block, [blocks].
        table: for the next twelve bits: bits of the code, bits that follow, and the base, [4096].
        first: block at which to begin.
        found: signed integers, filled, [values].
    """
    whole = len(found) // CODE_BLOCK
    block = 0
    while block + 4 <= whole:
        a, b = np.int64(places[first + block]), np.int64(places[first + block + 1])
        c, d = np.int64(places[first + block + 2]), np.int64(places[first + block + 3])
        at = block * CODE_BLOCK
        for row in range(at, at + CODE_BLOCK):
            found[row], a = _next(raw, table, a)
            found[row + CODE_BLOCK], b = _next(raw, table, b)
            found[row + 2 * CODE_BLOCK], c = _next(raw, table, c)
            found[row + 3 * CODE_BLOCK], d = _next(raw, table, d)
        block += 4
    while block * CODE_BLOCK < len(found):
        bit = np.int64(places[first + block])
        for row in range(block * CODE_BLOCK, min((block + 1) * CODE_BLOCK, len(found))):
            found[row], bit = _next(raw, table, bit)
        block += 1


@njit()
def _next(raw: np.ndarray, table: np.ndarray, bit: Any) -> Any:
    """Return the code at a bit, and the bit after it."""
    word = load8(raw, bit >> 3) >> np.uint64(bit & 7)
    entry = np.int64(table[np.int64(word & np.uint64((1 << _LOOKUP) - 1))])
    length, extra = entry & 15, (entry >> 4) & 15
    rest = (word >> np.uint64(length)) & ((np.uint64(1) << np.uint64(extra)) - np.uint64(1))
    return (entry >> 8) + np.int64(rest), bit + length + extra


@njit()
def take_prefix(
    raw: np.ndarray, places: np.ndarray, table: np.ndarray, rows: np.ndarray, found: np.ndarray
) -> None:
    """Read single values of prefix codes, each from the start of its block on.

    Args:
        raw: bytes, [bytes + 16].
        places: first bit of each block, [blocks].
        table: see `decode_prefix`, [4096].
        rows: which, [rows].
        found: int64, filled, [rows].
    """
    for place in range(len(rows)):
        bit, value = np.int64(places[rows[place] // CODE_BLOCK]), 0
        for _ in range(rows[place] % CODE_BLOCK + 1):
            value, bit = _next(raw, table, bit)
        found[place] = value
