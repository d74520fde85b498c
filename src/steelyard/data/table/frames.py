"""Frames in memory as tables: polars, pandas, Arrow, and whatever gives Arrow's stream."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.data.table.fitting import ROW, cast_to
from steelyard.data.table.partitions import TablePart
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FRAME", "frame_batches", "frame_of", "frame_parts", "is_frame"]

FRAME = "(frame)"
"""What stands for the file of rows in memory."""
_PART_ROWS = 1 << 20


def is_frame(source: Any) -> bool:
    """Return whether a source is rows in memory, and no path."""
    return not isinstance(source, str | Path)


def frame_of(source: Any) -> "pa.Table":
    """Return a frame as an Arrow table.

    Args:
        source: frame of polars, pandas (2.2 or later) or Arrow, or anything with Arrow's stream.

    Returns:
        The table; its text is `string`, whatever width of offsets or views the frame had.

    Raises:
        ConfigError: it is no frame.
    """
    import pyarrow as pa

    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if not hasattr(source, "__arrow_c_stream__"):
        raise ConfigError(
            f"{type(source).__name__} is no path and no frame",
            hint="give paths, or a frame of polars, pandas or Arrow",
        )
    table = pa.table(source)
    schema = pa.schema([pa.field(item.name, _plain(item.type)) for item in table.schema])
    return table if schema == table.schema else table.cast(schema)


def _plain(type: "pa.DataType") -> "pa.DataType":
    """Return the type that columns of files have."""
    import pyarrow as pa

    kind = type.value_type if pa.types.is_dictionary(type) else type
    is_text = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return pa.string() if is_text or pa.types.is_string(kind) else type


def frame_parts(frame: "pa.Table", part_rows: int = _PART_ROWS) -> list[TablePart]:
    """Return parts of a frame.

    Args:
        frame: rows in memory.
        part_rows: rows of each but the last.

    Returns:
        Parts, one of an empty frame.
    """
    parts = []
    for first in range(0, max(len(frame), 1), part_rows):
        last = min(first + part_rows, len(frame))
        size = frame.nbytes * (last - first) // max(len(frame), 1)
        parts.append(TablePart(FRAME, "frame", first, last, first + 1, size, last - first))
    return parts


def frame_batches(
    frame: "pa.Table", schema: "pa.Schema", part: TablePart, batch_rows: int
) -> Iterator["pa.RecordBatch"]:
    """Return the rows of a part of a frame.

    Args:
        frame: rows in memory.
        schema: columns that are wanted.
        part: one of `frame_parts`.
        batch_rows: most rows of a batch.

    Yields:
        Batches.
    """
    is_numbered = ROW in schema.names
    rows = frame.select([name for name in schema.names if name != ROW])
    first = part.first_row
    for batch in rows.slice(part.first, part.last - part.first).to_batches(batch_rows):
        yield cast_to(batch, schema, FRAME, first) if is_numbered else batch
        first += len(batch)
