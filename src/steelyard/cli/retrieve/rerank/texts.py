"""Texts for `steelyard retrieve rerank build`: tables with a column of texts, files, folders."""

from pathlib import Path

from steelyard.data.clean import decode
from steelyard.data.sources import list_files
from steelyard.data.table import DataTable
from steelyard.errors import DataError
from steelyard.retrieve.datastore.passages import cut_passages

__all__ = ["read_texts"]

_TABLES = (".jsonl", ".ndjson", ".parquet", ".csv")


def read_texts(source: Path, *, column: str, words: int) -> list[tuple[str, str]]:
    """Read texts with their names.

    Args:
        source: a table with a column of texts, a row a document; or a text file or a folder of
            them, cut into passages.
        column: name of that column.
        words: most words of a passage.

    Returns:
        Name and text of each.

    Raises:
        DataError: it cannot be read, or has no such column.
    """
    if source.suffix in _TABLES:
        scanned = DataTable.scan(source)
        if column not in scanned.schema.names:
            raise DataError(
                f"{source} has no column {column!r}",
                hint=f"give --column one of {', '.join(scanned.schema.names)}",
            )
        # The texts alone: a value of another column that is unlike those before it spoils none.
        table, bad = scanned.select([column]).collect()
        if bad.total:
            first = bad.rows[0]
            raise DataError(
                f"{bad.total:,} rows of {source} cannot be read, the first is row {first.row}: "
                f"{first.reason}",
                hint="`steelyard data table clean` writes the good ones",
            )
        texts = table.column(column).to_pylist()
        return [(f"{source.name} row {row}", str(text or "")) for row, text in enumerate(texts, 1)]
    found: list[tuple[str, str]] = []
    for file in list_files([source]):
        text = decode(file.path.read_bytes())
        found += [(str(file.path), passage) for passage in cut_passages(text or "", words)]
    if not found:
        raise DataError(f"{source} holds no text", hint="name a file or folder with text")
    return found
