"""How Arrow's types are kept: as numbers of one width, as texts, as vectors, or as Arrow wrote."""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.arrow import compute

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "KeptType",
    "array_of",
    "dtype_of",
    "filled_forward",
    "kept_types",
    "kind_of",
    "numbers_of",
    "stored_type",
    "text_parts",
]


def stored_type(type: "pa.DataType") -> "pa.DataType":
    """Return the type in which a column is kept: that of the values of a dictionary or a view.

    Args:
        type: an Arrow type.

    Returns:
        The same for most types.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(type):
        return stored_type(type.value_type)
    if pa.types.is_string_view(type):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(type) else type


@cache
def kind_of(type: "pa.DataType") -> str:
    """Return "number", "flag", "text", "vector", "arrow" or "null": how a type is kept.

    Args:
        type: an Arrow type.

    Returns:
        The kind; nested and rare types are "arrow", whole batches in Arrow's own format.
    """
    import pyarrow as pa

    is_ = pa.types
    if is_.is_null(type):
        return "null"
    if is_.is_boolean(type):
        return "flag"
    if is_.is_fixed_size_list(type) and is_.is_floating(type.value_type):
        return "vector"
    if is_.is_string(type) or is_.is_large_string(type):
        return "text"
    if is_.is_binary(type) or is_.is_large_binary(type):
        return "text"
    return "number" if dtype_of(type) is not None else "arrow"


@cache
def dtype_of(type: "pa.DataType") -> "np.dtype[Any] | None":
    """Return NumPy's type of the values of a type, None for those that are not of one width.

    Args:
        type: an Arrow type; dates, times and durations are integers, decimals are bytes.

    Returns:
        Integers, float32, float64, or void of the width in bytes.
    """
    import pyarrow as pa

    is_ = pa.types
    if is_.is_fixed_size_binary(type) or is_.is_decimal128(type):
        width = type.bit_width // 8
        return np.dtype(f"V{width}") if width else None
    if is_.is_float32(type) or is_.is_float64(type):
        return np.dtype(f"f{type.bit_width // 8}")
    if is_.is_integer(type) or is_.is_temporal(type) or is_.is_float16(type):
        if is_.is_interval(type):
            return None
        return np.dtype(f"{'u' if is_.is_unsigned_integer(type) else 'i'}{type.bit_width // 8}")
    return None


@dataclass(frozen=True, slots=True)
class KeptType:
    """A type of columns and how it is kept.

    Attributes:
        given: the type as it was given.
        stored: the type of what is kept.
        field: a field of the given type, of any name.
        kind: what `kind_of` says of the stored type.
        dtype: what `dtype_of` says of it.
    """

    given: "pa.DataType"
    stored: "pa.DataType"
    field: "pa.Field"
    kind: str
    dtype: "np.dtype[Any] | None"

    @classmethod
    def of(cls, field: "pa.Field") -> "KeptType":
        """Return how the columns of a field are kept."""
        stored = stored_type(field.type)
        return cls(field.type, stored, field, kind_of(stored), dtype_of(stored))


@lru_cache(maxsize=128)
def kept_types(schema: bytes) -> "tuple[tuple[KeptType, ...], Any]":
    """Return how the columns of a schema are kept; files of one table share what was parsed.

    Args:
        schema: as Arrow writes it.

    Returns:
        A type for each field, and the schema's metadata.
    """
    import pyarrow as pa

    parsed = pa.ipc.read_schema(pa.py_buffer(schema))
    return tuple(KeptType.of(field) for field in parsed), parsed.metadata


def filled_forward(values: NDArray[Any], valid: NDArray[np.bool_]) -> NDArray[Any]:
    """Return values with those before in place of missing ones, so that these cost nothing.

    Args:
        values: values of any type, [rows].
        valid: which are there; at least one is.

    Returns:
        The values, [rows].
    """
    rows = np.where(valid, np.arange(len(values)), int(np.argmax(valid)))
    return values[np.maximum.accumulate(rows)]


def numbers_of(array: "pa.Array") -> NDArray[Any]:
    """Return the values of an array of numbers or flags; missing ones are as they lie.

    Args:
        array: array of a type that `dtype_of` knows, or Booleans.

    Returns:
        The values, [rows].
    """
    import pyarrow as pa

    dtype = dtype_of(array.type)
    if dtype is None:
        raw = np.frombuffer(array.buffers()[1] or b"", np.uint8)
        bits = np.unpackbits(raw, count=array.offset + len(array), bitorder="little")
        return bits[array.offset :].astype(np.int8)
    if not len(array):
        return np.zeros(0, dtype)
    assert not pa.types.is_nested(array.type)
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def text_parts(array: "pa.Array") -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return lengths and bytes of texts; missing ones are empty.

    Args:
        array: texts or bytes of any length.

    Returns:
        Lengths, [rows], and bytes behind each other.
    """
    import pyarrow as pa

    if array.null_count:
        empty = (
            "" if pa.types.is_string(array.type) or pa.types.is_large_string(array.type) else b""
        )
        array = compute().fill_null(array, pa.scalar(empty, array.type))
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets, heap = array.buffers()
    if not len(array):
        return np.zeros(0, np.int64), np.zeros(0, np.uint8)
    size = 8 if wide else 4
    ends = np.frombuffer(offsets, f"<i{size}", len(array) + 1, array.offset * size)
    ends = ends.astype(np.int64)
    payload = np.frombuffer(heap if heap is not None else b"", np.uint8)
    return np.diff(ends), payload[ends[0] : ends[-1]]


def array_of(type: "pa.DataType", values: NDArray[Any], bitmap: "pa.Buffer | None") -> "pa.Array":
    """Return an Arrow array that shares the memory of values.

    Args:
        type: type of the array.
        values: values of its width; for Booleans of any type, [rows].
        bitmap: which rows have a value, None for all.

    Returns:
        The array.
    """
    import pyarrow as pa

    if pa.types.is_boolean(type):
        buffer = pa.py_buffer(np.packbits(values.astype(bool), bitorder="little"))
    else:
        # Void values have no form that Arrow's buffers know.
        kept = np.ascontiguousarray(values)
        buffer = pa.py_buffer(kept.view(np.uint8) if kept.dtype.kind == "V" else kept)
    return pa.Array.from_buffers(type, len(values), [bitmap, buffer])
