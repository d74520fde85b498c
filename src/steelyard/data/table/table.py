"""A table in files: its columns and parts are known, its rows are read when they are needed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.data.table.looking import ColumnProbe, RowBytes, look_at
from steelyard.data.table.partitions import TableFile, TablePart, list_files
from steelyard.data.table.quarantine import Quarantine
from steelyard.data.table.reading import read_partition
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.fold import Fold
    from steelyard.data.table.folding import Folded

    Step = Callable[[pa.RecordBatch], pa.RecordBatch]

__all__ = ["DataTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """Rows of files of one or several formats, in the order of their names.

    Attributes:
        schema: columns with their types; a column that only some files have is missing elsewhere.
        files: the files.
        partitions: parts that are read at once; they follow files and rows alone.
        kinds: kind of each column of text files.
        unreadable: reason by file that was left out.
        drift: how files differ from the others in columns and types, in words.
        probes: first values by column of text files.
        row_bytes: what a row of a text file takes, by its path, from its first rows.
        steps: what is done to each batch.
    """

    schema: "pa.Schema"
    files: tuple[TableFile, ...]
    partitions: tuple[TablePart, ...]
    kinds: Mapping[str, str]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    drift: tuple[str, ...] = ()
    probes: Mapping[str, ColumnProbe] = field(default_factory=dict)
    row_bytes: Mapping[str, RowBytes] = field(default_factory=dict)
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
        looked = look_at(list_files(sources), types or {})
        return cls(**{item.name: getattr(looked, item.name) for item in fields(looked)})

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
