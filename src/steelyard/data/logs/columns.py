"""Columns of texts in few bytes: numbers as numbers, repeated values once, patterns by their parts.

A column is one byte that says how it is kept, and what that needs. Of several ways the one that a
fast compression makes smallest is taken.
"""

import re
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError

__all__ = ["decode_column", "encode_column", "squeezed", "unsqueezed"]

_TEXT, _SAME, _NUMBERS, _CHANGES, _LISTED, _PARTS = range(6)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_PADDED = re.compile(r"[0-9]{1,18}")
_PIECES = re.compile(r"([0-9]{1,18})")
_FAST, _TIGHT = 1, 19
_MOST_BYTES = 1 << 31
_MOST_PIECES = 40


def squeezed(raw: bytes, level: int = _TIGHT) -> bytes:
    """Return bytes compressed by zstd, with their length in front."""
    import pyarrow as pa

    packed = pa.Codec("zstd", compression_level=level).compress(raw, asbytes=True)
    return struct.pack("<I", len(raw)) + packed


def unsqueezed(packed: bytes) -> bytes:
    """Return what `squeezed` was given.

    Args:
        packed: bytes with their length in front.

    Returns:
        The bytes.

    Raises:
        DataError: it is damaged.
    """
    import pyarrow as pa

    try:
        (size,) = struct.unpack_from("<I", packed)
        if size > _MOST_BYTES:
            raise DataError(f"a column of {size:,} bytes is damaged", hint="compress again")
        return pa.Codec("zstd").decompress(packed[4:], size, asbytes=True)
    except (struct.error, pa.ArrowException, OSError) as error:
        raise DataError(f"a column cannot be unpacked: {error}", hint="compress again") from error


def encode_column(values: Sequence[str], level: int = _TIGHT) -> bytes:
    """Return a column in few bytes.

    Args:
        values: texts without line breaks.
        level: level of zstd, 1 to 22.

    Returns:
        What `decode_column` reads, which needs their number.
    """
    if len(set(values[:1000])) == 1 and len(set(values)) == 1:
        return bytes([_SAME]) + values[0].encode(errors="surrogateescape")
    ways = _ways(values, _FAST)
    best = min(ways, key=lambda way: len(ways[way]))
    return ways[best] if level == _FAST else _ways(values, level, best)[best]


def _ways(values: Sequence[str], level: int, only: int | None = None) -> dict[int, bytes]:
    """Return the column kept in each way that can keep it, or in one of them."""
    found: dict[int, bytes] = {}
    if only in (None, _TEXT):
        text = "\n".join(values).encode(errors="surrogateescape")
        found[_TEXT] = bytes([_TEXT]) + squeezed(text, level)
    numbers, width = _numbers(values)
    if numbers is not None:
        for way in (_NUMBERS, _CHANGES):
            if only in (None, way):
                kept = numbers if way == _NUMBERS else np.diff(numbers, prepend=0)
                found[way] = bytes([way, width]) + _packed(kept, level)
    if numbers is None and only in (None, _PARTS) and (parts := _parts(values, level)):
        found[_PARTS] = parts
    if only in (None, _LISTED) and (listed := _listed(values, level)):
        found[_LISTED] = listed
    return found


def _numbers(values: Sequence[str]) -> tuple[NDArray[np.int64] | None, int]:
    """Return values as numbers with the width they are filled to, None where they are none."""
    if _NUMBER.fullmatch(values[0]) and all(map(_NUMBER.fullmatch, values)):
        found = list(map(int, values))
        # "-0" reads as 0, and not all numbers of 19 digits have 64 bits.
        if "-0" in values or max(found) >= 1 << 63 or min(found) < -(1 << 63):
            return None, 0
        return np.array(found, np.int64), 0
    width = len(values[0])
    if _PADDED.fullmatch(values[0]) and all(
        len(value) == width and value.isascii() and value.isdigit() for value in values
    ):
        return np.array(list(map(int, values)), np.int64), width
    return None, 0


def _packed(numbers: NDArray[np.int64], level: int) -> bytes:
    """Return whole numbers, less their least, in the narrowest type, byte by byte."""
    least = int(numbers.min())
    # In unsigned numbers: the largest less the least may not fit a signed one.
    moved = numbers.astype(np.uint64) - np.uint64(least & 0xFFFFFFFFFFFFFFFF)
    width = next(size for size in (1, 2, 4, 8) if int(moved.max()) < 1 << 8 * size)
    planes = moved.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T
    return struct.pack("<qB", least, width) + squeezed(planes.tobytes(), level)


def _unpacked(packed: bytes, count: int) -> NDArray[np.int64]:
    least, width = struct.unpack_from("<qB", packed)
    planes = np.frombuffer(unsqueezed(packed[9:]), np.uint8)
    if width not in (1, 2, 4, 8) or len(planes) != count * width:
        raise DataError("a column of numbers is damaged", hint="compress again")
    moved = np.ascontiguousarray(planes.reshape(width, count).T).view(f"<u{width}").reshape(-1)
    return (moved.astype(np.uint64) + np.uint64(least & 0xFFFFFFFFFFFFFFFF)).astype(np.int64)


def _joined(parts: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def _separated(packed: bytes) -> list[bytes]:
    found, place = [], 0
    while place < len(packed):
        (size,) = struct.unpack_from("<I", packed, place)
        found.append(packed[place + 4 : place + 4 + size])
        place += 4 + size
    return found


def _parts(values: Sequence[str], level: int) -> bytes | None:
    """Return values that differ in their digits alone as columns of numbers."""
    frame = _PIECES.split(values[0])
    # Digits alone that are no numbers, for their widths differ, have no parts but themselves.
    if len(frame) == 1 or len(frame) > _MOST_PIECES or frame[::2] == ["", ""]:
        return None
    rows = [_PIECES.split(value) for value in values]
    if any(len(row) != len(frame) or row[::2] != frame[::2] for row in rows):
        return None
    columns = [encode_column(column, level) for column in list(zip(*rows, strict=True))[1::2]]
    head = "\n".join(frame[::2]).encode(errors="surrogateescape")
    return bytes([_PARTS]) + _joined([head, *columns])


def _listed(values: Sequence[str], level: int) -> bytes | None:
    """Return values as a list of those that differ, and the place of each in it."""
    distinct = sorted(set(values))
    if len(distinct) > len(values) // 2:
        return None
    places = {value: place for place, value in enumerate(distinct)}
    numbers = np.array([places[value] for value in values], np.int64)
    listed = _joined([encode_column(distinct, level), _packed(numbers, level)])
    return bytes([_LISTED]) + struct.pack("<I", len(distinct)) + listed


def decode_column(packed: bytes, count: int) -> list[str]:
    """Return the texts of a column.

    Args:
        packed: what `encode_column` returned.
        count: how many there are, at least 1.

    Returns:
        The texts.

    Raises:
        DataError: it is damaged.
    """
    way, rest = packed[0], packed[1:]
    if way == _SAME:
        return [rest.decode(errors="surrogateescape")] * count
    if way == _TEXT:
        found = unsqueezed(rest).decode(errors="surrogateescape").split("\n")
    elif way in (_NUMBERS, _CHANGES):
        numbers = _unpacked(rest[1:], count)
        kept = numbers if way == _NUMBERS else np.cumsum(numbers)
        width = rest[0]
        found = [str(value).zfill(width) for value in kept.tolist()]
    elif way == _LISTED:
        (size,) = struct.unpack_from("<I", rest)
        column, places = _separated(rest[4:])
        distinct = decode_column(column, size)
        found = [distinct[place] for place in _unpacked(places, count).tolist()]
    else:
        head, *columns = _separated(rest)
        frame = head.decode(errors="surrogateescape").split("\n")
        decoded = [decode_column(column, count) for column in columns]
        found = [
            frame[0] + "".join(piece + text for piece, text in zip(row, frame[1:], strict=True))
            for row in zip(*decoded, strict=True)
        ]
    if len(found) != count:
        raise DataError("a column holds another number of values", hint="compress again")
    return found
