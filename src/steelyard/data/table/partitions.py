"""Which files a table has, and the parts of them that are read at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steelyard.data.table.sources import Found, is_remote, list_found
from steelyard.errors import DataError

__all__ = ["FORMATS", "TableFile", "TablePart", "format_of", "is_gzip", "list_files", "split_lines"]

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
    ".steelpack": "steelpack",
    ".dat": "item lines",
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
        rows: their number where the file says it, None in text.
    """

    path: str
    num_bytes: int
    columns: tuple[str, ...]
    rows: int | None = None


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
        rows: their number where the file says it, None in text.
    """

    path: str
    format: str
    first: int
    last: int
    first_row: int
    num_bytes: int
    rows: int | None = None


def is_gzip(path: str) -> bool:
    """Return whether a file is compressed as a whole."""
    plain = path.partition("?")[0] if is_remote(path) else path
    return plain.lower().endswith(".gz")


def format_of(path: str) -> str:
    """Return the format of a file by the end of its name.

    Args:
        path: the file.

    Returns:
        One of the values of `FORMATS`, empty for none of them.
    """
    plain = (path.partition("?")[0] if is_remote(path) else path).lower()
    name = plain.removesuffix(".gz")
    found = next((kind for end, kind in FORMATS.items() if name.endswith(end)), "")
    # Compressed columns are compressed inside: a whole file of them cannot be sought.
    return "" if found in ("parquet", "arrow", "steelpack") and plain.endswith(".gz") else found


def list_files(sources: Sequence[str | Path]) -> list[Found]:
    """Return the files of paths, patterns, folders and addresses.

    Args:
        sources: paths, patterns with *, folders, which are searched with all below, and addresses.

    Returns:
        Files that are tables, each once, by name within a source.

    Raises:
        DataError: a source names no table.
    """
    found: list[Found] = []
    for source in map(str, sources):
        listed = list_found(source)
        tables = [item for item in listed if format_of(item.path)]
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
