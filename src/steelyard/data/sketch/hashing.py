"""One 64-bit hash per value of a column: equal values hash alike, whatever their width."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.arrow import compute
from steelyard.jit import njit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "NULL_HASH",
    "add_to_rows",
    "hash_column",
    "hash_integers",
    "hash_texts",
    "mix64",
    "scramble",
]

NULL_HASH = np.uint64(0x5851F42D4C957F2D)
"""Hash of a missing value."""
_NAN_HASH = np.uint64(0x14057B7EF767814F)
_BYTES_SEED = np.uint64(0x9E3779B97F4A7C15)
_PRIME = np.uint64(0x9FB21C651E98DF25)
_LARGEST_INTEGER = 2.0**63


@njit()
def mix64(value: Any) -> Any:
    """Scramble a 64-bit value, one to one.

    Args:
        value: uint64.

    Returns:
        uint64.

    Source: Steele et al. 2014 (SplitMix64).
    """
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@njit()
def _hash_integers(values: np.ndarray, found: np.ndarray) -> None:
    """Hash int64 values."""
    for row in range(len(values)):
        found[row] = mix64(np.uint64(values[row]) + _BYTES_SEED)


@njit()
def _hash_floats(values: np.ndarray, bits: np.ndarray, found: np.ndarray) -> None:
    """Hash float64 values; whole ones as the integers they are, so that 3 and 3.0 are equal."""
    for row in range(len(values)):
        value = values[row]
        if np.isnan(value):
            found[row] = _NAN_HASH
        elif value == np.floor(value) and abs(value) < _LARGEST_INTEGER:
            found[row] = mix64(np.uint64(np.int64(value)) + _BYTES_SEED)
        else:
            found[row] = mix64(bits[row] ^ _PRIME)


@njit(inline="always")
def _word(payload: Any, place: Any) -> Any:
    """Return eight bytes as a number, the first the lowest; the places are unsigned."""
    return (
        np.uint64(payload[place])
        | (np.uint64(payload[place + np.uintp(1)]) << np.uint64(8))
        | (np.uint64(payload[place + np.uintp(2)]) << np.uint64(16))
        | (np.uint64(payload[place + np.uintp(3)]) << np.uint64(24))
        | (np.uint64(payload[place + np.uintp(4)]) << np.uint64(32))
        | (np.uint64(payload[place + np.uintp(5)]) << np.uint64(40))
        | (np.uint64(payload[place + np.uintp(6)]) << np.uint64(48))
        | (np.uint64(payload[place + np.uintp(7)]) << np.uint64(56))
    )


@njit()
def _hash_bytes(payload: np.ndarray, offsets: np.ndarray, found: np.ndarray) -> None:
    """Hash strings of bytes, eight bytes at a time."""
    # A signed place might count from the end: that test keeps eight loads from becoming one, and
    # the loop takes three times as long.
    size, step = np.uintp(len(payload)), np.uintp(8)
    for row in range(len(found)):
        place, end = np.uintp(offsets[row]), np.uintp(offsets[row + 1])
        code = _BYTES_SEED ^ (np.uint64(end - place) * _PRIME)
        while place + step <= end:
            # The shift brings the product's high bits down: its low ones depend on low ones alone.
            code = (code ^ _word(payload, place)) * _PRIME
            code ^= code >> np.uint64(32)
            place += step
        word = np.uint64(0)
        if place + step <= size and end > place:
            # Bytes of the next value are cut off, instead of loading one by one.
            beyond = (step - (end - place)) * step
            word = _word(payload, place) & (~np.uint64(0) >> np.uint64(beyond))
        else:
            while end > place:
                end -= np.uintp(1)
                word = (word << np.uint64(8)) | np.uint64(payload[end])
        found[row] = mix64((code ^ word) * _PRIME)


def hash_integers(values: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Hash whole numbers as `hash_column` does; different ones never hash alike.

    Args:
        values: [rows]; those beyond int64 wrap.

    Returns:
        Hashes, [rows].
    """
    found = np.empty(len(values), np.uint64)
    _hash_integers(np.ascontiguousarray(values).astype(np.int64, copy=False), found)
    return found


def hash_texts(texts: Sequence[str]) -> NDArray[np.uint64]:
    """Hash texts as `hash_column` does.

    Args:
        texts: any.

    Returns:
        Hashes, [texts].
    """
    raw = [text.encode() for text in texts]
    found = np.empty(len(raw), np.uint64)
    ends = np.cumsum([0, *map(len, raw)], dtype=np.int64)
    _hash_bytes(np.frombuffer(b"".join(raw) or b"\0", np.uint8), ends, found)
    return found


@njit()
def add_to_rows(whole: np.ndarray, hashes: np.ndarray, place: int) -> None:
    """Add a column's hashes to those of its rows, in place.

    Args:
        whole: sums so far, uint64 [rows].
        hashes: hashes of the column, uint64 [rows].
        place: place of the column; equal values of two columns must not cancel.
    """
    salt = np.uint64(2 * place + 1)
    for row in range(len(whole)):
        whole[row] += mix64(hashes[row] + salt)


@njit()
def scramble(hashes: np.ndarray) -> None:
    """Scramble sums of hashes in place, uint64 [rows]."""
    for row in range(len(hashes)):
        hashes[row] = mix64(hashes[row])


def _filled(column: "pa.Array", value: float) -> "pa.Array":
    """Return a column with a value in its gaps."""
    return compute().fill_null(column, value) if column.null_count else column


def hash_column(column: "pa.Array") -> NDArray[np.uint64]:
    """Hash each value of an Arrow array.

    Integers, whole floats, Booleans and times count by their value, floats that are not a number
    are all alike, and text by its UTF-8. Columns of different types can so be compared, apart from
    times of different units, which are turned to nanoseconds.

    Args:
        column: values; nested ones count by their text.

    Returns:
        Hashes, [rows]; `NULL_HASH` where a value is missing.
    """
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        codes = hash_column(column.dictionary)
        indices = compute().fill_null(column.indices, 0).to_numpy(zero_copy_only=False)
        found = codes[indices.astype(np.int64)] if len(codes) else np.zeros(len(column), np.uint64)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        found = _of_bytes(column, np.int32)
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        found = _of_bytes(column, np.int64)
    elif pa.types.is_floating(kind):
        values = _filled(column, 0.0).cast(pa.float64()).to_numpy(zero_copy_only=False)
        found = np.empty(len(column), np.uint64)
        _hash_floats(values, values.view(np.uint64), found)
    else:
        found = _of_integers(column)
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = NULL_HASH
    return found


def _of_bytes(column: "pa.Array", width: type) -> NDArray[np.uint64]:
    """Hash text or bytes straight from the array's buffers."""
    _, offsets, payload = column.buffers()
    found = np.empty(len(column), np.uint64)
    if payload is None:
        # An array of empty strings may have no payload.
        _hash_bytes(np.zeros(0, np.uint8), np.zeros(len(column) + 1, np.int64), found)
        return found
    places = np.frombuffer(offsets, width)[column.offset : column.offset + len(column) + 1]
    _hash_bytes(np.frombuffer(payload, np.uint8), places, found)
    return found


def _of_integers(column: "pa.Array") -> NDArray[np.uint64]:
    """Hash whole numbers, Booleans, times, and anything else by its text."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        unit = pa.timestamp("ns") if pa.types.is_timestamp(kind) else pa.duration("ns")
        whole = column.cast(unit, safe=False).cast(pa.int64())
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        # uint64 beyond int64 wraps: its bits are hashed, as those of any other value.
        whole = column.cast(pa.int64(), safe=False)
    elif pa.types.is_date32(kind) or pa.types.is_date64(kind):
        whole = column.cast(pa.timestamp("ns"), safe=False).cast(pa.int64())
    elif pa.types.is_null(kind):
        return np.full(len(column), NULL_HASH)
    else:
        return _of_bytes(
            pa.array([str(item) for item in column.to_pylist()], pa.large_string()), np.int64
        )
    return hash_integers(_filled(whole, 0).to_numpy(zero_copy_only=False))
