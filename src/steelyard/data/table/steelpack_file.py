"""Steelpack files as parts and batches of a table."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.data.formats.steelpack import Steelpack
from steelyard.data.formats.zones import ZONE_ROWS
from steelyard.data.table.counts import ReadCounts
from steelyard.data.table.partitions import TablePart
from steelyard.data.table.remote_pack import open_remote_pack
from steelyard.data.table.sources import is_remote, open_source

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["steelpack_batches", "steelpack_parts"]


def _opened(path: str, counts: ReadCounts) -> Steelpack:
    """Map a file, or read the end of a remote one."""
    if not is_remote(path):
        return Steelpack.open(Path(path))
    return Steelpack(open_remote_pack(open_source(path, counts), path))


def steelpack_parts(path: str) -> "tuple[pa.Schema, list[TablePart]]":
    """Return the schema of a steelpack file, and a part for each row group.

    Args:
        path: the file.

    Returns:
        Schema and parts.

    Raises:
        DataError: the file cannot be read.
    """
    table = _opened(path, ReadCounts())
    parts, row = [], 1
    for group, rows in enumerate(table.group_rows):
        size = table.group_bytes(group)
        parts.append(TablePart(path, "steelpack", group, group + 1, row, size, rows))
        row += rows
    return table.schema, parts


def steelpack_batches(
    partition: TablePart, names: list[str], counts: ReadCounts, batch_rows: int
) -> Iterator["pa.RecordBatch"]:
    """Read row groups of a steelpack file.

    Args:
        partition: the part.
        names: columns that are wanted; those that the file lacks are left out.
        counts: takes in what is read.
        batch_rows: rows of a batch, about.

    Yields:
        Batches.

    Raises:
        DataError: a byte is damaged; the last whole row group is named.
    """
    table = _opened(partition.path, counts)
    own = [name for name in names if table.pack.find(f"0/{name}") is not None]
    at_once = max(batch_rows // ZONE_ROWS, 1) * ZONE_ROWS
    groups = range(partition.first, partition.last)
    if is_remote(partition.path) and len(own) == table.width:
        # All columns of a row group lie together: one request in place of one for each.
        for group in groups:
            first = table.pack.place(group * (table.width + 1))
            table.pack.fetch(first, first + table.group_bytes(group))
    yield from table.batches(own, groups=groups, batch_rows=at_once)
    if not is_remote(partition.path):
        counts.add(ReadCounts(table.pack.checked_bytes, len(groups) * max(len(own), 1)))
