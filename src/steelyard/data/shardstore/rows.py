"""Rows on their way: keys, versions, lengths and values in columns."""

import struct
from dataclasses import dataclass

import numpy as np

from steelyard.errors import DataError

__all__ = ["EPOCH_SHIFT", "MAX_KEY", "Rows", "free_rows", "rows_from_bytes"]

MAX_KEY = 2**64 - 1
EPOCH_SHIFT = np.uint64(40)
"""A version is an epoch and, in its lower 40 bits, a counter: a later epoch's are always newer."""
_HEAD = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in columns.

    Attributes:
        keys: uint64 [N].
        versions: uint64 [N], epoch and counter; 0 for a row that is not there.
        lengths: bytes of each value, int32 [N]; -1 for a row that is not there.
        values: uint8 [N, W], zeros behind a value's end.
    """

    keys: np.ndarray
    versions: np.ndarray
    lengths: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, numbers: np.ndarray | slice) -> "Rows":
        """Return some of the rows."""
        return Rows(
            self.keys[numbers], self.versions[numbers], self.lengths[numbers], self.values[numbers]
        )

    def to_bytes(self) -> bytes:
        """Return the rows as bytes that `rows_from_bytes` reads."""
        return b"".join(
            (
                _HEAD.pack(len(self), self.values.shape[1]),
                self.keys.tobytes(),
                self.versions.tobytes(),
                self.lengths.tobytes(),
                self.values.tobytes(),
            )
        )


def free_rows(width: int) -> Rows:
    """Return no rows of a width."""
    return Rows(
        np.zeros(0, np.uint64),
        np.zeros(0, np.uint64),
        np.zeros(0, np.int32),
        np.zeros((0, width), np.uint8),
    )


def rows_from_bytes(content: bytes | memoryview) -> Rows:
    """Read rows.

    Args:
        content: what `Rows.to_bytes` made.

    Returns:
        The rows; they are views of the bytes and cannot be written to.

    Raises:
        DataError: the bytes are none of rows.
    """
    size = len(content)
    # Checked before any column is cut: sizes come from another process.
    count, width = _HEAD.unpack_from(content) if size >= _HEAD.size else (0, 0)
    if size != _HEAD.size + count * (20 + width):
        raise DataError(f"{size} bytes are no {count} rows of {width} bytes", hint="send them anew")
    place = _HEAD.size
    columns = []
    for kind in (np.uint64, np.uint64, np.int32):
        columns.append(np.frombuffer(content, kind, count, place))
        place += columns[-1].nbytes
    values = np.frombuffer(content, np.uint8, count * width, place).reshape(count, width)
    return Rows(columns[0], columns[1], columns[2], values)
