"""Which row groups of Parquet files a condition can leave unread, by their statistics."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from steelyard.data.table.counts import ReadCounts
from steelyard.data.table.looking import PART_BYTES, grouped
from steelyard.data.table.partitions import TablePart
from steelyard.data.table.sources import open_source

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Kept", "filtered", "kept_parts", "narrowed"]

_LONG_TEXT = 32
"""Texts in statistics that are longer may have been cut by their writer."""


def filtered(batch: "pa.RecordBatch", *, condition: Any) -> "pa.RecordBatch":
    """Return the rows of a batch for which an Arrow expression holds."""
    return batch.filter(condition)


def narrowed(table: Any, names: Collection[str]) -> Any:
    """Return a table with the columns alone that are needed, where its steps allow that.

    Args:
        table: a `DataTable`.
        names: columns that are needed.

    Returns:
        The table with those and the keys of its splits; itself where it has other steps.
    """
    import pyarrow as pa

    keys = [getattr(step, "keywords", {}).get("key") for step in table.steps]
    if table.source is not None or table.beside is not None or None in keys:
        return table
    needed = {*names, *(name for key in keys for name in key or ())}
    if not needed:
        return table
    fields = [item for item in table.schema if item.name in needed]
    return replace(table, schema=pa.schema(fields))


class Kept(NamedTuple):
    """What is left to read.

    Attributes:
        parts: parts with at least one row that may fit.
        skipped: row groups that hold none.
    """

    parts: tuple[TablePart, ...]
    skipped: int


def kept_parts(parts: Sequence[TablePart], condition: Any, schema: "pa.Schema") -> Kept:
    """Leave out row groups of Parquet files in which no row can meet a condition.

    A row group stays where its statistics are missing, may be cut, or cannot answer for values that
    are not a number.

    Args:
        parts: parts of a table; those of other formats stay.
        condition: Arrow expression.
        schema: columns of the table.

    Returns:
        What is left to read, in the same order.

    Raises:
        OSError: a file cannot be read.
    """
    kept: list[TablePart] = []
    skipped = 0
    for path, own in groupby(parts, key=lambda part: part.path):
        of_file = list(own)
        if of_file[0].format != "parquet":
            kept += of_file
            continue
        left, gone = _of_file(path, of_file, condition, schema)
        kept += left
        skipped += gone
    return Kept(tuple(kept), skipped)


def _of_file(
    path: str, parts: list[TablePart], condition: Any, schema: "pa.Schema"
) -> tuple[list[TablePart], int]:
    """Return the parts of one file that are left, and how many row groups are not."""
    import pyarrow as pa
    from pyarrow import dataset, parquet

    before = [place for part in parts for place in range(part.first, part.last)]
    with open_source(path, ReadCounts()) as source:
        with parquet.ParquetFile(source) as file:
            groups = [file.metadata.row_group(place) for place in range(file.num_row_groups)]
        source.seek(0)
        fragment = dataset.ParquetFileFormat().make_fragment(source)
        try:
            fitting = {item.id for item in fragment.subset(condition, schema).row_groups}
        except (pa.ArrowException, NotImplementedError):
            # Types that differ between files: the condition is put to the rows themselves.
            return parts, 0
    names = _named(condition, schema)
    after = [
        place
        for place in before
        if place in fitting or not all(_is_known(groups[place], name, condition) for name in names)
    ]
    return grouped(path, groups, after, PART_BYTES), len(before) - len(after)


def _named(condition: Any, schema: "pa.Schema") -> list[str]:
    """Return the columns whose names stand in a condition; one too many does no harm."""
    text = str(condition)
    return [name for name in schema.names if name in text]


def _is_known(group: Any, name: str, condition: Any) -> bool:
    """Return whether the statistics of a column in a row group can be relied on."""
    columns = [group.column(place) for place in range(group.num_columns)]
    own = [item for item in columns if item.path_in_schema.partition(".")[0] == name]
    for column in own:
        found = column.statistics
        if found is None or not found.has_min_max or not found.has_null_count:
            return False
        least, largest = found.min, found.max
        if isinstance(least, str | bytes) and max(len(least), len(largest)) >= _LONG_TEXT:
            return False
        # NaN is in no bounds, and meets every condition that is turned around.
        if isinstance(least, float) and any(
            word in str(condition) for word in ("invert", "!=", "nan")
        ):
            return False
    return bool(own)
