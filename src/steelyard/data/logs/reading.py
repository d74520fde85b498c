"""Log files as a table: fields of the header, content, and what is wrong with a line."""

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from steelyard.data.logs.formats import LogFormat, guess_format
from steelyard.data.table.partitions import TableFile, TablePart, split_lines
from steelyard.data.table.quarantine import Quarantine
from steelyard.data.table.reading import ReadLimits
from steelyard.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.fold import Fold
    from steelyard.data.table.folding import Folded

__all__ = ["CONTINUED", "INVALID", "UNFORMATTED", "LogTable", "decoded", "find_logs"]

CONTINUED, UNFORMATTED, INVALID = "continued", "no format", "invalid UTF-8"
"""What `problem` says of a line: it belongs to the one before, or has no header, or is no text."""
_PROBED_LINES = 200
_LONGEST_LINE_BYTES = 1 << 20


def find_logs(sources: Sequence[str | Path]) -> list[str]:
    """Return the files of paths, patterns and folders, whatever their names end in.

    Args:
        sources: paths, patterns with *, and folders, which are searched with all below.

    Returns:
        Files, each once, by name within a source.

    Raises:
        DataError: a source names no file.
    """
    import glob

    found: list[str] = []
    for source in map(str, sources):
        if Path(source).is_dir():
            listed = sorted(str(path) for path in Path(source).rglob("*") if path.is_file())
        else:
            listed = sorted(glob.glob(source))  # noqa: PTH207 - patterns may be absolute
            # A name such as "app[1].log" is no pattern where there is a file of that name.
            listed = [source] if Path(source).is_file() else listed
        if not listed:
            raise DataError(f"no log at {source}", hint="give files, patterns or folders")
        found += listed
    return list(dict.fromkeys(found))


def decoded(line: bytes) -> tuple[str, bool]:
    r"""Return a line as text, and whether it is valid UTF-8; other bytes are shown as `\\xff`."""
    try:
        return line.decode(), True
    except UnicodeDecodeError:
        return line.decode(errors="backslashreplace"), False


def open_log(path: str) -> IO[bytes]:
    """Open a log, compressed by gzip or not."""
    if path.lower().endswith(".gz"):
        return cast("IO[bytes]", gzip.open(path))
    return Path(path).open("rb")


@dataclass(frozen=True, kw_only=True)
class LogTable:
    """Lines of logs as rows, for folds: none is dropped.

    Columns are `line` (in its file, from 1), the fields of the format, of which the last is
    `Content`, and `problem`, empty for a line that is as it should be.

    Attributes:
        files: the logs.
        partitions: parts that are read at once.
        format: format of the headers.
        unreadable: reason by file that was left out.
        steps: none; folds ask for it.
        limits: how much is read at once.
    """

    files: tuple[TableFile, ...]
    partitions: tuple[TablePart, ...]
    format: LogFormat
    unreadable: dict[str, str] = field(default_factory=dict)
    steps: tuple[Any, ...] = ()
    limits: ReadLimits = field(default_factory=ReadLimits)

    @classmethod
    def scan(cls, *sources: str | Path, format: str | None = None) -> "LogTable":
        """Look at logs; lines are read when they are needed.

        Args:
            *sources: paths, patterns with *, and folders.
            format: name or pattern of the header; None finds the known one that the first lines of
                the first file fit, and takes lines whole where none does.

        Returns:
            The table.

        Raises:
            DataError: nothing can be read.
            ConfigError: the format is neither a name nor a pattern.
        """
        files: list[TableFile] = []
        parts: list[TablePart] = []
        unreadable: dict[str, str] = {}
        first: list[str] = []
        for path in find_logs(sources):
            try:
                lines = _first_lines(path)
            except (OSError, EOFError) as error:
                unreadable[path] = f"cannot read {path}: {error}"
                continue
            first = first or lines
            size = Path(path).stat().st_size
            cuts = [(0, 0)] if path.lower().endswith(".gz") else split_lines(path, quoted=False)
            ends = [*(place for place, _ in cuts[1:]), size]
            parts += [
                TablePart(path, "log", place, end, line + 1, end - place)
                for (place, line), end in zip(cuts, ends, strict=True)
            ]
            files.append(TableFile(path, size, ()))
        if not files:
            raise DataError(f"no log can be read: {'; '.join(unreadable.values())}")
        chosen = LogFormat.of(guess_format(first) if format is None else format)
        names = ("line", *chosen.fields, "problem")
        return cls(
            files=tuple(TableFile(item.path, item.num_bytes, names) for item in files),
            partitions=tuple(parts),
            format=chosen,
            unreadable=unreadable,
        )

    @cached_property
    def schema(self) -> "pa.Schema":
        """Columns with their types."""
        import pyarrow as pa

        texts = [(name, pa.string()) for name in (*self.format.fields, "problem")]
        return pa.schema([("line", pa.int64()), *texts])

    def read(self, partition: TablePart, quarantine: Quarantine) -> Iterator["pa.RecordBatch"]:
        """Read a part.

        Args:
            partition: one of `partitions`.
            quarantine: takes nothing: every line is a row.

        Yields:
            Batches of the schema.

        Raises:
            DataError: the file has changed or cannot be read.
        """
        del quarantine
        rows: list[tuple[Any, ...]] = []
        try:
            for number, line in enumerate(_lines(partition), partition.first_row):
                rows.append((number, *self.fields_of(line)))
                if len(rows) == self.limits.batch_rows:
                    yield self._batch(rows)
                    rows = []
        except (OSError, EOFError) as error:
            raise DataError(
                f"cannot read {partition.path} after line {partition.first_row + len(rows)}: "
                f"{error}",
                hint="repair the file, or leave it out",
            ) from error
        if rows:
            yield self._batch(rows)

    def fields_of(self, line: bytes) -> tuple[str | None, ...]:
        """Return the fields of a line, and what is wrong with it.

        Args:
            line: without its break.

        Returns:
            One text a field, None where the line has none, and the problem.
        """
        text, is_valid = decoded(line)
        found = self.format.regex.match(text.rstrip("\r"))
        names = self.format.fields
        if found is None:
            problem = CONTINUED if text[:1] in (" ", "\t") else UNFORMATTED
            return (*([None] * (len(names) - 1)), text, problem)
        return (*(found[name] for name in names), "" if is_valid else INVALID)

    def _batch(self, rows: list[tuple[Any, ...]]) -> "pa.RecordBatch":
        import pyarrow as pa

        columns = [
            pa.array(values, item.type)
            for values, item in zip(zip(*rows, strict=True), self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def with_limits(self, limits: ReadLimits) -> "LogTable":
        """Return the table whose batches are bounded so."""
        return replace(self, limits=limits)

    def batches(self) -> "Iterator[tuple[str, pa.RecordBatch]]":
        """Yield the path of each batch, and the batch, in the order of files and lines."""
        for partition in self.partitions:
            for batch in self.read(partition, Quarantine()):
                yield partition.path, batch

    def fold(
        self,
        *folds: "Fold[Any]",
        workers: int = 1,
        cluster: str = "",
        journal: Path | None = None,
    ) -> "Folded":
        """Compute several things in one pass; see `DataTable.fold`.

        Args:
            *folds: what to compute; names differ.
            workers: processes; 1 stays in this one.
            cluster: address of a Ray cluster, whose nodes find the files under the same names;
                empty for processes of this machine.
            journal: folder that keeps finished parts until all are.

        Returns:
            Results by name.
        """
        from steelyard.data.table.folding import run_folds

        return run_folds(self, folds, workers=workers, cluster=cluster, journal=journal)

    @property
    def num_bytes(self) -> int:
        """Size of the files."""
        return sum(item.num_bytes for item in self.files)


def _first_lines(path: str) -> list[str]:
    with open_log(path) as file:
        return [
            decoded(line.rstrip(b"\r\n"))[0]
            for _, line in zip(range(_PROBED_LINES), file, strict=False)
        ]


def _lines(partition: TablePart) -> Iterator[bytes]:
    """Yield the lines of a part without their breaks; one that is very long in pieces."""
    is_part = not partition.path.lower().endswith(".gz")
    with open_log(partition.path) as file:
        if is_part:
            file.seek(partition.first)
        left = partition.last - partition.first
        while not is_part or left > 0:
            line = file.readline(_LONGEST_LINE_BYTES)
            if not line:
                break
            left -= len(line)
            yield line.removesuffix(b"\n")
