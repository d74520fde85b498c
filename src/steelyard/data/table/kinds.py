"""Types of columns of text by the majority of their values, and the values that do not fit."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.data.arrow import compute

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KINDS", "Misfit", "as_kind", "as_type", "kind_of", "majority_kind"]

KINDS = ("whole number", "number", "yes or no", "date", "time", "text")
"""Kinds of columns, the narrowest first."""
_MAJORITY = 0.9
"""Share of the values that makes a kind; with more exceptions a column is one of text."""
_PATTERNS = {
    "whole number": r"^[+-]?\d{1,18}$",
    "number": r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?([nN]a[nN]|[iI]nf(inity)?)$",
    "yes or no": r"^(?i:true|false)$",
    "date": r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$",
    "time": r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[ T]([01]\d|2[0-3]):[0-5]\d"
    r"(:[0-5]\d(\.\d{1,6})?)?$",
}


class Misfit(NamedTuple):
    """Values of a column that are not of its kind.

    Attributes:
        rows: places in the batch, [misfits].
        values: their text.
        reason: what they should have been.
    """

    rows: NDArray[np.int64]
    values: list[str]
    reason: str


def arrow_type(kind: str) -> "pa.DataType":
    """Return the Arrow type of a kind."""
    import pyarrow as pa

    return {
        "whole number": pa.int64(),
        "number": pa.float64(),
        "yes or no": pa.bool_(),
        "date": pa.date32(),
        "time": pa.timestamp("us"),
        "text": pa.string(),
    }[kind]


def kind_of(type: "pa.DataType") -> str:
    """Return the kind whose values stand for an Arrow type; "text" of what no other kind does."""
    import pyarrow as pa

    checks = {
        "whole number": pa.types.is_integer,
        "number": lambda type: pa.types.is_floating(type) or pa.types.is_decimal(type),
        "yes or no": pa.types.is_boolean,
        "date": pa.types.is_date,
        "time": pa.types.is_timestamp,
    }
    return next((kind for kind, holds in checks.items() if holds(type)), "text")


def majority_kind(values: "pa.Array") -> str:
    """Return the narrowest kind that nine of ten values are of.

    Args:
        values: text; missing and empty values do not count.

    Returns:
        One of `KINDS`; "text" where there are no values.
    """
    pc = compute()
    present = pc.drop_null(pc.utf8_trim_whitespace(values))
    present = present.filter(pc.not_equal(present, ""))
    for kind, pattern in _PATTERNS.items():
        fitting = pc.sum(pc.match_substring_regex(present, pattern)).as_py() or 0
        if fitting and fitting >= _MAJORITY * len(present):
            return kind
    return "text"


def as_kind(values: "pa.Array", kind: str) -> "tuple[pa.Array, Misfit | None]":
    """Turn text into values of a kind.

    Args:
        values: text, [rows].
        kind: one of `KINDS`.

    Returns:
        Values of its Arrow type, missing where they do not fit or are empty, and the misfits.
    """
    import pyarrow as pa

    if kind == "text":
        return values, None
    wanted = arrow_type(kind)
    try:
        # Nearly all batches have no misfit.
        return values.cast(wanted), None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    pc = compute()
    trimmed = pc.utf8_trim_whitespace(values)
    is_empty = pc.fill_null(pc.equal(trimmed, ""), fill_value=True)
    fits = pc.fill_null(pc.match_substring_regex(trimmed, _PATTERNS[kind]), fill_value=False)
    cast = _cast(pc.if_else(fits, trimmed, None), wanted)
    # A day such as February 30 has the form of a date and is none.
    is_wrong = pc.and_(pc.is_null(cast), pc.invert(is_empty))
    rows = np.flatnonzero(is_wrong.to_numpy(zero_copy_only=False))
    if not len(rows):
        return cast, None
    return cast, Misfit(rows, values.take(pa.array(rows)).to_pylist(), f"no {kind}")


def as_type(values: "pa.Array", wanted: "pa.DataType") -> "tuple[pa.Array, Misfit | None]":
    """Turn values into a type that columns of other files have.

    Args:
        values: of any type, [rows].
        wanted: the type.

    Returns:
        Values of the type, missing where they are none, and the misfits.
    """
    import pyarrow as pa

    try:
        return values.cast(wanted), None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    made, pc = _cast(values, wanted), compute()
    is_wrong = pc.and_(pc.is_null(made), pc.is_valid(values))
    rows = np.flatnonzero(is_wrong.to_numpy(zero_copy_only=False))
    told = [str(value) for value in values.take(pa.array(rows)).to_pylist()]
    return made, Misfit(rows, told, f"no {wanted} as elsewhere")


def _cast(values: "pa.Array", wanted: "pa.DataType") -> "pa.Array":
    """Cast values of the right form; those that still are none become missing."""
    import pyarrow as pa

    try:
        return values.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        parts = []
        for value in values:
            try:
                parts.append(value.cast(wanted).as_py() if value.is_valid else None)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                parts.append(None)
        return pa.array(parts, wanted)
