"""JSON objects, one a line, as columns of text."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data.table.partitions import TablePart
from steelyard.data.table.quarantine import BadRow, Quarantine

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MISSING", "read_json_lines"]

MISSING = ("", "NA", "N/A", "#N/A", "NULL", "null", "None", "NaN", "nan")
"""Texts that stand for a missing value."""
_BLOCK_BYTES = 1 << 20


def read_json_lines(
    partition: TablePart, file: Any, names: list[str], quarantine: Quarantine, batch_rows: int
) -> Iterator[tuple["pa.RecordBatch", np.ndarray]]:
    """Read JSON objects, one a line.

    Args:
        partition: part of a file.
        file: its bytes, decompressed.
        names: columns of the file.
        quarantine: takes lines that are no objects.
        batch_rows: most rows of a batch.

    Yields:
        Columns of text, and the row of the file of each row, [rows].
    """
    rows: list[list[str | None]] = []
    numbers: list[int] = []
    for place, line in enumerate(_lines(file), start=partition.first_row):
        if not line.strip():
            continue
        found = _object(line)
        if found is None:
            text = line.decode(errors="replace").strip()
            quarantine.add(BadRow(partition.path, place, "", text, "no JSON object"))
            continue
        rows.append([_text(found.get(name)) for name in names])
        numbers.append(place)
        if len(rows) == batch_rows:
            yield _text_batch(rows, names), np.array(numbers)
            rows, numbers = [], []
    if rows:
        yield _text_batch(rows, names), np.array(numbers)


def _lines(file: Any) -> Iterator[bytes]:
    """Return the lines of a file, of Arrow's streams too."""
    left = b""
    while block := file.read(_BLOCK_BYTES):
        *whole, left = (left + block).split(b"\n")
        yield from whole
    if left:
        yield left


def _object(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line, None where it is none."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _text(value: Any) -> str | None:
    """Return a value's text, None where it is missing."""
    if value is None or isinstance(value, str):
        return None if value in MISSING else value
    return json.dumps(value)


def _text_batch(rows: list[list[str | None]], names: list[str]) -> "pa.RecordBatch":
    import pyarrow as pa

    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names)
