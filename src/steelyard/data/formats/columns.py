"""One column of one row group: which encoding is smallest, and how it is read again."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.formats.buffers import EncodedColumn, join_buffers
from steelyard.data.formats.lookup import ROOM, copy_texts, gather, text_offsets
from steelyard.data.formats.memory import empty
from steelyard.data.formats.numbers import Numbers, encode_numbers
from steelyard.data.formats.physical import (
    KeptType,
    array_of,
    filled_forward,
    kind_of,
    numbers_of,
    text_parts,
)
from steelyard.data.formats.streams import Stream, encode_integers
from steelyard.data.formats.texts import Texts, encode_texts

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COMPRESSIONS", "ColumnChunk", "encode_column"]

COMPRESSIONS = ("auto", "never", "always")
"""Whether texts are compressed: where it saves a fifth of them, never, always."""
_SAMPLE, _SAMPLE_BLOCK = 16_384, 1024
_AT_ONCE = 1 << 16
_MOST_DISTINCT = 0.7
"""Share of distinct values in a sample beyond which no dictionary is tried."""
_NUMBERS = {"plain": 0, "integers": 1, "decimal": 2}


def encode_column(array: "pa.Array", compress: str = "auto") -> NDArray[np.uint8]:
    """Return a column of a row group as bytes.

    Args:
        array: its values; any type.
        compress: one of `COMPRESSIONS`.

    Returns:
        The chunk, [bytes].
    """
    kind = kind_of(array.type)
    rows, nulls = len(array), array.null_count
    if kind == "null" or (nulls == rows and rows):
        return join_buffers("constant", (0, 0, rows, rows), [])
    if kind == "arrow":
        return join_buffers("arrow", (0, 0, rows, nulls), [_as_arrow(array)])
    validity, bitmap = _validity(array)
    if kind == "vector":
        flat = array.values.slice(array.offset * array.type.list_size, rows * array.type.list_size)
        if flat.null_count:
            return join_buffers("arrow", (0, 0, rows, nulls), [_as_arrow(array)])
        parts: tuple[str, int, list[Any]] = "vector", 0, [numbers_of(flat).view(np.uint8)]
    elif kind == "text":
        parts = _texts(array, compress)
    else:
        parts = _numbers(array)
    encoding, parameter, buffers = parts
    buffers = [*buffers, bitmap] if nulls else buffers
    return join_buffers(encoding, (validity, parameter, rows, nulls), buffers)


def _as_arrow(array: "pa.Array") -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([array], ["0"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _validity(array: "pa.Array") -> tuple[int, Any]:
    """Return which rows have a value in the smallest form: bits, places of nulls, or runs."""
    if not array.null_count:
        return 0, b""
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    forms = {
        1: np.packbits(valid, bitorder="little").tobytes(),
        2: encode_integers(np.flatnonzero(~valid)),
        3: encode_integers(valid.astype(np.int64), only="runs"),
    }
    smallest = min(forms, key=lambda form: len(forms[form]))
    return smallest, forms[smallest]


def _is_worth_trying(array: "pa.Array") -> bool:
    """Return whether a sample repeats values."""
    import pyarrow as pa

    sample = array
    if len(array) > _SAMPLE:
        # Neighbours, not every n-th row: values that stand in runs repeat among neighbours alone.
        starts = np.linspace(0, len(array) - _SAMPLE_BLOCK, _SAMPLE // _SAMPLE_BLOCK).astype(int)
        sample = pa.concat_arrays([array.slice(at, _SAMPLE_BLOCK) for at in starts.tolist()])
    distinct = len(sample.dictionary_encode().dictionary)
    return distinct <= _MOST_DISTINCT * len(sample)


def _coded(array: "pa.Array") -> tuple[NDArray[np.int64], "pa.Array"]:
    """Return codes, the most frequent value first, and the values."""
    coded = array.dictionary_encode()
    codes = np.asarray(coded.indices.fill_null(0)).astype(np.int64)
    if array.null_count:
        codes = filled_forward(codes, array.is_valid().to_numpy(zero_copy_only=False))
    order = np.argsort(-np.bincount(codes, minlength=len(coded.dictionary)), kind="stable")
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks[codes], coded.dictionary.take(order)


def _numbers(array: "pa.Array") -> tuple[str, int, list[Any]]:
    """Return numbers in a dictionary or directly, whichever is smaller."""
    import pyarrow as pa

    values = numbers_of(array)
    if array.null_count:
        values = filled_forward(values, array.is_valid().to_numpy(zero_copy_only=False))
    if len(values) and _same_bits(values):
        encoding, parameter, buffers = encode_numbers(values[:1])
        return "constant", parameter << 8 | _NUMBERS[encoding], buffers
    encoding, parameter, buffers = encode_numbers(values)
    size = sum(map(len, buffers))
    # Equal bits, not equal values: the hash of Arrow takes -0.0 for 0.0, and all NaN for one.
    width = values.dtype.itemsize
    if width in (4, 8) and len(values):
        bits = pa.array(values.view(f"i{width}"))
    elif values.dtype.kind == "V" and len(values):
        bits = pa.Array.from_buffers(
            pa.binary(width), len(values), [None, pa.py_buffer(values.view(np.uint8))]
        )
    elif width == 2 and len(values):
        bits = pa.array(values.view("i2"))
    else:
        return encoding, parameter, buffers
    if not _is_worth_trying(bits):
        return encoding, parameter, buffers
    codes, distinct = _coded(bits)
    kept = numbers_of(distinct).view(values.dtype)
    own, digits, dictionary = encode_numbers(kept)
    coded = [encode_integers(codes), *dictionary]
    if sum(map(len, coded)) < size:
        return "dictionary", digits << 8 | _NUMBERS[own], coded
    return encoding, parameter, buffers


def _same_bits(values: NDArray[Any]) -> bool:
    raw = values.view(np.uint8).reshape(len(values), -1)
    return bool((raw[0] == raw[-1]).all()) and bool((raw == raw[0]).all())


def _texts(array: "pa.Array", compress: str) -> tuple[str, int, list[Any]]:
    """Return texts in a dictionary where they repeat, or behind each other."""
    if len(array) and _is_worth_trying(array):
        codes, distinct = _coded(array)
        lengths, heap = text_parts(distinct)
        kept = encode_texts(lengths, heap, compress=compress, whole=True)
        if len(distinct) == 1:
            return "constant", 0, kept
        return "dictionary", 0, [encode_integers(codes), *kept]
    return "text", 0, encode_texts(*text_parts(array), compress=compress)


class ColumnChunk:
    """A column of a row group, read as Arrow."""

    def __init__(self, chunk: EncodedColumn, kept: KeptType) -> None:
        """Point to a chunk.

        Args:
            chunk: its bytes.
            kept: type of the column.
        """
        self._chunk, self._type, self._kind = chunk, kept.stored, kept.kind
        self._dtype: np.dtype[Any] = kept.dtype or np.dtype("i1")
        self._kept: Any = None

    @cached_property
    def _own_texts(self) -> Texts:
        return Texts(self._chunk, 0)

    def decode(self, first: int, last: int) -> "pa.Array":
        """Return neighbouring rows.

        Args:
            first: first row, a multiple of 1,024.
            last: one past the last.

        Returns:
            The values; of plain numbers and vectors they share the file's memory.

        Raises:
            DataError: the bytes are damaged.
        """
        import pyarrow as pa

        chunk = self._chunk
        if chunk.nulls == chunk.rows:
            return pa.nulls(last - first, self._type)
        if chunk.encoding == "arrow":
            return self._arrow().slice(first, last - first)
        bitmap = chunk.bitmap(first, last)
        if self._kind == "number" and chunk.encoding == "plain":
            size = self._dtype.itemsize
            values = chunk.shared(0, first * size, last * size)
            return pa.Array.from_buffers(self._type, last - first, [bitmap, values])
        if self._kind == "text":
            return self._text(bitmap, *self._decoded_texts(first, last))
        if self._kind == "vector":
            return self._vectors(self._vector_values(first, last), bitmap, last - first)
        return array_of(self._type, self._decoded_numbers(first, last), bitmap)

    def take(self, rows: NDArray[np.int64]) -> "pa.Array":
        """Return single rows.

        Args:
            rows: which, [rows].

        Returns:
            The values.

        Raises:
            DataError: the bytes are damaged.
        """
        import pyarrow as pa

        chunk = self._chunk
        if chunk.nulls == chunk.rows or not len(rows):
            return pa.nulls(len(rows), self._type)
        if chunk.encoding == "arrow":
            return self._arrow().take(pa.array(rows))
        bitmap = None
        if chunk.nulls:
            valid = chunk.is_valid(0, chunk.rows)
            assert valid is not None
            bitmap = pa.py_buffer(np.packbits(valid[rows], bitorder="little"))
        if self._kind == "text":
            return self._text(bitmap, *self._taken_texts(rows))
        if self._kind == "vector":
            width = self._type.list_size
            flat = self._vector_values(0, chunk.rows).reshape(-1, width)[rows].reshape(-1)
            return self._vectors(flat, bitmap, len(rows))
        return array_of(self._type, self._taken_numbers(rows), bitmap)

    def _arrow(self) -> "pa.Array":
        import pyarrow as pa

        with pa.ipc.open_stream(pa.py_buffer(self._chunk.raw(0))) as reader:
            return reader.read_all().column(0).combine_chunks()

    def _vector_values(self, first: int, last: int) -> NDArray[Any]:
        dtype = np.dtype(f"f{self._type.value_type.bit_width // 8}")
        size = dtype.itemsize * self._type.list_size
        return self._chunk.raw(0, first * size, last * size)[first * size : last * size].view(dtype)

    def _vectors(self, flat: NDArray[Any], bitmap: "pa.Buffer | None", rows: int) -> "pa.Array":
        import pyarrow as pa

        child = array_of(self._type.value_type, flat, None)
        return pa.Array.from_buffers(self._type, rows, [bitmap], children=[child])

    def _numbers(self, first: int) -> Numbers:
        """Return the numbers of buffers from one on: a dictionary, or all."""
        dtype, chunk = self._dtype, self._chunk
        if chunk.encoding in ("constant", "dictionary"):
            own = list(_NUMBERS)[chunk.parameter & 255]
            return Numbers(chunk, own, chunk.parameter >> 8, first, dtype)
        return Numbers(chunk, chunk.encoding, chunk.parameter, first, dtype)

    def _distinct(self) -> NDArray[Any]:
        """Return the numbers of a dictionary."""
        if self._kept is None:
            chunk = self._chunk
            own = list(_NUMBERS)[chunk.parameter & 255]
            count = (
                len(chunk.raw(1)) // self._dtype.itemsize
                if own == "plain"
                else chunk.stream(1).count
            )
            self._kept = self._numbers(1).decode(0, count)
        return self._kept

    def _decoded_numbers(self, first: int, last: int) -> NDArray[Any]:
        chunk = self._chunk
        if chunk.encoding == "constant":
            return np.repeat(self._numbers(0).decode(0, 1), last - first)
        if chunk.encoding == "dictionary":
            return self._looked_up(chunk.stream(0), first, last)
        return self._numbers(0).decode(first, last)

    def _looked_up(self, codes: Stream, first: int, last: int) -> NDArray[Any]:
        """Return numbers of a dictionary, so many at once that their codes stay in the cache."""
        kept = self._distinct()
        bits = f"u{kept.dtype.itemsize}"
        if kept.dtype.kind == "V" or kept.dtype.itemsize < 4:
            return kept.take(codes.decode(first, last, np.int32))
        found = empty(last - first, bits)
        for begin in range(first, last, _AT_ONCE):
            end = min(begin + _AT_ONCE, last)
            part = codes.decode(begin, end, np.int32)
            gather(kept.view(bits), part, found[begin - first : end - first])
        return found.view(kept.dtype)

    def _taken_numbers(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        chunk = self._chunk
        if chunk.encoding == "constant":
            return np.repeat(self._numbers(0).decode(0, 1), len(rows))
        if chunk.encoding == "dictionary":
            codes = chunk.stream(0).take(rows)
            return self._distinct().take(codes)
        return self._numbers(0).take(rows)

    def _dictionary(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return the texts of a dictionary."""
        if self._kept is None:
            first = 0 if self._chunk.encoding == "constant" else 1
            count = self._chunk.stream(first).count
            self._kept = Texts(self._chunk, first, whole=True).decode(0, count)
        return self._kept

    def _decoded_texts(self, first: int, last: int) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        if self._chunk.encoding == "text":
            return self._own_texts.decode(first, last)
        if self._chunk.encoding == "constant":
            return self._copied(np.zeros(last - first, np.int32))
        return self._copied(self._chunk.stream(0).decode(first, last, np.int32))

    def _taken_texts(self, rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        if self._chunk.encoding == "text":
            return self._own_texts.take(rows)
        if self._chunk.encoding == "constant":
            return self._copied(np.zeros(len(rows), np.int32))
        return self._copied(self._chunk.stream(0).take(rows).astype(np.int32))

    def _copied(self, codes: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return texts of a dictionary behind each other."""
        ends, heap = self._dictionary()
        lengths = np.diff(ends).astype(np.int32)
        # Offsets of 32 bits are those of most texts; longer ones need more than two billion bytes.
        is_short = int(lengths.max(initial=0)) * len(codes) < 1 << 31
        offsets = empty(len(codes) + 1, np.int32 if is_short else np.int64)
        text_offsets(lengths, codes, offsets)
        found = empty(int(offsets[-1]) + ROOM, np.uint8)
        copy_texts(heap, ends, codes, offsets, found)
        return offsets, found

    def _text(
        self, bitmap: "pa.Buffer | None", offsets: NDArray[Any], heap: NDArray[np.uint8]
    ) -> "pa.Array":
        import pyarrow as pa

        wide = pa.types.is_large_string(self._type) or pa.types.is_large_binary(self._type)
        kept = offsets.astype("<i8" if wide else "<i4", copy=False)
        buffers = [bitmap, pa.py_buffer(np.ascontiguousarray(kept)), pa.py_buffer(heap)]
        return pa.Array.from_buffers(self._type, len(offsets) - 1, buffers)

    def told(self) -> Mapping[str, Any]:
        """Return encoding, stream and bytes, for people."""
        chunk = self._chunk
        is_coded = (
            chunk.encoding in ("dictionary", "integers", "decimal") and chunk.nulls < chunk.rows
        )
        stream = chunk.stream(0).kind if is_coded else ""
        kept = 0
        if chunk.encoding == "dictionary":
            kept = len(self._dictionary()[0]) - 1 if self._kind == "text" else len(self._distinct())
        return {
            "encoding": chunk.encoding,
            "codes": stream,
            "distinct": kept,
            "nulls": chunk.nulls,
            "bytes": chunk.size,
        }
