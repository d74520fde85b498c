"""A table in files: its columns and parts are known, its rows are read when they are needed."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.data.table.kinds import KINDS, arrow_type, majority_kind
from steelyard.data.table.partitions import (
    TableFile,
    TablePart,
    format_of,
    list_files,
    split_lines,
)
from steelyard.data.table.quarantine import Quarantine
from steelyard.data.table.reading import column_names, read_partition, read_texts
from steelyard.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.fold import Fold
    from steelyard.data.table.folding import Folded

    Step = Callable[[pa.RecordBatch], pa.RecordBatch]

__all__ = ["DataTable"]

_PROBE_FILES, _PROBE_ROWS = 16, 4096
_GROUP_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """Rows of files of one or several formats, in the order of their names.

    Attributes:
        schema: columns with their types; a column that only some files have is missing elsewhere.
        files: the files.
        partitions: parts that are read at once; they follow files and rows alone.
        kinds: kind of each column of text files.
        unreadable: reason by file that was left out.
        steps: what is done to each batch.
    """

    schema: "pa.Schema"
    files: tuple[TableFile, ...]
    partitions: tuple[TablePart, ...]
    kinds: Mapping[str, str]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    steps: "tuple[Step, ...]" = ()

    @classmethod
    def scan(cls, *sources: str | Path, types: Mapping[str, str] | None = None) -> "DataTable":
        """Look at files: their columns, kinds and parts. Rows are not read, but for the first.

        A column of text files is of the narrowest kind that nine of ten of its first values are of.

        Args:
            *sources: paths, patterns with * and folders of CSV, TSV, JSON lines, Parquet and Arrow.
            types: kind of some columns of text files, in place of that of their values.

        Returns:
            The table.

        Raises:
            DataError: nothing can be read.
            ConfigError: a kind is unknown, or of a column that there is not.
        """
        looked = _Looking(types or {})
        for path in list_files(sources):
            looked.look(path)
        return looked.table()

    def select(self, columns: Sequence[str]) -> "DataTable":
        """Return the table with some of its columns.

        Args:
            columns: names, in the order that is wanted.

        Returns:
            The table; other columns of Parquet and Arrow files are not read.

        Raises:
            ConfigError: there is no such column, or steps were added before.
        """
        import pyarrow as pa

        if missing := [name for name in columns if name not in self.schema.names]:
            raise ConfigError(
                f"no column {missing[0]!r}", hint=f"columns are {', '.join(self.schema.names)}"
            )
        if self.steps:
            raise ConfigError("columns are chosen before steps", hint="call select first")
        return replace(self, schema=pa.schema([self.schema.field(name) for name in columns]))

    def map_batches(self, step: "Step") -> "DataTable":
        """Return the table with a step that is done to each batch when it is read.

        Args:
            step: takes and returns a batch of any number of rows; its columns must not change.

        Returns:
            The table.
        """
        return replace(self, steps=(*self.steps, step))

    def filter(self, condition: Any) -> "DataTable":
        """Return the table with the rows for which a condition holds.

        Args:
            condition: Arrow expression, such as `pc.field("price") > 3`.

        Returns:
            The table.
        """
        return self.map_batches(lambda batch: batch.filter(condition))

    def read(self, partition: TablePart, quarantine: Quarantine) -> Iterator["pa.RecordBatch"]:
        """Read a part.

        Args:
            partition: one of `partitions`.
            quarantine: takes rows that do not fit.

        Yields:
            Batches of the schema, steps done.

        Raises:
            DataError: the file has changed or cannot be read.
        """
        names = next(list(item.columns) for item in self.files if item.path == partition.path)
        for given in read_partition(partition, self.kinds, self.schema, names, quarantine):
            batch = given
            for step in self.steps:
                batch = step(batch)
            yield batch

    def collect(self) -> "tuple[pa.Table, Quarantine]":
        """Return all rows in memory, and those set aside."""
        import pyarrow as pa

        quarantine = Quarantine()
        batches = [batch for part in self.partitions for batch in self.read(part, quarantine)]
        return pa.Table.from_batches(batches, self.schema), quarantine

    def fold(
        self,
        *folds: "Fold[Any]",
        workers: int = 1,
        journal: Path | None = None,
        done: Callable[[int], None] = lambda _: None,
    ) -> "Folded":
        """Compute several things in one pass over the rows.

        Each part of the table is folded by itself and parts are merged in a fixed tree, so that the
        result does not depend on the number of workers.

        Args:
            *folds: what to compute; names differ.
            workers: processes; 1 stays in this one.
            journal: folder that keeps finished parts until all are; a run that was killed goes on
                there.
            done: is told the bytes of each part that is finished.

        Returns:
            Results by name, and what was set aside.

        Raises:
            DataError: a file has changed or cannot be read.
            ConfigError: two folds of one name, or steps that other processes cannot be given.
        """
        from steelyard.data.table.folding import run_folds

        return run_folds(self, folds, workers=workers, journal=journal, done=done)

    @property
    def num_bytes(self) -> int:
        """Size of the files."""
        return sum(item.num_bytes for item in self.files)


class _Looking:
    """Gathers what `DataTable.scan` needs from one file after the other."""

    def __init__(self, types: Mapping[str, str]) -> None:
        if wrong := [kind for kind in types.values() if kind not in KINDS]:
            raise ConfigError(f"no kind {wrong[0]!r}", hint=f"kinds are {', '.join(KINDS)}")
        self.types = types
        self.files: list[TableFile] = []
        self.partitions: list[TablePart] = []
        self.unreadable: dict[str, str] = {}
        self.texts: dict[str, list[Any]] = {}
        self.own: dict[str, Counter[Any]] = {}

    def look(self, path: str) -> None:
        """Take a file in; one that cannot be read is left out and named."""
        format = format_of(path)
        try:
            if format in ("parquet", "arrow"):
                self._look_columnar(path, format)
            else:
                self._look_lines(path, format)
        except DataError as error:
            self.unreadable[path] = str(error)

    def _look_lines(self, path: str, format: str) -> None:
        size = Path(path).stat().st_size
        names = column_names(path, format) if format != "json lines" else _keys(path, size)
        has_new = any(name not in self.texts for name in names)
        for name in names:
            self.texts.setdefault(name, [])
        if has_new or len(self.files) < _PROBE_FILES:
            self._probe(TablePart(path, format, 0, size, 1, size), names)
        self.files.append(TableFile(path, size, tuple(names)))
        is_compressed = path.lower().endswith(".gz")
        cuts = [(0, 0)] if is_compressed else split_lines(path, quoted=format != "json lines")
        has_names = format != "json lines"
        ends = [*(first for first, _ in cuts[1:]), size]
        for (first, line), last in zip(cuts, ends, strict=True):
            row = line + (0 if has_names and line else 1)
            self.partitions.append(TablePart(path, format, first, last, row, size))

    def _probe(self, partition: TablePart, names: list[str]) -> None:
        """Keep the first values of each column."""
        for batch, _ in read_texts(partition, names, Quarantine()):
            for name in names:
                self.texts[name].append(batch[name].slice(0, _PROBE_ROWS))
            break

    def _look_columnar(self, path: str, format: str) -> None:
        import pyarrow as pa

        size = Path(path).stat().st_size
        try:
            schema, parts = _columnar_parts(path, format, size)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"cannot read {path}: {error}") from error
        for item in schema:
            self.own.setdefault(item.name, Counter())[item.type] += 1
        self.files.append(TableFile(path, size, tuple(schema.names)))
        self.partitions += parts

    def table(self) -> DataTable:
        """Return the table of all files."""
        import pyarrow as pa

        if not self.files:
            told = "; ".join(self.unreadable.values())
            raise DataError(f"no file can be read: {told}")
        names = list(dict.fromkeys(name for item in self.files for name in item.columns))
        if unknown := [name for name in self.types if name not in names]:
            raise ConfigError(f"no column {unknown[0]!r}", hint=f"columns are {', '.join(names)}")
        kinds = {
            name: self.types.get(name)
            or majority_kind(pa.concat_arrays(parts or [pa.array([], pa.string())]))
            for name, parts in self.texts.items()
        }
        types = {
            name: self.own[name].most_common(1)[0][0]
            if name in self.own
            else arrow_type(kinds[name])
            for name in names
        }
        return DataTable(
            schema=pa.schema([pa.field(name, types[name]) for name in names]),
            files=tuple(self.files),
            partitions=tuple(self.partitions),
            kinds=kinds,
            unreadable=self.unreadable,
        )


def _keys(path: str, size: int) -> list[str]:
    """Return the keys of the first objects of a file of JSON lines, in the order they come."""
    import gzip
    import json

    found: dict[str, None] = {}
    opener = gzip.open if path.lower().endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            for _, line in zip(range(_PROBE_ROWS), file, strict=False):
                with contextlib.suppress(ValueError):
                    row = json.loads(line)
                    found |= dict.fromkeys(row) if isinstance(row, dict) else {}
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    if not found:
        raise DataError(f"{path} of {size} bytes holds no JSON object", hint="give one a line")
    return list(found)


def _columnar_parts(path: str, format: str, size: int) -> "tuple[pa.Schema, list[TablePart]]":
    """Return the schema of a Parquet or Arrow file, and parts of about 32 MiB or one group."""
    import pyarrow as pa
    from pyarrow import parquet

    if format == "arrow":
        with pa.OSFile(path) as source, pa.ipc.open_file(source) as reader:
            count = reader.num_record_batches
            return reader.schema, [TablePart(path, format, 0, count, 1, size)]
    with parquet.ParquetFile(path) as file:
        parts: list[TablePart] = []
        first, row, held = 0, 1, 0
        groups = [file.metadata.row_group(place) for place in range(file.num_row_groups)]
        for place, group in enumerate(groups):
            held += group.total_byte_size
            if held >= _GROUP_BYTES or place == len(groups) - 1:
                parts.append(TablePart(path, format, first, place + 1, row, held))
                row += sum(item.num_rows for item in groups[first : place + 1])
                first, held = place + 1, 0
        return file.schema_arrow, parts
