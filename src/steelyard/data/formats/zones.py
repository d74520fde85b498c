"""Zone maps: the least and the largest value of each few thousand rows, to skip those without."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.formats.physical import (
    dtype_of,
    filled_forward,
    kind_of,
    numbers_of,
    text_parts,
)
from steelyard.errors import ConfigError
from steelyard.jit import njit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ZONE_ROWS", "may_hold", "ordered_values", "zones_of"]

ZONE_ROWS = 8192
"""Rows of a zone."""
_SIGN = np.uint64(1 << 63)


@njit()
def _prefixes(heap: np.ndarray, lengths: np.ndarray, found: np.ndarray) -> None:
    """Fill in the first eight bytes of texts as numbers of the same order."""
    place = 0
    for row in range(len(lengths)):
        value = np.uint64(0)
        for at in range(8):
            byte = heap[place + at] if at < lengths[row] else np.uint8(0)
            value = (value << np.uint64(8)) | np.uint64(byte)
        found[row] = value
        place += lengths[row]


def ordered_values(array: "pa.Array") -> NDArray[Any] | None:
    """Return numbers in the order of the values.

    Args:
        array: array of any type; missing values are as they lie.

    Returns:
        int64 or float64, of texts their first eight bytes, [rows]; None for a type without order.
    """
    kind = kind_of(array.type)
    if kind == "text":
        lengths, heap = text_parts(array)
        found = np.zeros(len(lengths), np.uint64)
        _prefixes(heap, lengths, found)
        return (found ^ _SIGN).view(np.int64)
    if kind == "flag":
        return numbers_of(array).astype(np.int64)
    dtype = dtype_of(array.type) if kind == "number" else None
    if dtype is None or dtype.kind == "V" or str(array.type) == "halffloat":
        return None
    if dtype.kind == "f":
        return numbers_of(array).astype(np.float64)
    if dtype == np.dtype("u8"):
        return (numbers_of(array) ^ _SIGN).view(np.int64)
    return numbers_of(array).astype(np.int64)


def zones_of(array: "pa.Array") -> NDArray[np.int64]:
    """Return least, largest and number of missing values of each 8,192 rows.

    Args:
        array: a column of a row group.

    Returns:
        Bits of int64 or, for floating point numbers, float64; NaN do not count, and of texts the
        first eight bytes do, [zones, 3]; no zones for a type without an order.
    """
    values = ordered_values(array) if len(array) else None
    if values is None:
        return np.zeros((0, 3), np.int64)
    starts = np.arange(0, len(array), ZONE_ROWS)
    nulls = np.zeros(len(starts), np.int64)
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        nulls = np.add.reduceat((~valid).astype(np.int64), starts)
        if array.null_count < len(array):
            # A zone that begins with missing ones may get the value before it: wider, never wrong.
            values = filled_forward(values, valid)
    least, most = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
    return np.stack([least.view(np.int64), most.view(np.int64), nulls], axis=1)


def _bound(type: "pa.DataType", value: Any) -> Any:
    """Return a bound as a number of the order of the zones."""
    import pyarrow as pa

    try:
        array = pa.array([value], type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{value!r} is no bound of a column of {type}: {error}") from error
    found = ordered_values(array)
    if found is None:
        raise ConfigError(
            f"a column of {type} has no order to select by", hint="read it and filter the rows"
        )
    return found[0]


def may_hold(
    zones: NDArray[np.int64], type: "pa.DataType", low: Any, high: Any, rows: int
) -> NDArray[np.bool_]:
    """Return which zones may hold a value of a range.

    Args:
        zones: what `zones_of` found, [zones, 3].
        type: type of the column.
        low: least value wanted, None for any.
        high: largest value wanted, None for any.
        rows: rows of the row group.

    Returns:
        Booleans, [zones]; all where there is no zone map.

    Raises:
        ConfigError: a bound is no value of the type, or the type has no order.
    """
    count = -(-rows // ZONE_ROWS)
    dtype = dtype_of(type)
    is_float = dtype is not None and dtype.kind == "f"
    found = np.ones(count, bool)
    bounds = [None if bound is None else _bound(type, bound) for bound in (low, high)]
    if len(zones) != count:
        return found
    least, most = (
        zones[:, side].copy().view(np.float64 if is_float else np.int64) for side in (0, 1)
    )
    if bounds[0] is not None:
        found &= most >= bounds[0]
    if bounds[1] is not None:
        found &= least <= bounds[1]
    sizes = np.full(count, ZONE_ROWS)
    sizes[-1:] = rows - ZONE_ROWS * (count - 1)
    return found & (zones[:, 2] < sizes)
