"""What several folds want of one batch: hashes and numbers of its columns, made once."""

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.arrow import compute
from steelyard.data.sketch import hash_column
from steelyard.data.sketch.hashing import add_to_rows, scramble

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchColumns", "columns_of", "forget_columns", "has_numbers", "is_number", "is_text"]


class BatchColumns:
    """A batch whose hashes and numbers are made when they are first asked for.

    Attributes:
        batch: the rows.
    """

    def __init__(self, batch: "pa.RecordBatch") -> None:
        """Take a batch."""
        self.batch = batch
        self._hashes: dict[int, NDArray[np.uint64]] = {}
        self._numbers: dict[int, NDArray[np.float64]] = {}
        self._rows: NDArray[np.uint64] | None = None

    def hashes(self, place: int) -> NDArray[np.uint64]:
        """Return the hashes of a column, `NULL_HASH` where a value is missing, [rows]."""
        if place not in self._hashes:
            self._hashes[place] = hash_column(self.batch.column(place))
        return self._hashes[place]

    def numbers(self, place: int) -> NDArray[np.float64]:
        """Return a column as floats, NaN where missing: numbers, seconds, or lengths of texts."""
        if place not in self._numbers:
            self._numbers[place] = _floats(self.batch.column(place))
        return self._numbers[place]

    def row_hashes(self) -> NDArray[np.uint64]:
        """Return a hash of each whole row, [rows]."""
        if self._rows is None:
            self._rows = np.zeros(len(self.batch), np.uint64)
            for place in range(self.batch.num_columns):
                add_to_rows(self._rows, self.hashes(place), place)
            scramble(self._rows)
        return self._rows


_LATEST = threading.local()


def columns_of(batch: "pa.RecordBatch") -> BatchColumns:
    """Return the columns of a batch, the same ones to all folds that take it in turn.

    Args:
        batch: the rows.

    Returns:
        Its columns, which are kept as long as the batch is and no other one was asked for.
    """
    held: BatchColumns | None = getattr(_LATEST, "held", None)
    if held is None or held.batch is not batch:
        held = _LATEST.held = BatchColumns(batch)
    return held


def forget_columns() -> None:
    """Let the last batch go; what was made of it is memory that no one wants after a scan."""
    _LATEST.held = None


def is_text(kind: "pa.DataType") -> bool:
    """Return whether a type is text."""
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_number(kind: "pa.DataType") -> bool:
    """Return whether a type is a number or yes and no."""
    import pyarrow as pa

    types = pa.types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def has_numbers(kind: "pa.DataType") -> bool:
    """Return whether values of a type can be turned into numbers."""
    import pyarrow as pa

    return is_number(kind) or is_text(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def _floats(values: "pa.Array") -> NDArray[np.float64]:
    import pyarrow as pa

    kind = values.type
    if is_text(kind):
        values = compute().binary_length(values)
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        seconds = values.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        return _plain(seconds.cast(pa.float64(), safe=False)) / 1e6
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    return _plain(values.cast(pa.float64(), safe=False))


def _plain(values: Any) -> NDArray[np.float64]:
    """Return an Arrow array as NumPy's, without a copy where nothing is missing."""
    return values.to_numpy(zero_copy_only=False)
