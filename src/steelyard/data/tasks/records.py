"""Where records come from: files of text, lines or JSON, values in memory, or a function.

A source has a length and gives any record by its number, so nothing has to be read in order.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from steelyard.data.clean import decode
from steelyard.data.sources import TextFile, list_files
from steelyard.data.stages import hash_of
from steelyard.data.tasks.keys import key_of
from steelyard.errors import DataError, require

__all__ = ["Generated", "JsonLines", "Record", "RecordSource", "Records", "TextFiles", "TextLines"]

Record = Mapping[str, Any]
"""Fields by name: text, bytes, or numpy arrays of one dimension."""

_MAX_FILE_BYTES = 1 << 30
_SCAN_BYTES = 1 << 26


class RecordSource(Protocol):
    """What a task asks of its source."""

    @property
    def key(self) -> str:
        """Text that changes when the records do."""
        ...

    def __len__(self) -> int:
        """Count the records."""
        ...

    def __getitem__(self, index: int, /) -> Record:
        """Return record `index`, from 0; equal calls return equal records."""
        ...


class _Files:
    """Files in an order that depends on nothing but their names."""

    def __init__(self, *paths: Path | str, max_bytes: int | None = None) -> None:
        """Keep the names; files are listed when they are first asked for.

        A path that does not exist or holds no text file raises DataError then, so that a cache can
        be read where its source is not.

        Args:
            *paths: files, and folders whose text files are taken.
            max_bytes: stop once the files listed hold this much; None for all.
        """
        self._paths, self._max_bytes = [Path(path) for path in paths], max_bytes

    @cached_property
    def _files(self) -> list[TextFile]:
        """The files, in the order of their numbers."""
        return list_files(self._paths, self._max_bytes)

    @property
    def key(self) -> str:
        """Text that changes when a file is added, removed or changed."""
        return hash_of(
            type(self).__name__,
            [(str(file.path), file.size_bytes, file.modified_ns) for file in self._files],
        )


class TextFiles(_Files):
    """One record a file: {"text": its content}; empty text where a file is binary or too large."""

    def __len__(self) -> int:
        """Count the files."""
        return len(self._files)

    def __getitem__(self, index: int) -> Record:
        """Return the text of file `index`."""
        file = self._files[_checked(index, len(self))]
        if file.size_bytes > _MAX_FILE_BYTES:
            return {"text": ""}
        try:
            return {"text": decode(file.path.read_bytes()) or ""}
        except OSError as error:
            raise DataError(f"cannot read {file.path}: {error.strerror}") from error


class TextLines(_Files):
    """One record a line: {"text": the line without its end}; blank lines are left out."""

    def __len__(self) -> int:
        """Count the lines."""
        return self._firsts[-1]

    def __getitem__(self, index: int) -> Record:
        """Return line `index`."""
        return {"text": self._line(index)[0]}

    def _line(self, index: int) -> tuple[str, str]:
        """Return a line, and where it stands for messages."""
        place = bisect_right(self._firsts, _checked(index, len(self))) - 1
        path, (starts, ends) = self._files[place].path, self._bounds[place]
        row = index - self._firsts[place]
        with path.open("rb") as stream:
            stream.seek(int(starts[row]))
            raw = stream.read(int(ends[row] - starts[row]))
        where = f"{path} at byte {starts[row]}"
        try:
            return raw.decode("utf-8").rstrip("\r\n"), where
        except UnicodeDecodeError as error:
            raise DataError(
                f"{where}: a line is not UTF-8: {error.reason}", hint="convert the file to UTF-8"
            ) from error

    @cached_property
    def _bounds(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Where the lines of each file begin and end, in bytes."""
        return [_line_bounds(file.path) for file in self._files]

    @cached_property
    def _firsts(self) -> list[int]:
        """Number of the first line of each file, and of all lines."""
        return [0, *np.cumsum([len(starts) for starts, _ in self._bounds]).tolist()]


class JsonLines(TextLines):
    """One record a line: a JSON object whose strings and lists of numbers become its fields."""

    def __getitem__(self, index: int) -> Record:
        """Return the object in line `index`."""
        line, where = self._line(index)
        try:
            found = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise DataError(
                f"{where}: not JSON: {error}", hint="write one JSON object a line"
            ) from error
        if not isinstance(found, dict):
            raise DataError(
                f"{where}: a line holds a {type(found).__name__}, not an object",
                hint='write one JSON object a line, such as {"inputs": "...", "targets": "..."}',
            )
        return {
            name: np.array(value) if isinstance(value, list) else value
            for name, value in found.items()
        }


class Records:
    """Records in memory."""

    def __init__(self, records: Sequence[Record]) -> None:
        """Keep them.

        Args:
            records: fields by name; they must not be changed afterwards.
        """
        self._records = list(records)

    def __len__(self) -> int:
        """Count the records."""
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        """Return record `index`."""
        return self._records[_checked(index, len(self))]

    @property
    def key(self) -> str:
        """Hash of all records."""
        return self._key

    @cached_property
    def _key(self) -> str:
        """Hash the records once."""
        return key_of("records", self._records)


@dataclass(frozen=True, kw_only=True)
class Generated:
    """Records that a function makes, each from a random state of its own.

    Attributes:
        make: called with a generator, returns a record.
        size: number of records.
        seed: seed of all of them.
    """

    make: Callable[[np.random.Generator], Record]
    size: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a size or seed below its range.

        Raises:
            ConfigError: there would be no record, or the seed is negative.
        """
        require(
            self, size=(self.size >= 1, "at least 1"), seed=(0 <= self.seed < 2**63, "in [0, 2^63)")
        )

    def __len__(self) -> int:
        """Count the records."""
        return self.size

    def __getitem__(self, index: int) -> Record:
        """Return record `index`."""
        key = (self.seed << 64) | _checked(index, self.size)
        return self.make(np.random.Generator(np.random.Philox(key=key)))

    @property
    def key(self) -> str:
        """Hash of the function, the size and the seed."""
        return key_of("generated", self.make, self.size, self.seed)


def _checked(index: int, size: int) -> int:
    """Return an index that is in range."""
    if not 0 <= index < size:
        raise IndexError(index)
    return index


def _line_bounds(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return where the lines of a file that are not blank begin and end, in bytes."""
    raw = (
        np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
    )
    found = [
        np.flatnonzero(raw[first : first + _SCAN_BYTES] == ord("\n")) + first + 1
        for first in range(0, len(raw), _SCAN_BYTES)
    ]
    ends = np.concatenate([np.zeros(0, dtype=np.int64), *found])
    if len(raw) and (not len(ends) or ends[-1] < len(raw)):
        ends = np.append(ends, len(raw))
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)]
    # Blank is what holds only a line end, with or without a carriage return.
    sizes = ends - starts
    blank = (sizes == 1) & (raw[starts] == ord("\n")) if len(ends) else np.zeros(0, bool)
    blank |= (sizes == 2) & (raw[starts] == ord("\r")) & (raw[ends - 1] == ord("\n"))
    return starts[~blank], ends[~blank]
