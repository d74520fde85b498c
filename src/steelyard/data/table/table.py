"""A table in files: its columns and parts are known, its rows are read when they are needed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.data.table.combining import beside, check_zip, rows_before, shares_of
from steelyard.data.table.fitting import ROW, row_ids
from steelyard.data.table.frames import FRAME, frame_batches, frame_of, frame_parts, is_frame
from steelyard.data.table.looking import ColumnProbe, RowBytes, look_at
from steelyard.data.table.part_files import write_parts
from steelyard.data.table.partitions import TableFile, TablePart, list_files
from steelyard.data.table.quarantine import Quarantine
from steelyard.data.table.reading import ReadLimits, read_partition, usual_limits
from steelyard.data.table.selecting import filtered, kept_parts
from steelyard.data.table.sources import Found
from steelyard.data.table.writing import write_file
from steelyard.errors import ConfigError
from steelyard.units import parse

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.fold import Fold
    from steelyard.data.table.folding import Folded

    Step = Callable[[pa.RecordBatch], pa.RecordBatch]
    Remake = Callable[[pa.RecordBatch, str, Quarantine], pa.RecordBatch]

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
        limits: how much is read at once.
        frame: rows that are in memory, None for files.
        beside: table whose columns stand beside those of the files.
        source: table whose batches this one is made of; None for that of the files.
        remake: makes a batch of this table of one of the source.
        skipped_row_groups: row groups of Parquet files that hold no row that was chosen.
        kept_in: folder of values of text files that were parsed before; see `once`.
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
    limits: ReadLimits = field(default_factory=ReadLimits)
    frame: "pa.Table | None" = None
    beside: "DataTable | None" = None
    source: "DataTable | None" = None
    remake: "Remake | None" = None
    skipped_row_groups: int = 0
    kept_in: Path | None = None

    @classmethod
    def scan(cls, *sources: Any, types: Mapping[str, str] | None = None) -> "DataTable":
        """Look at files: their columns, kinds and parts. Rows are not read, but for the first.

        A column of text files is of the narrowest kind that nine of ten of its first values are of.

        Args:
            *sources: paths, patterns with *, folders and addresses (s3://, gs://, http://, and what
                fsspec opens) of CSV, TSV, JSON lines, Parquet and Arrow; or one frame of polars,
                pandas or Arrow.
            types: kind of some columns of text files, in place of that of their values.

        Returns:
            The table.

        Raises:
            DataError: nothing can be read.
            ConfigError: a kind is unknown, or of a column that there is not; a frame beside other
                sources.
        """
        if frames := [source for source in sources if is_frame(source)]:
            if len(sources) > 1 or types:
                raise ConfigError("a frame is scanned alone, with the types that it has")
            return cls._of_frame(frame_of(frames[0]))
        looked = look_at(list_files(sources), types or {})
        found = {item.name: getattr(looked, item.name) for item in fields(looked)}
        return cls(**found, limits=usual_limits(len(looked.schema)))

    @classmethod
    def _of_frame(cls, frame: "pa.Table") -> "DataTable":
        """Return the table of rows in memory."""
        file = TableFile(FRAME, frame.nbytes, tuple(frame.schema.names), len(frame))
        return cls(
            schema=frame.schema.remove_metadata(),
            files=(file,),
            partitions=tuple(frame_parts(frame)),
            kinds={},
            frame=frame,
        )

    def select(self, columns: Sequence[str]) -> "DataTable":
        """Return the table with some columns; others of Parquet and Arrow files are not read.

        Args:
            columns: names, in the order that is wanted.

        Returns:
            The table.

        Raises:
            ConfigError: there is no such column, or steps were added before.
        """
        import pyarrow as pa

        self._require(columns)
        if self.steps or self.beside is not None or self.source is not None:
            raise ConfigError("columns are chosen before steps", hint="call select first")
        return replace(self, schema=pa.schema([self.schema.field(name) for name in columns]))

    def _require(self, columns: Sequence[str]) -> None:
        """Refuse columns that there are not."""
        if missing := [name for name in columns if name not in self.schema.names]:
            raise ConfigError(
                f"no column {missing[0]!r}", hint=f"columns are {', '.join(self.schema.names)}"
            )

    def map_batches(self, step: "Step") -> "DataTable":
        """Return the table with a step that is done to each batch when it is read.

        Args:
            step: takes and returns a batch of any number of rows; its columns must not change.

        Returns:
            The table.
        """
        return replace(self, steps=(*self.steps, step))

    def remade(self, remake: "Remake", schema: "pa.Schema") -> "DataTable":
        """Return a table of what is made of each batch of this one.

        Args:
            remake: is given a batch, its file, and what takes the rows that it sets aside.
            schema: columns of what it makes; their metadata tell apart how they are made.

        Returns:
            The table.
        """
        own = replace(self, steps=(), schema=schema, beside=None, source=self, remake=remake)
        return own.with_limits(self.limits)

    def with_row_numbers(self) -> "DataTable":
        """Return the table with the column `ROW`: 2^40 times the place of the file, and the row."""
        import pyarrow as pa

        if self.beside is not None or self.source is not None:
            raise ConfigError("rows are numbered before steps")
        return replace(self, schema=pa.schema([*self.schema, pa.field(ROW, pa.int64())]))

    def filter(self, condition: Any) -> "DataTable":
        """Return the table with the rows for which a condition holds.

        Args:
            condition: Arrow expression, such as `pc.field("price") > 3`.

        Returns:
            The table.
        """
        steps = (*self.steps, partial(filtered, condition=condition))
        # What other steps make of a column, statistics of the files do not tell; and rows of the
        # table beside are counted from the first part on.
        is_plain = all(isinstance(step, partial) and step.func is filtered for step in self.steps)
        if is_plain and self.beside is None and self.source is None:
            kept = kept_parts(self.partitions, condition, self.schema)
            skipped = self.skipped_row_groups + kept.skipped
            return replace(self, steps=steps, partitions=kept.parts, skipped_row_groups=skipped)
        return replace(self, steps=steps)

    def split(
        self, shares: Mapping[str, float], *, by: str | Sequence[str], seed: int = 0
    ) -> "dict[str, DataTable]":
        """Return tables of the rows whose key hashes into each share.

        Rows of equal keys stay together, and where a row goes depends on its key and the seed
        alone, whatever the files, their order or other rows.

        Args:
            shares: share by name, such as {"train": 0.9, "test": 0.1}; the rest is in no table.
            by: column or columns of the key.
            seed: changes which keys go where.

        Returns:
            Tables by name.

        Raises:
            ConfigError: shares that cannot be, or no such column.
        """
        key = [by] if isinstance(by, str) else list(by)
        self._require(key)
        return {name: self.map_batches(step) for name, step in shares_of(shares, key, seed).items()}

    def zip(self, other: "DataTable") -> "DataTable":
        """Return the table with the columns of another beside its own, row by row.

        Args:
            other: a table of as many rows; both of Parquet files or frames, without steps.

        Returns:
            The table; its parts are those of this one.

        Raises:
            ConfigError: numbers of rows differ or are not known, or both have a column.
        """
        import pyarrow as pa

        check_zip(self, other)
        return replace(self, schema=pa.schema([*self.schema, *other.schema]), beside=other)

    def repartition(self, part_bytes: int) -> "DataTable":
        """Return the table in parts of another size: more to share out, or fewer to merge.

        Args:
            part_bytes: least size of a part; a row group of Parquet is not cut, nor a compressed
                or remote file of lines.

        Returns:
            The table.

        Raises:
            ConfigError: the size is below 1, or rows were chosen before.
        """
        if part_bytes < 1 or self.skipped_row_groups:
            raise ConfigError("parts hold at least a byte, and are made before rows are chosen")
        if self.frame is not None:
            row_bytes = self.frame.nbytes / max(len(self.frame), 1)
            rows = max(int(part_bytes / max(row_bytes, 1)), 1)
            return replace(self, partitions=tuple(frame_parts(self.frame, rows)))
        found = [Found(item.path, item.num_bytes) for item in self.files]
        looked = look_at(found, self.kinds, part_bytes=part_bytes)
        return replace(self, partitions=looked.partitions)

    def write(self, path: Path, *, parts: str = "", workers: int = 1) -> "tuple[int, Quarantine]":
        """Write all rows as CSV, JSON lines, Parquet or Arrow, whole or not at all.

        Args:
            path: a file, the end of whose name says the format; or a folder, made or replaced.
            parts: end of the names of a folder's files, one for each part, such as ".parquet";
                empty for one file.
            workers: processes that write parts.

        Returns:
            Rows that were written, and those set aside.

        Raises:
            ConfigError: the end of the name is of no format.
            DataError: a file cannot be read.
            CapacityError: the disk is full; what stood there stays.
        """
        if parts:
            return write_parts(self, Path(path), parts, workers)
        quarantine = Quarantine()
        each = (self.read(part, quarantine) for part in self.partitions)
        return write_file(Path(path), self.schema, chain.from_iterable(each)), quarantine

    def with_limits(self, limits: ReadLimits) -> "DataTable":
        """Return the table whose batches are bounded so."""
        if self.source is None:
            return replace(self, limits=limits)
        # Batches may become wider than what they are made of.
        times = max(len(self.schema) / max(len(self.source.schema), 1), 1.0)
        source = self.source.with_limits(limits.divided(times))
        return replace(self, limits=limits, source=source)

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
        for given in self._rows(partition, quarantine):
            batch = given
            for step in self.steps:
                batch = step(batch)
            yield batch

    def _rows(self, partition: TablePart, quarantine: Quarantine) -> Iterator["pa.RecordBatch"]:
        """Read a part before any step."""
        if self.source is not None and self.remake is not None:
            given, remake = self.source.read(partition, quarantine), self.remake
            return (remake(batch, partition.path, quarantine) for batch in given)
        if self.beside is not None:
            others = self.beside.schema.names
            names = [name for name in self.schema.names if name not in others]
            left = replace(self, beside=None, steps=()).select(names)
            first = rows_before(self.partitions, partition)
            return beside(self.beside, partition, left.read(partition, quarantine), first)
        if self.frame is not None:
            given = (self.frame, self.schema, partition, self.limits.batch_rows)
            return frame_batches(*given)
        place = [item.path for item in self.files].index(partition.path)
        names = list(self.files[place].columns)
        given = (partition, self.kinds, self.schema, names, quarantine, self.limits)
        batches = read_partition(*given, self.kept_in)
        return row_ids(batches, place) if ROW in self.schema.names else batches

    @property
    def batches(self) -> "Iterator[pa.RecordBatch]":
        """All rows, part by part; those set aside are left out."""
        quarantine = Quarantine()
        for part in self.partitions:
            yield from self.read(part, quarantine)

    def collect(self) -> "tuple[pa.Table, Quarantine]":
        """Return all rows in memory, and those set aside."""
        import pyarrow as pa

        quarantine = Quarantine()
        batches = [batch for part in self.partitions for batch in self.read(part, quarantine)]
        return pa.Table.from_batches(batches, self.schema), quarantine

    def fold(
        self,
        *folds: "Fold[Any]",
        memory: str | float | None = None,
        workers: int = 1,
        cluster: str = "",
        journal: Path | None = None,
        done: Callable[[int], None] = lambda _: None,
    ) -> "Folded":
        """Compute several things in one pass over the rows.

        Each part of the table is folded by itself and parts are merged in a fixed tree, so that the
        result does not depend on the number of workers. A part whose worker dies is folded again.

        Args:
            *folds: what to compute; names differ.
            memory: most bytes that rows and states may take in all processes, such as "200MB";
                batches, parts at once and kept states follow from it. None does not bound them.
            workers: processes, or parts at once on the cluster; 1 stays in this process.
            cluster: Ray address ("auto", "ray://host:10001"); empty for this machine. Files must
                be found under the same names there; states alone come back.
            journal: folder that keeps finished parts until all are; a run that was killed goes on
                there.
            done: is told the bytes of each part that is finished.

        Returns:
            Results by name, and what was set aside.

        Raises:
            DataError: a file has changed or cannot be read.
            ConfigError: two folds of one name, or steps that other processes cannot be given.
            CapacityError: the budget does not hold one part of the table, or a part killed the
                worker that folded it, twice.
            BackendError: `cluster` is given but Ray is not installed or cannot be reached.
        """
        from steelyard.data.table.budget import FoldBudget
        from steelyard.data.table.folding import run_folds

        budget, table = None, self
        if memory is not None:
            memory_bytes = parse(memory, "byte") if isinstance(memory, str) else memory
            budget = FoldBudget.of(self, folds, memory_bytes)
            table = self.with_limits(budget.limits)
        return run_folds(
            table,
            folds,
            workers=workers,
            cluster=cluster,
            journal=journal,
            budget=budget,
            done=done,
        )

    @property
    def num_bytes(self) -> int:
        """Size of the files."""
        return sum(item.num_bytes for item in self.files)
