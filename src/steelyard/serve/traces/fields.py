"""Text files of traces and the numbers in them; errors name file, row and field."""

import csv
import gzip
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from steelyard.errors import TraceError

__all__ = ["open_text", "read_number"]

_Number = TypeVar("_Number", int, float)


@contextmanager
def open_text(path: Path, formats: str) -> Iterator[Any]:
    """Open a plain or gzip-compressed text file, told apart by its first bytes.

    Args:
        path: the file.
        formats: what it should hold, for the error.

    Yields:
        Its lines.

    Raises:
        TraceError: the file cannot be read.
    """
    try:
        with path.open("rb") as probe:
            opened = gzip.open if probe.read(2) == b"\x1f\x8b" else open
        with opened(path, "rt", encoding="utf-8", newline="") as stream:
            yield stream
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"cannot read {path}: {error}", hint=f"give {formats}") from error


def read_number(
    row: dict[str, str],
    name: str,
    where: str,
    *,
    read: Callable[[str], _Number] = float,
    kind: str = "a number",
    least: int = 0,
) -> _Number:
    """Read a finite number from a row.

    Args:
        row: cells by column.
        name: the column.
        where: file and line, for the error.
        read: function that makes the number of the cell.
        kind: what the cell should hold, for the error.
        least: smallest value allowed.

    Returns:
        The number.

    Raises:
        TraceError: names file, row and field.
    """
    try:
        value = read(row[name])
    except KeyError as error:
        raise TraceError(f"{where}: no column {name!r}", hint="add the column") from error
    except (TypeError, ValueError) as error:
        raise TraceError(f"{where}: {name} is {row[name]!r}", hint=f"{name} is {kind}") from error
    if not least <= value < math.inf:
        hint = f"{name} is finite and at least {least}"
        raise TraceError(f"{where}: {name} is {value}", hint=hint)
    return value
