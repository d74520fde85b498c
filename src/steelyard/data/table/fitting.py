"""Columns and types of a table for batches that have others."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from steelyard.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ROW", "cast_to", "row_ids", "row_of"]

ROW = "(row)"
"""Column that tells rows apart, where a table is asked for it: see `row_ids`."""
_FILE_BITS = 40


def cast_to(
    batch: "pa.RecordBatch", schema: "pa.Schema", path: str, first_row: int = 1
) -> "pa.RecordBatch":
    """Return a batch with the columns and types of a table.

    Args:
        batch: columns of any types.
        schema: columns with their types.
        path: the file, for messages.
        first_row: row of the file of the first.

    Returns:
        The batch; a column that it lacks is missing throughout.

    Raises:
        DataError: a value cannot be turned into its column's type.
    """
    import pyarrow as pa

    columns = []
    known = set(batch.schema.names)
    for field in schema:
        if field.name == ROW:
            rows = np.arange(first_row, first_row + len(batch))
            columns.append(pa.array(rows, pa.int64()))
            continue
        if field.name not in known:
            columns.append(pa.nulls(len(batch), field.type))
            continue
        values = batch[field.name]
        try:
            columns.append(values if values.type == field.type else values.cast(field.type))
        except pa.ArrowException as error:
            raise DataError(
                f"column {field.name!r} of {path} is {values.type}, and a value is no {field.type} "
                f"as elsewhere: {error}",
                hint="turn the column into one type, or scan the files apart",
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def row_ids(batches: Iterator["pa.RecordBatch"], place: int) -> Iterator["pa.RecordBatch"]:
    """Add the place of a file to the column of row numbers, so that it tells all rows apart.

    Args:
        batches: batches with the column `ROW`, rows of the file from 1.
        place: place of the file in its table.

    Yields:
        The batches with 2^40 times the place added.
    """
    import pyarrow as pa

    for batch in batches:
        at = batch.schema.get_field_index(ROW)
        rows = np.asarray(batch.column(at)) + (place << _FILE_BITS)
        yield batch.set_column(at, ROW, pa.array(rows, pa.int64()))


def row_of(numbers: np.ndarray) -> np.ndarray:
    """Return the rows of the file of values of the column `ROW`."""
    return numbers & ((1 << _FILE_BITS) - 1)
