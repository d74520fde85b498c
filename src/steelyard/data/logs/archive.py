"""Logs as an archive: templates once, their variables as columns, searched without unpacking all.

An archive is a pack. Lines are kept in groups; a group has the frame of each line, and a section
for each frame with the variables of its lines. A frame is what stands in a line around its
variables, those of the header too, so that a line is put together to the last byte. A line that no
frame renders is kept as it is.
"""

import json
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.logs.columns import decode_column, encode_column, squeezed, unsqueezed
from steelyard.data.logs.formats import LogFormat, guess_format
from steelyard.data.logs.framing import LineFramer
from steelyard.data.logs.reading import open_log
from steelyard.data.pack import Pack, write_pack
from steelyard.errors import DataError
from steelyard.files import atomic_path

__all__ = ["Compressed", "LogArchive", "compress"]

_GROUP_LINES = 1 << 18
_PROBED_LINES = 200
_LEVEL = 19


@dataclass(frozen=True, kw_only=True)
class Compressed:
    """What an archive took.

    Attributes:
        lines: lines of the log.
        raw_lines: kept as they are.
        frames: texts around variables.
        num_bytes: bytes of the log, uncompressed.
        archive_bytes: bytes of the archive.
    """

    lines: int
    raw_lines: int
    frames: int
    num_bytes: int
    archive_bytes: int


def compress(
    path: Path, archive: Path, *, format: str | None = None, level: int = _LEVEL
) -> Compressed:
    """Write the archive of a log.

    Args:
        path: the log, compressed by gzip or not.
        archive: the file to write.
        format: name or pattern of the header; None finds one.
        level: level of zstd, 1 to 22.

    Returns:
        What it took.

    Raises:
        DataError: the log cannot be read.
    """
    try:
        with open_log(str(path)) as file:
            raw = file.read()
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    ends_in_break = raw.endswith(b"\n")
    lines = raw.removesuffix(b"\n").split(b"\n") if raw else []
    texts = [line.decode(errors="surrogateescape") for line in lines]
    chosen = LogFormat.of(guess_format(texts[:_PROBED_LINES]) if format is None else format)
    framer = LineFramer(chosen)
    sections: dict[str, NDArray[Any]] = {}
    raw_lines = 0
    for group, first in enumerate(range(0, len(texts), _GROUP_LINES)):
        packed, kept_raw = _packed_group(framer, texts[first : first + _GROUP_LINES], level)
        raw_lines += kept_raw
        sections |= {f"{group}/{name}": value for name, value in packed.items()}
    meta = {
        "format": chosen.pattern,
        "frames": framer.frames,
        "templates": framer.templates,
        "groups": -(-len(texts) // _GROUP_LINES),
        "ends_in_break": ends_in_break,
        "bytes": len(raw),
        "lines": len(texts),
    }
    listing = json.dumps(meta, ensure_ascii=False).encode(errors="surrogateescape")
    write_pack(archive, {"meta": _bytes(squeezed(listing)), **sections})
    return Compressed(
        lines=len(texts), raw_lines=raw_lines, frames=len(framer.frames), num_bytes=len(raw),
        archive_bytes=archive.stat().st_size,
    )  # fmt: skip


def _bytes(raw: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(raw, np.uint8)


def _packed_group(
    framer: LineFramer, texts: Sequence[str], level: int
) -> tuple[dict[str, NDArray[Any]], int]:
    """Return the sections of a group of lines, and how many lines are kept as they are."""
    members: dict[int, list[list[str]]] = {}
    numbers = np.zeros(len(texts), np.int64)
    raw: list[str] = []
    for place, (text, cut) in enumerate(zip(texts, framer.cut(texts), strict=True)):
        if cut is None:
            raw.append(text)
            continue
        number, variables = cut
        numbers[place] = number + 1
        members.setdefault(number, []).append(variables)
    found: dict[str, NDArray[Any]] = {
        "frames": _bytes(encode_column([str(number) for number in numbers], level))
    }
    found["counts"] = np.array([len(texts)], np.int64)
    if raw:
        text = "\n".join(raw).encode(errors="surrogateescape")
        found["raw"] = _bytes(squeezed(text, level))
    for number, rows in members.items():
        columns = [encode_column(column, level) for column in zip(*rows, strict=True)]
        packed = b"".join(struct.pack("<I", len(column)) + column for column in columns)
        found[f"frame/{number}"] = _bytes(packed)
    return found, len(raw)


class LogArchive:
    """An archive that is read.

    Attributes:
        templates: text of each frame's template.
        lines: lines of the log.
        num_bytes: bytes of the log, uncompressed.
        read_bytes: bytes of sections that were read so far, the directory left out.
    """

    def __init__(self, path: Path) -> None:
        """Open an archive; sections are read when they are needed.

        Args:
            path: the file.

        Raises:
            DataError: it is no archive of a log, or is damaged.
        """
        self._pack = Pack.open(path)
        self.read_bytes = 0
        meta = self._meta(path)
        self._frames: list[list[str]] = meta["frames"]
        self.templates: list[str] = meta["templates"]
        self.lines: int = meta["lines"]
        self.num_bytes: int = meta["bytes"]
        self._groups: int = meta["groups"]
        self._ends_in_break: bool = meta["ends_in_break"]

    def _meta(self, path: Path) -> dict[str, Any]:
        """Return what the archive says of itself; other packs have a section of that name too."""
        raw = self._section("meta") if "meta" in self._pack.names else b""
        try:
            return json.loads(unsqueezed(raw).decode(errors="surrogateescape"))
        except (DataError, ValueError) as error:
            raise DataError(
                f"{path} is no archive of a log", hint="write one with logs compress"
            ) from error

    def _section(self, name: str) -> bytes:
        raw = self._pack[name].tobytes()
        self.read_bytes += len(raw)
        return raw

    def unpack(self, path: Path) -> None:
        """Write the log as it was.

        Args:
            path: the file.

        Raises:
            DataError: the archive is damaged.
        """
        with atomic_path(path) as beside, beside.open("wb") as file:
            for number, (_, text) in enumerate(self.grep()):
                file.write(b"\n" if number else b"")
                file.write(text.encode(errors="surrogateescape"))
            if self._ends_in_break:
                file.write(b"\n")

    def grep(self, pattern: str = "", template: str = "") -> Iterator[tuple[int, str]]:
        """Yield lines that match, in their order; frames that cannot are not unpacked.

        Args:
            pattern: regular expression that is searched for in the line; empty for all.
            template: text that the template of the line holds; empty for all lines.

        Yields:
            Number of the line, from 1, and its text.

        Raises:
            DataError: the archive is damaged, or the pattern is no regular expression.
        """
        try:
            search = re.compile(pattern).search
        except re.error as error:
            raise DataError(f"the pattern {pattern!r} is no regular expression: {error}") from error
        chosen = {place for place, text in enumerate(self.templates) if template in text}
        first = 1
        for group in range(self._groups):
            count = int(np.frombuffer(self._section(f"{group}/counts"), np.int64)[0])
            for place, text in self._group(group, count, chosen, with_raw=not template):
                if search(text):
                    yield first + place, text
            first += count

    def _group(
        self, group: int, count: int, chosen: set[int], *, with_raw: bool
    ) -> Iterator[tuple[int, str]]:
        """Yield the lines of a group that have some frames."""
        listed = decode_column(self._section(f"{group}/frames"), count)
        numbers = np.array(list(map(int, listed)), np.int64) - 1
        present = sorted({int(number) for number in np.unique(numbers)} & chosen)
        sources: dict[int, Iterator[str]] = {
            number: iter(self._rendered(group, number, int((numbers == number).sum())))
            for number in present
        }
        if with_raw and f"{group}/raw" in self._pack.names:
            raw = unsqueezed(self._section(f"{group}/raw"))
            sources[-1] = iter(raw.decode(errors="surrogateescape").split("\n"))
        for place in np.flatnonzero(np.isin(numbers, list(sources))).tolist():
            yield place, next(sources[int(numbers[place])])

    def _rendered(self, group: int, number: int, count: int) -> list[str]:
        """Return the lines of a frame."""
        packed, place, columns = self._section(f"{group}/frame/{number}"), 0, []
        while place < len(packed):
            (size,) = struct.unpack_from("<I", packed, place)
            columns.append(decode_column(packed[place + 4 : place + 4 + size], count))
            place += 4 + size
        frame = self._frames[number]
        if not columns:
            return frame * count
        # Texts and variables in turn, a text first and last.
        parts: list[list[str]] = [[frame[0]] * count]
        for column, text in zip(columns, frame[1:], strict=True):
            parts += [column, [text] * count]
        return list(map("".join, zip(*parts, strict=True)))
