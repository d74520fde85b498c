"""Least and largest values as numbers that keep their order, from footers and from rows alike."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.arrow import compute

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NO_BOUNDS", "Bounds", "bounds_of", "comparable", "order_codes"]

Bounds = tuple[float, float, int]
"""Codes of the least and the largest value, and the number of missing values, -1 unknown."""
NO_BOUNDS: Bounds = (math.nan, math.nan, -1)
"""What is known of a column without statistics: comparisons with NaN never drop anything."""
_ALL_MISSING = (math.inf, -math.inf)
_PREFIX_BYTES = 6
"""Bytes of a text that fit into the 53 bits of a double without rounding."""
_WHOLE_TEXT_WRITERS = ("parquet-cpp-arrow",)
"""Writers that never cut the least and largest text; others may, and do not always say so."""


def comparable(kind: "pa.DataType") -> str:
    """Return the class of types within which codes can be compared, empty for none.

    Args:
        kind: kind of a column.

    Returns:
        "number" for all whole and real numbers, "text", or the name of a type of times.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return "number"
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if types.is_temporal(kind) and not types.is_duration(kind) and not types.is_interval(kind):
        return str(kind)
    return str(kind) if types.is_decimal(kind) else ""


def bounds_of(chunk: Any, kind: "pa.DataType", writer: str) -> Bounds:
    """Return what a footer says about one column of one row group.

    A code never orders two values the other way round, though two values may share one. Statistics
    that are missing, not a number, or of texts that the writer may have cut are unknown.

    Args:
        chunk: metadata of the column in the row group.
        kind: type of the column.
        writer: program that wrote the file, as the footer names it.

    Returns:
        Codes and missing values; infinite the wrong way round where no value is present.
    """
    statistics = chunk.statistics if chunk.is_stats_set else None
    if statistics is None:
        return NO_BOUNDS
    nulls = int(statistics.null_count) if statistics.has_null_count else -1
    # `num_values` of a chunk counts missing ones too.
    if nulls == chunk.num_values:
        return (*_ALL_MISSING, nulls)
    group = comparable(kind)
    if not statistics.has_min_max or not group:
        return (math.nan, math.nan, nulls)
    if group == "text" and not writer.startswith(_WHOLE_TEXT_WRITERS):
        return (math.nan, math.nan, nulls)
    try:
        low, high = _code(statistics.min, kind, group), _code(statistics.max, kind, group)
    except (ValueError, TypeError, OverflowError, ArithmeticError):
        # A time beyond what Python holds, or bytes that are no text.
        return (math.nan, math.nan, nulls)
    return (low, high, nulls) if low <= high else (math.nan, math.nan, nulls)


def _code(value: Any, kind: "pa.DataType", group: str) -> float:
    """Return the code of one value of a footer."""
    import pyarrow as pa

    if group == "text":
        raw = value if isinstance(value, bytes) else str(value).encode()
        return float(int.from_bytes(raw[:_PREFIX_BYTES].ljust(_PREFIX_BYTES, b"\0"), "big"))
    if group == "number" or pa.types.is_decimal(kind):
        return float(value)
    return float(pa.scalar(value, kind).value)


def order_codes(values: "pa.Array") -> NDArray[np.float64]:
    """Return codes of a column's values that compare with those of `bounds_of`.

    Args:
        values: a column.

    Returns:
        Codes, [rows]; NaN where a value is missing, or has no code.
    """
    import pyarrow as pa

    group = comparable(values.type)
    if group == "number":
        whole = values.cast(pa.float64(), safe=False) if values.type != pa.bool_() else None
        made = whole if whole is not None else values.cast(pa.uint8()).cast(pa.float64())
        return compute().fill_null(made, math.nan).to_numpy(zero_copy_only=False)
    if group == "text":
        texts = values.to_pylist()
        codes = [math.nan if text is None else _code(text, values.type, group) for text in texts]
        return np.array(codes, np.float64)
    if group and not pa.types.is_decimal(values.type):
        width = pa.int32() if values.type.bit_width == 32 else pa.int64()
        made = values.cast(width).cast(pa.float64(), safe=False)
        return compute().fill_null(made, math.nan).to_numpy(zero_copy_only=False)
    return np.full(len(values), math.nan)
