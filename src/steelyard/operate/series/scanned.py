"""Series that one local file in text does not hold: folders, patterns, addresses, Arrow's formats.

Single files of CSV, JSON lines and Parquet are read with Polars, which every installation has;
these are read by the one scan of tables, which needs Arrow.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.errors import BackendError, DataError, TraceError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["is_scanned", "scanned_rows"]

_ENDS = (".arrow", ".feather", ".ipc", ".steelpack")


def is_scanned(source: str) -> bool:
    """Return whether a source is an address, a pattern, a folder or of one of Arrow's formats."""
    here = Path(source)
    if here.is_file():
        return source.lower().endswith(_ENDS)
    return here.is_dir() or "://" in source or bool(set(source) & set("*["))


def scanned_rows(source: str, most_bytes: int) -> "pl.DataFrame":
    """Read all rows of a table.

    Args:
        source: address, pattern, folder or file.
        most_bytes: most that its files may hold.

    Returns:
        The rows, files in the order of their names.

    Raises:
        BackendError: Arrow is not installed.
        DataError: there is nothing, too much, or a file cannot be read; it is named.
        TraceError: a row was set aside; its file, row, field and reason are named.
    """
    try:
        import polars as pl

        from steelyard.data.table import DataTable

        table = DataTable.scan(source)
    except ImportError as error:
        raise BackendError(
            f"{source} is read with Arrow, which is not installed",
            hint="pip install 'steelyard[data]'",
        ) from error
    if table.unreadable:
        name, why = next(iter(table.unreadable.items()))
        raise DataError(f"{name} cannot be read: {why}", hint="mend it or leave it out")
    if table.num_bytes > most_bytes:
        raise DataError(
            f"{source} is larger than {most_bytes >> 30} GiB", hint="cut it by time or by series"
        )
    rows, quarantine = table.collect()
    if quarantine.total:
        bad = quarantine.rows[0]
        raise TraceError(
            f"{bad.file}, row {bad.row}, field {bad.field!r}: {bad.value!r} is {bad.reason}; "
            f"{quarantine.total:,} of {len(rows) + quarantine.total:,} rows are like that",
            hint=f"steelyard data table clean '{source}' --out good.parquet writes the others",
        )
    found = pl.from_arrow(rows)
    assert isinstance(found, pl.DataFrame)
    return found
