"""Texts of files with the lines they stand on: prose, source code, HTML, JSON lines, Parquet."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec

from steelyard.data.clean import decode
from steelyard.data.documents import MAX_FILE_BYTES
from steelyard.data.sources import TEXT_SUFFIXES, TextFile, list_files, other_files
from steelyard.errors import ConfigError, SteelyardError

__all__ = [
    "CORPUS_SUFFIXES",
    "SkippedFiles",
    "TextPart",
    "count_rows",
    "list_corpus",
    "read_file",
]

_ROWS = frozenset((".jsonl", ".ndjson", ".parquet"))
CORPUS_SUFFIXES = TEXT_SUFFIXES | _ROWS
"""Endings that are read inside a folder; a file that is named itself is read whatever its
ending."""
_FIELDS = ("text", "content", "body", "passage", "abstract", "contents")
"""Names of the column with the text, of which the first that is there is taken."""
_BLOCK = 1 << 20
_SILENT_TAGS = frozenset(("script", "style", "template"))


@dataclass(frozen=True, slots=True)
class TextPart:
    """A text of a file.

    Attributes:
        lines: its lines.
        first_line: place in the file of the first one, from 1; of a table, the row.
        is_row: whether all lines stand in one row of a table.
    """

    lines: Sequence[str]
    first_line: int = 1
    is_row: bool = False


@dataclass(slots=True)
class SkippedFiles:
    """Files and rows that hold no text, counted.

    Attributes:
        counts: how many, by reason.
        examples: the first of each.
    """

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def note(self, reason: str, where: object, count: int = 1) -> None:
        """Count one more.

        Args:
            reason: why it is left out.
            where: file, or file and row.
            count: how many there are.
        """
        self.counts[reason] += count
        self.examples.setdefault(reason, str(where))

    def take(self, counts: Mapping[str, int], where: object) -> None:
        """Add the counts of an earlier build.

        Args:
            counts: how many, by reason.
            where: the file that they are of.
        """
        for reason, count in counts.items():
            self.note(reason, where, count)

    def told(self) -> str:
        """Return counts in words, with an example of each."""
        parts = []
        for reason, count in self.counts.most_common():
            example = self.examples.get(reason)
            parts.append(f"{count:,} {reason}{f' (such as {example})' if example else ''}")
        return ", ".join(parts)


def list_corpus(sources: Sequence[Path], skipped: SkippedFiles) -> list[TextFile]:
    """List the files with text behind files and folders, by name.

    Args:
        sources: files and folders.
        skipped: takes in how many files have other endings.

    Returns:
        Files.

    Raises:
        DataError: a source does not exist, or a folder holds no file that is read.
    """
    paths = [Path(source).expanduser().resolve() for source in sources]
    files = list_files(paths, suffixes=CORPUS_SUFFIXES)
    for path in other_files(paths, CORPUS_SUFFIXES):
        skipped.note("of another ending", path)
    return sorted(files, key=lambda file: str(file.path))


def count_rows(file: TextFile) -> int:
    """Return the rows of a table without reading their texts.

    Args:
        file: the file.

    Returns:
        Rows of Parquet, lines of JSON lines; 0 for other files, and where that cannot be told.
    """
    if file.path.suffix not in _ROWS or not file.size_bytes:
        return 0
    try:
        if file.path.suffix == ".parquet":
            from pyarrow.parquet import read_metadata

            return read_metadata(file.path).num_rows
        with file.path.open("rb") as lines:
            return sum(block.count(b"\n") for block in iter(lambda: lines.read(_BLOCK), b"")) or 1
    except (OSError, ValueError):
        # Damaged Parquet raises a ValueError; the reader counts such a file as left out.
        return 0


def read_file(file: TextFile, skipped: SkippedFiles, text_field: str = "") -> Iterator[TextPart]:
    """Yield the texts of a file.

    Args:
        file: the file.
        skipped: takes in why there are none.
        text_field: column or key with the text of JSON lines and Parquet; a usual one when empty.

    Yields:
        Texts; of a table one per row.

    Raises:
        ConfigError: a table has no such column.
    """
    if file.size_bytes > MAX_FILE_BYTES and file.path.suffix != ".parquet":
        skipped.note("larger than 1 GiB", file.path)
        return
    if file.path.suffix == ".parquet":
        yield from _parquet(file.path, skipped, text_field)
        return
    try:
        raw = file.path.read_bytes()
    except OSError:
        skipped.note("unreadable", file.path)
        return
    if file.path.suffix in _ROWS:
        yield from _json_lines(raw, file.path, skipped, text_field)
        return
    text = decode(raw)
    if text is None:
        skipped.note("binary" if b"\0" in raw or not _has_letters(raw) else "not UTF-8", file.path)
    elif not text.strip():
        skipped.note("empty", file.path)
    else:
        is_marked = file.path.suffix.lower() in (".html", ".htm")
        yield TextPart(_html_lines(text) if is_marked else text.splitlines())


def _has_letters(raw: bytes) -> bool:
    """Whether most of some bytes are of a text in an old encoding."""
    few = raw[:4096]
    return sum(32 <= byte < 127 or byte in b"\t\r\n" for byte in few) > 0.7 * len(few)


class _HtmlText(HTMLParser):
    """Collects what a page shows, on the lines on which it stands."""

    def __init__(self, num_lines: int) -> None:
        super().__init__(convert_charrefs=True)
        self.lines = [""] * (num_lines + 1)
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in _SILENT_TAGS

    def handle_endtag(self, tag: str) -> None:
        self._silent = max(0, self._silent - (tag in _SILENT_TAGS))

    def handle_data(self, data: str) -> None:
        if self._silent:
            return
        first = self.getpos()[0] - 1
        for place, part in enumerate(data.split("\n"), start=first):
            if part.strip():
                self.lines[place] += f" {part.strip()}"


def _html_lines(text: str) -> list[str]:
    """Return what a page shows, line by line."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    found = _HtmlText(text.count("\n") + 1)
    found.feed(text)
    found.close()
    return [line.strip() for line in found.lines]


def _json_lines(raw: bytes, path: Path, skipped: SkippedFiles, name: str) -> Iterator[TextPart]:
    """Yield the text of each object, named by its line."""
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            skipped.note("rows that are no JSON", f"{path}:{number}")
            continue
        keys = tuple(row) if isinstance(row, dict) else ()
        chosen = _field(keys, name)
        if name and keys and not chosen:
            raise ConfigError(
                f"{path}:{number} has no key {name!r}", hint=f"keys are {', '.join(keys)}"
            )
        yield from _row(row.get(chosen) if chosen else None, path, number, skipped)


def _parquet(path: Path, skipped: SkippedFiles, name: str) -> Iterator[TextPart]:
    """Yield the text of each row."""
    from steelyard.data.table import DataTable

    try:
        table = DataTable.scan(path)
    except SteelyardError:
        skipped.note("unreadable", path)
        return
    chosen = _field(tuple(table.schema.names), name)
    if not chosen:
        raise ConfigError(
            f"{path} has no column {name or 'of text'!r}",
            hint=f"give --text-field; columns are {', '.join(table.schema.names)}",
        )
    number = 0
    for batch in table.select([chosen]).batches:
        for value in batch.column(0).to_pylist():
            number += 1
            yield from _row(value, path, number, skipped)


def _field(names: Sequence[str], wanted: str) -> str:
    """Return the column with the text, empty where there is none."""
    if wanted:
        return wanted if wanted in names else ""
    return next((name for name in _FIELDS if name in names), "")


def _row(value: Any, path: Path, number: int, skipped: SkippedFiles) -> Iterator[TextPart]:
    """Yield a row that has a text."""
    if isinstance(value, str) and value.strip():
        yield TextPart(value.splitlines(), number, is_row=True)
    else:
        skipped.note("rows without text", f"{path}:{number}")
