"""Texts by a table of frequent pieces: each text is compressed by itself, and can be read alone."""

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.formats.memory import empty, load8, store8
from steelyard.jit import njit

__all__ = ["SymbolTable", "compress_texts", "expand_neighbours", "expand_texts", "trained"]

_MOST, _LONGEST, _ESCAPE = 255, 8, 255
_SAMPLE_BYTES = 16_384
_ROUNDS = 5
_SPARE = 16
_LOW, _HIGH = np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(0x8080808080808080)
_ONES = np.uint64(0x0101010101010101)
_STEP = 2048
"""Codes after which the places of texts are looked up."""

SymbolTable = tuple[NDArray[np.uint64], NDArray[np.uint8]]
"""Pieces, the first byte lowest, [pieces], and their bytes, [pieces]; codes follow their order."""


def trained(lengths: NDArray[np.int64], heap: NDArray[np.uint8]) -> SymbolTable:
    """Return the pieces that shorten a sample of texts most.

    Args:
        lengths: bytes of each text, [texts].
        heap: their bytes, [bytes].

    Returns:
        At most 255 pieces of 1 to 8 bytes, longer ones first where they begin alike.

    Source: Boncz et al. 2020, "FSST: Fast Random Access String Compression", algorithm 3.
    """
    ends = np.concatenate([[0], np.cumsum(lengths)])
    texts, held = [], 0
    step = max(1, int(ends[-1]) // _SAMPLE_BYTES)
    for row in range(0, len(lengths), step):
        texts.append(heap[ends[row] : ends[row + 1]].tobytes()[:_SAMPLE_BYTES])
        held += len(texts[-1])
        if held >= _SAMPLE_BYTES:
            break
    pieces: set[bytes] = set()
    for _ in range(_ROUNDS):
        gains: Counter[bytes] = Counter()
        for text in texts:
            _count(text, pieces, gains)
        pieces = {piece for piece, _ in gains.most_common(_MOST)}
    order = sorted(pieces, key=lambda piece: (piece[0], -len(piece), piece))
    words = np.array([int.from_bytes(piece, "little") for piece in order], np.uint64)
    return words, np.array([len(piece) for piece in order], np.uint8)


def _count(text: bytes, pieces: set[bytes], gains: "Counter[bytes]") -> None:
    """Add what pieces of a text, and each two that meet, would save."""
    place, before = 0, b""
    while place < len(text):
        piece = text[place : place + 1]
        for size in range(min(_LONGEST, len(text) - place), 1, -1):
            if text[place : place + size] in pieces:
                piece = text[place : place + size]
                break
        gains[piece] += len(piece)
        joined = before + piece
        if before and len(joined) <= _LONGEST:
            gains[joined] += len(joined)
        before = piece
        place += len(piece)


@njit()
def _compress(
    heap: np.ndarray,
    lengths: np.ndarray,
    words: np.ndarray,
    sizes: np.ndarray,
    firsts: np.ndarray,
    raw: np.ndarray,
    found: np.ndarray,
) -> Any:
    """Write codes of texts; fill in the bytes of each, return all."""
    place, to = np.int64(0), np.int64(0)
    for row in range(len(lengths)):
        end, begin = place + lengths[row], to
        while place < end:
            word, code = load8(heap, place), 255
            for piece in range(firsts[heap[place]], firsts[np.int64(heap[place]) + 1]):
                size = np.int64(sizes[piece])
                mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - 8 * size)
                if place + size <= end and (word & mask) == words[piece]:
                    code = piece
                    place += size
                    break
            raw[to] = code
            to += 1
            if code == 255:
                raw[to] = heap[place]
                to += 1
                place += 1
        found[row] = to - begin
    return to


def compress_texts(
    lengths: NDArray[np.int64], heap: NDArray[np.uint8], table: SymbolTable
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return texts as codes of pieces; what no piece fits is escaped, a byte as two.

    Args:
        lengths: bytes of each text, [texts].
        heap: their bytes, [bytes].
        table: pieces.

    Returns:
        Bytes of each compressed text, [texts], and all of them with some behind.
    """
    words, sizes = table
    begins = np.searchsorted((words & np.uint64(255)).astype(np.int64), np.arange(257))
    raw = np.empty(2 * len(heap) + _SPARE, np.uint8)
    found = np.empty(len(lengths), np.int64)
    spared = np.concatenate([heap, np.zeros(_SPARE, np.uint8)])
    size = _compress(spared, lengths, words, sizes, begins, raw, found)
    raw[size : size + _SPARE] = 0
    return found, raw[: size + _SPARE].copy()


@njit()
def _expand(
    raw: np.ndarray,
    ends: np.ndarray,
    rows: np.ndarray,
    words: np.ndarray,
    sizes: np.ndarray,
    offsets: np.ndarray,
    found: np.ndarray,
) -> int:
    """Write texts behind each other; return how many fit."""
    to = np.int64(0)
    offsets[0] = 0
    for row in range(len(rows)):
        place, end = np.int64(ends[rows[row]]), np.int64(ends[rows[row] + 1])
        if to + 8 * (end - place) + 8 > len(found):
            return row
        while place < end:
            code = raw[place]
            if code != 255:
                store8(found, to, words[code])
                to += np.int64(sizes[code])
                place += 1
            else:
                found[to] = raw[place + 1]
                to += 1
                place += 2
        offsets[row + 1] = to
    return len(rows)


def expand_texts(
    raw: NDArray[np.uint8], ends: NDArray[np.int64], rows: NDArray[np.int32], table: SymbolTable
) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Return texts from codes of pieces.

    Args:
        raw: codes, [bytes].
        ends: where each text's codes begin, and the end of the last, [texts + 1].
        rows: which texts, rising, [rows].
        table: pieces.

    Returns:
        Where each text begins and the end of the last, [rows + 1]; their bytes with some behind.
    """
    words, sizes = _padded(table)
    first, last = (rows[0], rows[-1]) if len(rows) else (0, -1)
    lengths = ends[first + 1 : last + 2] - ends[first : last + 1]
    if last - first + 1 != len(rows):
        lengths = ends[rows + 1] - ends[rows]
    longest = int(lengths.max(initial=0))
    # Most texts grow two or three times; one that grows more makes the room grow.
    room = 3 * int(lengths.sum()) + 8 * longest + 2 * _SPARE
    offsets = empty(len(rows) + 1, np.int32 if room < 1 << 31 else np.int64)
    while True:
        found = empty(room, np.uint8)
        if _expand(raw, ends, rows, words, sizes, offsets, found) == len(rows):
            return offsets, found
        room *= 2
        offsets = empty(len(rows) + 1, np.int32 if room < 1 << 31 else np.int64)


def _padded(table: SymbolTable) -> SymbolTable:
    """Return pieces for each of 256 codes; those that are not used are empty."""
    words, sizes = np.zeros(256, np.uint64), np.zeros(256, np.uint8)
    words[: len(table[0])], sizes[: len(table[1])] = table
    return words, sizes


@njit()
def _expand_neighbours(
    raw: np.ndarray,
    ends: np.ndarray,
    words: np.ndarray,
    sizes: np.ndarray,
    seen: np.ndarray,
    offsets: np.ndarray,
    found: np.ndarray,
) -> bool:
    """Write neighbouring texts; return whether they fit.

    Codes are expanded without regard to where a text ends, which no processor can guess; then it
    is looked up where the first code of each text went.
    """
    place, end = np.int64(ends[0]), np.int64(ends[-1])
    to, row, rows = np.int64(0), 0, len(offsets) - 1
    while place < end:
        begin, stop = place, min(place + _STEP, end)
        if to + 8 * (stop - begin) + 8 > len(found):
            return False
        while place < stop:
            eight = load8(raw, place)
            if place + 8 <= stop and not ((eight & _LOW) + _ONES) & eight & _HIGH:
                # None of eight codes is the escape: seven bits and the highest are not all set.
                for at in range(8):
                    code = np.uint8(eight >> np.uint64(8 * at))
                    seen[np.uint64(place - begin + at)] = to
                    store8(found, to, words[code])
                    to += np.int64(sizes[code])
                place += 8
                continue
            code, seen[place - begin] = raw[place], to
            if code != _ESCAPE:
                store8(found, to, words[code])
                to += np.int64(sizes[code])
                place += 1
            else:
                found[to] = raw[place + 1]
                to += 1
                place += 2
        while row < rows and ends[row] < place:
            offsets[row] = seen[np.int64(ends[row]) - begin]
            row += 1
    # The end of the last text, and empty texts before it.
    offsets[row:] = to
    return True


def expand_neighbours(
    raw: NDArray[np.uint8], ends: NDArray[np.int64], table: SymbolTable
) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Return texts that follow each other, as `expand_texts` does, in less time.

    Args:
        raw: codes, [bytes].
        ends: where each text's codes begin, and the end of the last, [texts + 1].
        table: pieces.

    Returns:
        Where each text begins and the end of the last, [texts + 1]; their bytes with some behind.
    """
    words, sizes = _padded(table)
    seen = np.empty(_STEP + 1, np.int64)
    # Most texts grow two or three times; one that grows more makes the room grow.
    room = 3 * int(ends[-1] - ends[0]) + 8 * _STEP + 2 * _SPARE
    while True:
        found = empty(room, np.uint8)
        offsets = empty(len(ends), np.int32 if room < 1 << 31 else np.int64)
        if _expand_neighbours(raw, ends, words, sizes, seen, offsets, found):
            return offsets, found
        room *= 2
