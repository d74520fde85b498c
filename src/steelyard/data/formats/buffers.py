"""The part of one column in one row group: a head, and buffers that are found by number."""

import struct
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.checksums import BLOCK_BYTES
from steelyard.data.formats.streams import Stream
from steelyard.data.pack import Pack
from steelyard.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ENCODINGS", "EncodedColumn", "join_buffers"]

ENCODINGS = ("plain", "constant", "dictionary", "integers", "decimal", "text", "vector", "arrow")
"""How a column's values are kept; see `columns`."""
_HEAD = struct.Struct("<BBHIQQ")
"""Encoding, validity, buffers, a parameter, rows, nulls."""
_PLACE = struct.Struct("<QQ")


def join_buffers(encoding: str, facts: Sequence[int], buffers: Sequence[Any]) -> NDArray[np.uint8]:
    """Return a chunk.

    Args:
        encoding: one of `ENCODINGS`.
        facts: validity, a parameter, rows, nulls.
        buffers: bytes or arrays.

    Returns:
        The bytes, each buffer at a multiple of eight, [bytes].
    """
    validity, parameter, rows, nulls = facts
    views = [memoryview(buffer).cast("B") if len(buffer) else memoryview(b"") for buffer in buffers]
    place = _HEAD.size + _PLACE.size * len(views)
    number = ENCODINGS.index(encoding)
    parts: list[Any] = [_HEAD.pack(number, validity, len(views), parameter, rows, nulls)]
    filled: list[Any] = []
    for view in views:
        parts.append(_PLACE.pack(place, view.nbytes))
        filled += [view, bytes(-view.nbytes % 8)]
        place += view.nbytes + -view.nbytes % 8
    return np.frombuffer(b"".join([*parts, *filled]), np.uint8)


class EncodedColumn:
    """A chunk in a pack; bytes are checked when they are used.

    Attributes:
        encoding: one of `ENCODINGS`.
        validity: 0 for no nulls, 1 for a bitmap, 2 for places of nulls, 3 for runs.
        parameter: parameter of the encoding.
        rows: their number.
        nulls: rows without a value.
        size: bytes of the chunk.
    """

    def __init__(self, pack: Pack, number: int) -> None:
        """Read the head.

        Args:
            pack: that holds the chunk.
            number: number of its section.

        Raises:
            DataError: the head is damaged, or the encoding is unknown.
        """
        self._pack, self._number = pack, number
        # A chunk of one block is checked whole.
        self._is_checked = pack.size(number) <= BLOCK_BYTES
        self._bytes: Any = (
            pack.whole(number) if self._is_checked else pack.raw(number, 0, _HEAD.size)
        )
        head = _HEAD.unpack_from(self._bytes)
        code, self.validity, self._count, self.parameter, self.rows, self.nulls = head
        if code >= len(ENCODINGS):
            raise DataError(
                f"section {pack.name(number)!r} of {pack.where} has an encoding of number {code}, "
                f"and {len(ENCODINGS)} are known",
                hint="read it with the Steelyard that wrote it, or a later one",
            )
        self.encoding, self.size = ENCODINGS[code], len(self._bytes)
        self._streams: dict[int, Stream] = {}

    @cached_property
    def _whole(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._bytes, np.uint8)

    def _check(self, first: int, last: int) -> None:
        if not self._is_checked:
            self._pack.raw(self._number, first, last)

    def _buffer(self, index: int) -> tuple[int, int]:
        first = _HEAD.size + _PLACE.size * (index % self._count)
        self._check(first, first + _PLACE.size)
        return _PLACE.unpack_from(self._bytes, first)

    def raw(self, index: int, first: int = 0, last: int | None = None) -> NDArray[np.uint8]:
        """Return a buffer of which a range of bytes is checked.

        Args:
            index: number of the buffer; negative ones count from the end.
            first: first byte that will be used.
            last: one past the last; all when it is left out.

        Returns:
            The whole buffer, [bytes].

        Raises:
            DataError: the range is damaged.
        """
        place, size = self._buffer(index)
        last = size if last is None else min(last, size)
        self._check(place + first, place + last)
        return self._whole[place : place + size]

    def shared(self, index: int, first: int, last: int) -> "pa.Buffer":
        """Return a range of bytes of a buffer, as `raw` checks it, that shares its memory.

        Args:
            index: number of the buffer.
            first: first byte.
            last: one past the last.

        Returns:
            The bytes, [last - first].

        Raises:
            DataError: the range is damaged, or the buffer ends before it.
        """
        import pyarrow as pa

        place, size = self._buffer(index)
        if last > size:
            raise DataError(f"a chunk of {self._pack.where} is damaged: a buffer ends too early")
        self._check(place + first, place + last)
        return pa.py_buffer(self._bytes).slice(place + first, last - first)

    def stream(self, index: int) -> Stream:
        """Return the integers of a buffer, of which the head is read once."""
        if index in self._streams:
            return self._streams[index]
        place, size = self._buffer(index)
        raw = self._whole[place : place + size]
        pack, number = self._pack, self._number
        if self._is_checked:
            made = Stream(raw)
        else:
            # Were it to hold this column, neither would be let go before Python looks for circles.
            made = Stream(raw, lambda first, last: pack.raw(number, place + first, place + last))
        self._streams[index] = made
        return made

    def is_valid(self, first: int, last: int) -> NDArray[np.bool_] | None:
        """Return which rows of a range have a value, None for all of them.

        Args:
            first: first row, a multiple of 1,024.
            last: one past the last.

        Returns:
            Booleans, [last - first].
        """
        if not self.nulls:
            return None
        if self.nulls == self.rows:
            return np.zeros(last - first, bool)
        if self.validity == 1:
            raw = self.raw(-1, first // 8, (last + 7) // 8)[first // 8 : (last + 7) // 8]
            return np.unpackbits(raw, count=last - first, bitorder="little").view(bool)
        stream = self.stream(-1)
        if self.validity == 3:
            return stream.decode(first, last).astype(bool)
        places = stream.decode(0, stream.count)
        found = np.ones(last - first, bool)
        inside = places[np.searchsorted(places, first) : np.searchsorted(places, last)]
        found[inside - first] = False
        return found

    def bitmap(self, first: int, last: int) -> "pa.Buffer | None":
        """Return the Arrow bitmap of a range of rows, None where all have a value."""
        import pyarrow as pa

        valid = self.is_valid(first, last)
        return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
