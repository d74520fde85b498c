"""Tables whose text files are parsed in the first pass alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from steelyard.data.table.table import DataTable
from steelyard.files import folder_beside

__all__ = ["parsed_beside", "parsed_once"]


def parsed_once(table: DataTable, folder: Path) -> DataTable:
    """Return a table whose text files are parsed in the first pass alone.

    Whoever first reads a part to its end keeps its values in the folder as Arrow, with what was
    set aside; later passes, of other columns too, read that, with equal results. A part is parsed
    again where its file has changed, the folder is not there, or the disk was full.

    Args:
        table: a table of files.
        folder: an empty folder that belongs to the caller, who removes it; it grows to about the
            size of the text.

    Returns:
        The table.
    """
    return replace(table, kept_in=folder)


@contextmanager
def parsed_beside(table: DataTable, out: Path) -> Iterator[DataTable]:
    """Keep what is parsed of text files beside what is written, until all is.

    Args:
        table: a table of files.
        out: file or folder that is written; its folder is made where it is missing.

    Yields:
        The table of `parsed_once`.
    """
    with folder_beside(out) as folder:
        yield parsed_once(table, folder)
