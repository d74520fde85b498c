"""Which files a table has, and the parts of them that are read at once."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steelyard.errors import DataError

__all__ = ["FORMATS", "TableFile", "TablePart", "format_of", "list_files", "split_lines"]

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "json lines",
    ".ndjson": "json lines",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
"""Formats by the end of a file's name; text may end in .gz as well."""
_SPLIT_BYTES = 32 << 20
_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table.

    Attributes:
        path: where it is.
        num_bytes: its size.
        columns: names in the file, in their order.
    """

    path: str
    num_bytes: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TablePart:
    """A part of a file.

    Attributes:
        path: the file.
        format: one of `FORMATS`.
        first: first byte of lines, or first row group or record batch.
        last: one past the last.
        first_row: row of the file at which the part begins, from 1, the line of names left out.
        num_bytes: bytes on disk.
    """

    path: str
    format: str
    first: int
    last: int
    first_row: int
    num_bytes: int


def format_of(path: str) -> str:
    """Return the format of a file by the end of its name.

    Args:
        path: the file.

    Returns:
        One of the values of `FORMATS`, empty for none of them.
    """
    name = path.lower().removesuffix(".gz")
    found = next((kind for end, kind in FORMATS.items() if name.endswith(end)), "")
    # Compressed columns are compressed inside: a whole file of them cannot be sought.
    return "" if found in ("parquet", "arrow") and path.lower().endswith(".gz") else found


def list_files(sources: Sequence[str | Path]) -> list[str]:
    """Return the files of paths, patterns and folders.

    Args:
        sources: paths, patterns with *, and folders, which are searched with all below.

    Returns:
        Files that are tables, each once, by name within a source.

    Raises:
        DataError: a source names no table.
    """
    found: list[str] = []
    for source in map(str, sources):
        if Path(source).is_dir():
            listed = sorted(str(path) for path in Path(source).rglob("*") if path.is_file())
        elif Path(source).is_file():
            listed = [source]
        else:
            # A pattern may be absolute, which `Path.glob` refuses.
            listed = sorted(glob.glob(source, recursive=True))  # noqa: PTH207
        tables = [path for path in listed if format_of(path)]
        if not tables:
            raise DataError(
                f"{source} is of no known format" if listed else f"no file at {source}",
                hint=f"give files that end in {', '.join(FORMATS)}; text may end in .gz too",
            )
        found += tables
    return list(dict.fromkeys(found))


def split_lines(
    path: str, *, quoted: bool, split_bytes: int = _SPLIT_BYTES
) -> list[tuple[int, int]]:
    """Return where a file of lines may be cut, so that parts can be read by themselves.

    Args:
        path: the file, not compressed.
        quoted: whether a line break between quotation marks belongs to a value.
        split_bytes: least size of a part.

    Returns:
        First byte of each part and its first line from 0; one part of a small file.
    """
    size = Path(path).stat().st_size
    cuts = [(0, 0)]
    if size <= split_bytes:
        return cuts
    lines, marks, place, wanted = 0, 0, 0, split_bytes
    with Path(path).open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            raw = np.frombuffer(block, np.uint8)
            breaks = np.flatnonzero(raw == ord("\n"))
            if quoted:
                at = np.flatnonzero(raw == ord('"'))
                # After an odd number of marks one is inside quotation marks; a doubled mark is two.
                breaks = breaks[(np.searchsorted(at, breaks) + marks) % 2 == 0]
                marks += len(at)
            while place + len(block) > wanted and len(breaks):
                later = int(np.searchsorted(breaks, wanted - place))
                if later >= len(breaks):
                    break
                first = place + int(breaks[later]) + 1
                if first < size:
                    cuts.append((first, lines + later + 1))
                wanted = first + split_bytes
            lines += len(breaks)
            place += len(block)
    return cuts
