"""Columns of integers as bytes: the smallest of a few encodings, any part of which can be read."""

import heapq
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.formats.bits import (
    BLOCK,
    CODE_BLOCK,
    add_up,
    decode_prefix,
    encode_prefix,
    pack_blocks,
    take_prefix,
    take_running,
    take_widths,
    unpack_blocks,
)
from steelyard.data.formats.lookup import repeat_runs
from steelyard.data.formats.memory import empty
from steelyard.errors import DataError

__all__ = ["KINDS", "Stream", "encode_integers"]

KINDS = ("packed", "delta", "runs", "prefix")
"""Frame of reference with bit packing; differences, packed; run lengths; prefix codes."""
_HEAD = struct.Struct("<BBHIQ")
"""Kind, a width, nothing, a count, values."""
_SPARE = 16
_MOST_CODES = 1 << 20
_SYMBOLS = 272
_LONGEST = 12
_PREFIX_SAVES, _RUNS_SAVE, _DELTA_SAVES = 0.88, 0.6, 0.9
"""Shares of the packed size from which an encoding that takes longer to read is worth it."""


def _least_and_widths(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the least value and the width of each block."""
    starts = np.arange(0, len(values), BLOCK)
    least, most = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    return least, _bits(most.view(np.uint64) - least.view(np.uint64))


def _bits(values: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the bits that each value needs."""
    steps = np.array([1 << bit for bit in range(64)], np.uint64)
    return np.searchsorted(steps, values, side="right").astype(np.uint8)


def _packed_bytes(values: NDArray[np.int64]) -> int:
    """Return the bytes of packed values."""
    widths = _least_and_widths(values)[1].astype(np.int64)
    return _HEAD.size + int(widths.sum()) * BLOCK // 8 + 13 * len(widths)


def encode_integers(values: NDArray[np.int64], *, only: str = "") -> bytes:
    """Return integers as bytes, in the encoding that is smallest or nearly so and fast to read.

    Args:
        values: int64, [values].
        only: one of `KINDS` to use in any case; prefix codes need values in [0, 2^20).

    Returns:
        What `Stream` reads.
    """
    if not len(values):
        return _HEAD.pack(0, 0, 0, 0, 0) + bytes(_SPARE)
    kind = only or _chosen(values)
    encode = {"packed": _pack, "delta": _differences, "runs": _runs, "prefix": _prefix}
    return encode[kind](values)


def _chosen(values: NDArray[np.int64]) -> str:
    """Return the encoding of the least bytes; a slower one must save enough."""
    costs = {"packed": float(_packed_bytes(values))}
    changes = int(np.count_nonzero(values[1:] != values[:-1])) + 1
    costs["runs"] = changes * (4.0 + _width_bytes(values)) / _RUNS_SAVE
    if len(values) > 1:
        steps = _steps(values)
        costs["delta"] = (_packed_bytes(steps) + 8.0 * -(-len(values) // BLOCK)) / _DELTA_SAVES
    least, most = int(values.min()), int(values.max())
    if least >= 0 and most < _MOST_CODES and len(values) > 4 * _SYMBOLS:
        costs["prefix"] = _prefix_bytes(values) / _PREFIX_SAVES
    return min(costs, key=costs.__getitem__)


def _width_bytes(values: NDArray[np.int64]) -> int:
    """Return how many bytes each value takes when all take as many: 1, 2, 4 or 8."""
    least, most = int(values.min()), int(values.max())
    return next(
        size
        for size in (1, 2, 4, 8)
        if -(1 << (8 * size - 1)) <= least and most < 1 << (8 * size - 1)
    )


def _steps(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return differences; that before the first value of a block is as the one behind it."""
    steps = np.empty_like(values)
    np.subtract(values[1:], values[:-1], out=steps[1:])
    heads = np.arange(0, len(values), BLOCK)
    steps[heads] = steps[np.minimum(heads + 1, len(values) - 1)]
    if heads[-1] == len(values) - 1:
        steps[-1] = 0
    return steps


def _pack(values: NDArray[np.int64]) -> bytes:
    least, widths = _least_and_widths(values)
    # Equal widths save the list of widths and starts, and the least value stands once.
    wide = _bits(np.array([int(values.max()) - int(values.min())], np.uint64))
    flat = int(wide[0]) * len(least) * BLOCK // 8
    if flat <= int(widths.astype(np.int64).sum()) * BLOCK // 8 + 13 * len(least):
        least, widths = np.full_like(least, values.min()), np.repeat(wide, len(least))
    return _HEAD.pack(0, 0, 0, len(least), len(values)) + _blocks(values, least, widths)


def _starts(widths: NDArray[np.uint8], count: int) -> NDArray[np.int64]:
    """Return the byte at which each block begins, and the end of the last."""
    rows = np.full(len(widths), BLOCK)
    rows[-1] = count - BLOCK * (len(widths) - 1)
    sizes = (widths.astype(np.int64) * rows + 7) // 8
    return np.concatenate([[0], np.cumsum(sizes)])


def _blocks(
    values: NDArray[np.int64], least: NDArray[np.int64], widths: NDArray[np.uint8]
) -> bytes:
    """Return least values, widths and packed values."""
    starts = _starts(widths, len(values))
    raw = np.zeros(int(starts[-1]) + _SPARE, np.uint8)
    pack_blocks(values, least, widths, starts, raw)
    is_flat = bool((least == least[0]).all() and (widths == widths[0]).all())
    if is_flat:
        least, widths = least[:1], widths[:1]
    head = struct.pack("<Q", is_flat) + least.tobytes() + _filled(widths.tobytes())
    return head + raw.tobytes()


def _filled(raw: bytes) -> bytes:
    """Fill bytes up to a multiple of eight."""
    return raw + bytes(-len(raw) % 8)


def _differences(values: NDArray[np.int64]) -> bytes:
    steps = _steps(values)
    least, widths = _least_and_widths(steps)
    heads = values[::BLOCK]
    head = _HEAD.pack(1, 0, 0, len(least), len(values))
    return head + heads.tobytes() + _blocks(steps, least, widths)


def _runs(values: NDArray[np.int64]) -> bytes:
    ends = np.append(np.flatnonzero(values[1:] != values[:-1]) + 1, len(values))
    width = _width_bytes(values)
    kept = values[ends - 1].astype(f"<i{width}")
    head = _HEAD.pack(2, width, 0, len(ends), len(values))
    return head + _filled(ends.astype("<u4").tobytes()) + kept.tobytes() + bytes(_SPARE)


def _uses(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how often each symbol is used."""
    uses = np.zeros(_SYMBOLS, np.int64)
    nothing = np.zeros(0, np.uint8)
    encode_prefix(values, np.zeros(_SYMBOLS, np.uint8), uses, np.zeros(0, np.uint16), nothing)
    return uses


def _extras() -> NDArray[np.int64]:
    """Return the bits that follow each symbol."""
    symbols = np.arange(_SYMBOLS)
    return np.where(symbols < 32, 0, (symbols - 16) // 16)


def _prefix_bytes(values: NDArray[np.int64]) -> float:
    """Return nearly the bytes of prefix codes, by the entropy of the symbols."""
    uses = _uses(values)
    present = uses[uses > 0]
    share = present / len(values)
    # A symbol takes one bit at least, however frequent.
    bits = float((present * np.maximum(-np.log2(share), 1.0)).sum())
    extra = float((uses * _extras()).sum())
    return (bits + extra) / 8 + 2 * len(values) / CODE_BLOCK + _SYMBOLS + _HEAD.size


def _code_lengths(uses: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the bits of each symbol's code, at most twelve.

    Source: Huffman 1952; too long codes are shortened by evening out rare symbols.
    """
    weights = uses.copy()
    while True:
        lengths = _huffman(weights)
        if lengths.max() <= _LONGEST:
            return lengths
        weights = np.where(weights > 0, (weights + 1) // 2 + 1, 0)


def _huffman(uses: NDArray[np.int64]) -> NDArray[np.uint8]:
    heap: list[tuple[int, int, tuple[int, ...]]]
    heap = [(int(uses[symbol]), int(symbol), (int(symbol),)) for symbol in np.flatnonzero(uses)]
    lengths = np.zeros(len(uses), np.uint8)
    if len(heap) == 1:
        lengths[heap[0][1]] = 1
        return lengths
    heapq.heapify(heap)
    while len(heap) > 1:
        (one, first, members), (two, _, others) = heapq.heappop(heap), heapq.heappop(heap)
        joined = members + others
        lengths[list(joined)] += 1
        heapq.heappush(heap, (one + two, first, joined))
    return lengths


def _code_words(lengths: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return canonical codes, the first bit of each lowest."""
    words, code, before = np.zeros(len(lengths), np.int64), 0, 0
    for symbol in np.lexsort((np.arange(len(lengths)), lengths)):
        length = int(lengths[symbol])
        if not length:
            continue
        code <<= length - before
        before = length
        words[symbol] = int(f"{code:0{length}b}"[::-1], 2)
        code += 1
    return words


def _lookup(lengths: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return by twelve bits: bits of the code, bits that follow, and the base, in one number."""
    table = np.zeros(1 << _LONGEST, np.int32)
    words, extras = _code_words(lengths), _extras()
    for symbol in np.flatnonzero(lengths).tolist():
        length, extra = int(lengths[symbol]), int(extras[symbol])
        base = symbol if symbol < 32 else (16 + symbol % 16) << extra
        table[int(words[symbol]) :: 1 << length] = length | extra << 4 | base << 8
    return table


def _prefix(values: NDArray[np.int64]) -> bytes:
    uses = _uses(values)
    lengths = _code_lengths(uses)
    bits = int((uses * (lengths + _extras())).sum())
    raw = np.zeros((bits + 7) // 8 + _SPARE, np.uint8)
    sizes = np.zeros(-(-len(values) // CODE_BLOCK), np.uint16)
    encode_prefix(values, lengths, _code_words(lengths), sizes, raw)
    head = _HEAD.pack(3, 0, 0, len(sizes), len(values))
    return head + lengths.tobytes() + _filled(sizes.tobytes()) + raw.tobytes()


class Stream:
    """Integers in one of the encodings.

    Attributes:
        kind: its encoding, of `KINDS`.
        count: values.
    """

    def __init__(
        self, raw: NDArray[np.uint8], check: Callable[[int, int], Any] = lambda first, last: None
    ) -> None:
        """Read the head.

        Args:
            raw: what `encode_integers` made, [bytes].
            check: is told the range of bytes that is about to be used.

        Raises:
            DataError: the encoding is unknown.
        """
        check(0, _HEAD.size)
        kind, self._width, _, self._parts, self.count = _HEAD.unpack(raw[: _HEAD.size].tobytes())
        if kind >= len(KINDS):
            raise DataError(
                f"an encoding of integers of number {kind}, and {len(KINDS)} are known",
                hint="read it with the Steelyard that wrote it, or a later one",
            )
        self.kind = KINDS[kind]
        self._raw, self._whole, self._check = raw[_HEAD.size :], len(raw), check
        if not self.count:
            return
        if self.kind == "delta":
            self._heads = self._part("<i8", self._parts)
        if self.kind in ("packed", "delta"):
            self._blocks()
        elif self.kind == "runs":
            self._ends = self._part("<u4", self._parts)
            self._kept = self._part(f"<i{self._width}", self._parts)
        else:
            lengths = self._part("u1", _SYMBOLS)
            sizes = self._part("<u2", self._parts)
            self._places = np.cumsum(sizes, dtype=np.int64) - sizes
            self._table = _lookup(lengths)

    def _part(self, dtype: str, count: int) -> NDArray[Any]:
        """Return the next array of the bytes."""
        size = np.dtype(dtype).itemsize * count
        begins = self._whole - len(self._raw)
        self._check(begins, begins + size)
        found = self._raw[:size].view(dtype)
        self._raw = self._raw[size + -size % 8 :]
        return found

    def _blocks(self) -> None:
        is_flat = bool(self._part("<i8", 1)[0])
        count = 1 if is_flat else self._parts
        least, widths = self._part("<i8", count), self._part("u1", count)
        self._least = np.repeat(least, self._parts) if is_flat else least
        self._widths = np.repeat(widths, self._parts) if is_flat else widths
        self._starts = _starts(self._widths, self.count)

    def _used(self, first: int, last: int) -> None:
        """Check the packed bytes of a range of values."""
        if self.kind == "runs":
            return
        begins = self._whole - len(self._raw)
        if self.kind == "prefix":
            blocks = self._places[[first // CODE_BLOCK, (last - 1) // CODE_BLOCK]] // 8
            most = int(blocks[1]) + CODE_BLOCK * 4
        else:
            blocks = self._starts[[first // BLOCK, (last - 1) // BLOCK + 1]]
            most = int(blocks[1])
        self._check(begins + int(blocks[0]), min(begins + most + _SPARE, self._whole))

    def decode(self, first: int, last: int, dtype: Any = np.int64) -> NDArray[Any]:
        """Return neighbouring values.

        Args:
            first: first value, a multiple of 1,024.
            last: one past the last.
            dtype: int64, or int32 where all values fit.

        Returns:
            The values, [last - first].
        """
        found = empty(last - first, dtype)
        if not len(found):
            return found
        self._used(first, last)
        if self.kind == "prefix":
            decode_prefix(self._raw, self._places, self._table, first // CODE_BLOCK, found)
        elif self.kind == "runs":
            begin, end = np.searchsorted(self._ends, [first, last - 1], side="right")
            runs = slice(begin, end + 1)
            repeat_runs(self._kept[runs], self._ends[runs], first, found)
        else:
            block = first // BLOCK
            unpack_blocks(self._raw, self._least, self._widths, self._starts, block, found)
            if self.kind == "delta":
                add_up(found, self._heads, block)
        return found

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return single values.

        Args:
            rows: which, [rows].

        Returns:
            The values, int64, [rows].
        """
        found = np.empty(len(rows), np.int64)
        if not len(rows):
            return found
        self._used(int(rows.min()), int(rows.max()) + 1)
        if self.kind == "prefix":
            take_prefix(self._raw, self._places, self._table, rows, found)
        elif self.kind == "runs":
            found[:] = self._kept[np.searchsorted(self._ends, rows, side="right")]
        elif self.kind == "delta":
            blocks = (self._least, self._widths, self._starts, self._heads)
            take_running(self._raw, *blocks, rows, found)
        else:
            take_widths(self._raw, self._least, self._widths, self._starts, rows, found)
        return found
