"""Marks after each row group, by which the whole ones of a file that was cut short are found."""

import struct
import zlib
from pathlib import Path

import numpy as np

__all__ = ["end_mark", "whole_groups"]

_END = struct.Struct("<8sQQQQI")
"""Name, number, rows before and in it, first byte, checksum of these."""
_NAME = b"STLYGRUP"


def end_mark(number: int, before: int, rows: int, begins: int) -> bytes:
    """Return the mark of a row group.

    Args:
        number: number of the group.
        before: rows before it.
        rows: rows that lie in it.
        begins: its first byte.

    Returns:
        The mark; it fits into 64 bytes.
    """
    mark = _END.pack(_NAME, number, before, rows, begins, 0)[:-4]
    return mark + zlib.crc32(mark).to_bytes(4, "little")


def whole_groups(path: Path) -> str:
    """Return in words which row groups of a file that is cut short are whole.

    Args:
        path: the file.

    Returns:
        Words to put behind a message, none where no group is whole.
    """
    try:
        with path.open("rb") as file:
            raw = np.fromfile(file, np.uint8)
    except OSError:
        return ""
    marks = raw[: len(raw) // 64 * 64].reshape(-1, 64)
    begins = marks[:, :8].copy().view("<u8").reshape(-1) if len(marks) else np.zeros(0, "<u8")
    places = np.flatnonzero(begins == np.frombuffer(_NAME, "<u8")[0])
    rows, expected = 0, 0
    for place in places.tolist():
        mark = marks[place].tobytes()[: _END.size]
        _, number, before, held, _, checksum = _END.unpack(mark)
        if zlib.crc32(mark[:-4]) == checksum and number == expected and before == rows:
            rows, expected = rows + held, expected + 1
    if not expected:
        return ""
    return f"; row groups 0 to {expected - 1} were written whole, {rows:,} rows"
