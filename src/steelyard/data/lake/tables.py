"""A table of a lake: what its footers say, and its rows when they are needed."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.data.lake.bounds import NO_BOUNDS, bounds_of, comparable
from steelyard.data.stages import hash_of
from steelyard.data.table import DataTable, Quarantine
from steelyard.data.table.partitions import TableFile, TablePart, format_of
from steelyard.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

__all__ = ["LakeColumn", "LakePart", "LakeTable", "column_token", "leaf_values", "look_at_table"]

_TAIL_BYTES = 8


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column, or a field of a nested one.

    Attributes:
        name: names joined by dots, "place.city".
        type: its Arrow type.
    """

    name: str
    type: "pa.DataType"


@dataclass(frozen=True, slots=True)
class LakePart:
    """Rows that are read at once: a row group of Parquet, or a part as `DataTable` cuts it.

    Attributes:
        source: where they are.
        rows: their number; -1 unknown before they are read.
        low: codes of the least value, [columns]; NaN unknown.
        high: codes of the largest, [columns].
        nulls: missing values, [columns]; -1 unknown.
    """

    source: TablePart
    rows: int
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    nulls: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTable:
    """A table of a lake, of one file or of a folder of files.

    Attributes:
        name: its path below the lake without the ending.
        path: file or folder.
        schema: its columns.
        columns: leaves of the schema, nested ones by themselves.
        parts: its rows, in order.
        prints: fingerprint of each file: size, time of change, and footer.
        num_bytes: size of its files.
        source: reads its files.
        tokens: columns as `column_token` names them, [columns].
        kinds: class of types whose values can be compared, [columns].
        low: codes of the least values, [columns]; NaN where a part does not say.
        high: codes of the largest values, [columns].
        nulls: missing values, [columns]; -1 where a part does not say.
    """

    name: str
    path: Path
    schema: "pa.Schema"
    columns: tuple[LakeColumn, ...]
    parts: tuple[LakePart, ...]
    prints: tuple[tuple[str, str], ...]
    num_bytes: int
    source: DataTable
    tokens: tuple[str, ...]
    kinds: tuple[str, ...]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    nulls: NDArray[np.int64]

    @property
    def rows(self) -> int:
        """Number of rows; -1 where only reading tells."""
        counts = [part.rows for part in self.parts]
        return -1 if -1 in counts else sum(counts)

    @property
    def fingerprint(self) -> str:
        """Hash that changes when a file does."""
        return hash_of(self.prints)

    @property
    def is_columnar(self) -> bool:
        """Whether values are kept as they are; texts lose how a number was written."""
        return format_of(self.prints[0][0]) in ("parquet", "arrow", "steelpack")

    def read(
        self, columns: Sequence[str], parts: Sequence[LakePart] | None = None
    ) -> Iterator["pa.RecordBatch"]:
        """Read rows in order.

        Args:
            columns: leaves; the whole columns that hold them are read.
            parts: some of `parts`; None for all.

        Yields:
            Batches of the table's own columns.

        Raises:
            DataError: a file has changed or cannot be read, or rows of text do not fit.
        """
        tops = list(dict.fromkeys(_top(name, self.schema.names) for name in columns))
        whole = self.source.select(tops)
        quarantine = Quarantine()
        for part in self.parts if parts is None else parts:
            yield from whole.read(part.source, quarantine)
        if quarantine.total:
            # Rows that are set aside are in the file and in no batch: nothing may be said of them.
            bad = quarantine.rows[0]
            raise DataError(
                f"{quarantine.total:,} rows of {self.name} do not fit, such as row {bad.row} of "
                f"{bad.file}: {bad.reason}",
                hint="repair them, or leave the table out",
            )


def column_token(column: LakeColumn, *, coerce: bool = False) -> str:
    """Return what makes two columns the same: the name and the type.

    Args:
        column: a leaf.
        coerce: let whole and real numbers of any width match.

    Returns:
        Name and type; texts are alike whatever the width of their offsets.
    """
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    told = str(kind).removeprefix("large_")
    if coerce and comparable(kind) == "number" and not pa.types.is_boolean(kind):
        told = "number"
    return f"{column.name}:{told}"


def _top(name: str, tops: Sequence[str]) -> str:
    """Return the column that a leaf belongs to; a name may itself have dots."""
    if name in tops:
        return name
    for top in tops:
        if name.startswith(f"{top}."):
            return top
    # A file may have been replaced since it was looked at.
    raise DataError(f"there is no column {name!r} any more", hint="plan again")


def leaf_values(batch: "pa.RecordBatch", name: str) -> "pa.Array":
    """Return the values of a leaf.

    Args:
        batch: rows.
        name: name of the leaf, with dots.

    Returns:
        Values, missing where any of the structures around them is.
    """
    from steelyard.data.arrow import compute

    if name in batch.schema.names:
        return batch[name]
    top = _top(name, batch.schema.names)
    return compute().struct_field(batch[top], name.removeprefix(f"{top}.").split("."))


def _leaves(schema: "pa.Schema") -> tuple[LakeColumn, ...]:
    """Return the leaves of a schema in its order."""
    import pyarrow as pa

    found: list[LakeColumn] = []
    waiting = [(field.name, field.type) for field in reversed(schema)]
    while waiting:
        name, kind = waiting.pop()
        if pa.types.is_struct(kind) and kind.num_fields:
            waiting += [(f"{name}.{field.name}", field.type) for field in reversed(list(kind))]
        else:
            found.append(LakeColumn(name, kind))
    if not found:
        raise DataError("the table has no columns")
    name, count = Counter(item.name for item in found).most_common(1)[0]
    if count > 1:
        raise DataError(f"the column {name!r} is there twice", hint="rename one of them")
    return tuple(found)


def look_at_table(name: str, path: Path, files: Sequence[str]) -> LakeTable:
    """Look at a table: of Parquet its footers only, of other formats what `DataTable.scan` reads.

    Args:
        name: what it is called.
        path: file or folder.
        files: its files.

    Returns:
        The table.

    Raises:
        DataError: a file cannot be read, or its columns differ from those of the others.
    """
    looked = [_looked(file) for file in files]
    source = looked[0].table
    for item in looked[1:]:
        _refuse_drift(source, item.table)
    stats = [Path(file).stat() for file in files]
    columns = _leaves(source.schema)
    parts = tuple(part for item in looked for part in item.parts)
    wide = len(columns)
    nulls = np.array([part.nulls for part in parts], np.int64).reshape(-1, wide)
    return LakeTable(
        name=name,
        path=path,
        schema=source.schema,
        columns=columns,
        parts=parts,
        prints=tuple(
            (file, hash_of(stat.st_size, stat.st_mtime_ns, item.footer))
            for file, stat, item in zip(files, stats, looked, strict=True)
        ),
        num_bytes=sum(stat.st_size for stat in stats),
        source=replace(source, files=tuple(file for item in looked for file in item.table.files)),
        tokens=tuple(column_token(column) for column in columns),
        kinds=tuple(comparable(column.type) for column in columns),
        # NaN, which is unknown, wins over any number.
        low=np.min([np.full(wide, np.inf), *(part.low for part in parts)], axis=0),
        high=np.max([np.full(wide, -np.inf), *(part.high for part in parts)], axis=0),
        nulls=np.where((nulls < 0).any(axis=0), -1, nulls.sum(axis=0)),
    )


class _Looked(NamedTuple):
    """What is known of a file: how it is read, its parts, and the hash of its footer."""

    table: DataTable
    parts: list[LakePart]
    footer: str


def _refuse_drift(first: DataTable, other: DataTable) -> None:
    """Refuse a file whose columns are not those of the first one of its table."""
    kinds = {field.name: str(field.type) for field in first.schema}
    own = {field.name: str(field.type) for field in other.schema}
    for name in dict.fromkeys((*kinds, *own)):
        was, now = kinds.get(name, "not there"), own.get(name, "not there")
        if was != now:
            ours, theirs = first.files[0].path, other.files[0].path
            raise DataError(
                f"column {name!r} of {theirs} is {now}, in {ours} {was}",
                hint="turn the files of a table into one schema",
            )


def _looked(file: str) -> _Looked:
    """Look at a file."""
    import pyarrow as pa
    from pyarrow import parquet

    if format_of(file) != "parquet":
        return _looked_otherwise(file)
    try:
        with parquet.ParquetFile(file) as opened:
            schema = opened.schema_arrow.remove_metadata()
            parts = _row_groups(file, opened.metadata, schema)
            table = DataTable(
                schema=schema,
                files=(TableFile(file, Path(file).stat().st_size, tuple(schema.names)),),
                partitions=tuple(part.source for part in parts),
                kinds={},
            )
            return _Looked(table, parts, _footer_hash(file))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot read {file}: {error}") from error


def _row_groups(file: str, metadata: "parquet.FileMetaData", schema: "pa.Schema") -> list[LakePart]:
    leaves = _leaves(schema)
    writer = metadata.created_by or ""
    parts, row = [], 1
    for place in range(metadata.num_row_groups):
        group = metadata.row_group(place)
        chunks = {
            group.column(column).path_in_schema: group.column(column)
            for column in range(group.num_columns)
        }
        known = [
            bounds_of(chunks[leaf.name], leaf.type, writer) if leaf.name in chunks else NO_BOUNDS
            for leaf in leaves
        ]
        low, high, nulls = (np.array(column) for column in zip(*known, strict=True))
        source = TablePart(file, "parquet", place, place + 1, row, group.total_byte_size)
        parts.append(LakePart(source, group.num_rows, low, high, nulls))
        row += group.num_rows
    return parts


def _looked_otherwise(file: str) -> _Looked:
    """Look at a file that keeps no statistics."""
    import pyarrow as pa

    table = DataTable.scan(file)
    count = len(_leaves(table.schema))
    unknown = np.full(count, np.nan)
    parts = []
    for part in table.partitions:
        rows = -1
        if part.format == "arrow":
            with pa.memory_map(file) as source, pa.ipc.open_file(source) as reader:
                rows = sum(reader.get_batch(i).num_rows for i in range(part.first, part.last))
        elif part.format == "steelpack":
            rows = -1 if part.rows is None else part.rows
        parts.append(LakePart(part, rows, unknown, unknown, np.full(count, -1)))
    return _Looked(replace(table, schema=table.schema.remove_metadata()), parts, "")


def _footer_hash(file: str) -> str:
    """Return the SHA-256 of the footer of a Parquet file."""
    with Path(file).open("rb") as stream:
        stream.seek(-_TAIL_BYTES, 2)
        size = int.from_bytes(stream.read(4), "little")
        stream.seek(-_TAIL_BYTES - size, 2)
        return hashlib.sha256(stream.read(size)).hexdigest()
