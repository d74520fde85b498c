"""Vectors from tables: a column of lists in Parquet, or a list in each line of JSON."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError

__all__ = ["TABLE_SUFFIXES", "read_vector_table"]

TABLE_SUFFIXES = frozenset((".parquet", ".jsonl", ".ndjson"))
"""Endings of tables that may hold vectors."""
_BATCH = 10_000

Floats = NDArray[np.float32]


def read_vector_table(path: Path, column: str = "") -> Floats:
    """Read the vectors of a table into memory.

    Args:
        path: .parquet, or .jsonl and .ndjson whose lines are lists, or objects with one.
        column: name of the column, or of the key; without one there must be only one that holds
            lists of numbers.

    Returns:
        float32 [N, D].

    Raises:
        DataError: the file cannot be read, no or several columns hold lists of numbers, or a row is
            empty, of another length, or not of finite numbers (the row is named).
    """
    try:
        parts = _parquet(path, column) if path.suffix == ".parquet" else _lines(path, column)
        found = [_matrix(path, first, rows) for first, rows in parts]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(
            f"cannot read vectors from {path}: {reason}", hint="give the path of a whole file"
        ) from error
    if not found:
        raise DataError(f"{path} holds no rows", hint="give a table with a vector in each row")
    for part, first in zip(found, np.cumsum([0, *map(len, found)]), strict=False):
        if part.shape[1] != found[0].shape[1]:
            raise _other_length(path, int(first), part.shape[1], found[0].shape[1])
    return np.concatenate(found)


def _parquet(path: Path, column: str) -> Iterator[tuple[int, list[Any]]]:
    """Yield the lists of some rows at a time, with the number of the first."""
    import polars as pl
    from polars.exceptions import PolarsError

    try:
        schema = pl.read_parquet_schema(path)
        named = [
            name
            for name, kind in schema.items()
            if isinstance(kind, (pl.List, pl.Array)) and kind.inner.is_numeric()
        ]
        chosen = _chosen(path, column, named, list(schema))
        values = pl.read_parquet(path, columns=[chosen])[chosen]
    except PolarsError as error:
        raise DataError(f"cannot read vectors from {path}: {error}") from error
    for first in range(0, len(values), _BATCH):
        yield first, values[first : first + _BATCH].to_list()


def _lines(path: Path, column: str) -> Iterator[tuple[int, list[Any]]]:
    """Yield the lists of some lines at a time, with the number of the first."""
    rows: list[Any] = []
    first, chosen = 0, column
    with path.open("rb") as file:
        for number, line in enumerate(file):
            try:
                row = msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                raise DataError(f"{path}: row {number + 1} is no JSON: {error}") from error
            if isinstance(row, dict):
                if not chosen:
                    lists = [name for name, value in row.items() if isinstance(value, list)]
                    chosen = _chosen(path, "", lists, list(row))
                row = row.get(chosen)
            rows.append(row)
            if len(rows) == _BATCH:
                yield first, rows
                rows, first = [], number + 1
    if rows:
        yield first, rows


def _chosen(path: Path, column: str, lists: list[str], names: list[str]) -> str:
    """Return the column to read."""
    if column in lists or (not column and len(lists) == 1):
        return column or lists[0]
    told = ", ".join(lists) or "none"
    raise DataError(
        f"{path}: {f'column {column!r} holds no vectors' if column else 'which column is meant?'}; "
        f"columns with lists of numbers: {told}; all: {', '.join(names)}",
        hint="name one by --vector-column",
    )


def _matrix(path: Path, first: int, rows: list[Any]) -> Floats:
    """Return rows of one length."""
    width = len(rows[0]) if isinstance(rows[0], list) else 0
    for place, row in enumerate(rows):
        if not isinstance(row, list) or not row:
            raise DataError(
                f"{path}: row {first + place + 1} holds no vector", hint="give lists of numbers"
            )
        if len(row) != width:
            raise _other_length(path, first + place, len(row), width)
    try:
        found = np.array(rows, np.float32)
    except (TypeError, ValueError):
        found = np.full((len(rows), width), np.nan, np.float32)
        for place, row in enumerate(rows):
            if all(isinstance(value, (int, float)) for value in row):
                found[place] = row
    bad = ~np.isfinite(found).all(axis=1)
    if bad.any():
        row = first + int(bad.argmax()) + 1
        raise DataError(f"{path}: row {row} holds what is no finite number", hint="mend that row")
    return found


def _other_length(path: Path, row: int, own: int, width: int) -> DataError:
    """Return the error of a row of another length."""
    return DataError(
        f"{path}: row {row + 1} has {own} numbers, those before have {width}",
        hint="give vectors of one length",
    )
