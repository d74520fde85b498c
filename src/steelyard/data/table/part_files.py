"""A table written as a file for each of its parts, or as one beside the rows set aside."""

import csv
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from steelyard.data.arrow import release_unused
from steelyard.data.table.columns import forget_columns
from steelyard.data.table.foldable import FoldableTable
from steelyard.data.table.partitions import TablePart
from steelyard.data.table.quarantine import BadRow, Quarantine
from steelyard.data.table.writing import checked_format, write_file, write_folder
from steelyard.files import atomic_path
from steelyard.parallel import stream_map

__all__ = ["write_parts", "write_with_quarantine"]


def write_parts(
    table: FoldableTable, folder: Path, end: str, workers: int = 1
) -> tuple[int, Quarantine]:
    """Write each part of a table to a file of its own, "part-00000" and so on.

    Args:
        table: the table.
        folder: put in its place when it is whole; an older one is replaced if it holds tables only.
        end: end of the files' names, such as ".parquet".
        workers: processes that write parts.

    Returns:
        Rows that were written, and those set aside.

    Raises:
        ConfigError: the end is of no format, or the folder holds other things.
        DataError: a file cannot be read.
        CapacityError: the disk is full; an older folder stays.
    """
    quarantine = Quarantine()

    def written(made: Path) -> Iterator[int]:
        done = stream_map(
            partial(_write_part, table, made, end),
            enumerate(table.partitions),
            workers=min(workers, max(len(table.partitions), 1)),
            name=lambda item: f"the part of {item[1].path} from row {item[1].first_row}",
        )
        for rows, own in done:
            quarantine.merge(own)
            yield rows

    return write_folder(folder, end, written), quarantine


def _write_part(
    table: FoldableTable, folder: Path, end: str, item: tuple[int, TablePart]
) -> tuple[int, Quarantine]:
    """Write one part, and return its rows and those set aside."""
    place, part = item
    quarantine = Quarantine()
    path = folder / f"part-{place:05d}{end}"
    rows = table.read(part, quarantine)
    written = write_file(path, table.schema, rows, table.limits.group_bytes)
    forget_columns()
    release_unused()
    return written, quarantine


def write_with_quarantine(table: FoldableTable, out: Path, beside: Path) -> tuple[int, Quarantine]:
    """Write a table to one file, and every row that is set aside to another.

    Args:
        table: the table.
        out: file of the good rows; the end of its name says the format.
        beside: CSV file of the rows set aside, with file, row, field, value and reason.

    Returns:
        Rows that were written, and those set aside.

    Raises:
        ConfigError: the end of the name is of no format.
        DataError: a file cannot be read.
        CapacityError: the disk is full; older files stay.
    """
    checked_format(out)
    with atomic_path(beside) as path, path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(BadRow._fields)
        quarantine = Quarantine(sink=writer.writerow)
        each = (table.read(part, quarantine) for part in table.partitions)
        rows = write_file(out, table.schema, chain.from_iterable(each), table.limits.group_bytes)
    return rows, quarantine
