"""Writes steelpack tables, row group by row group."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data.formats.columns import COMPRESSIONS, encode_column
from steelyard.data.formats.marks import end_mark
from steelyard.data.formats.physical import stored_type
from steelyard.data.formats.zones import ZONE_ROWS, zones_of
from steelyard.data.pack import PackWriter, writing_pack
from steelyard.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FACTS", "GROUP_ROWS", "VERSION", "write_steelpack"]

VERSION = 1
"""Version of the format; another one is refused."""
GROUP_ROWS, GROUP_BYTES = 1 << 20, 256 << 20
"""Most rows of a row group, and about the most bytes in memory."""
FACTS = ("version", "rows", "columns", "groups", "zone rows", "first zone section")
"""What the last section holds; rows of each group follow."""


def write_steelpack(
    batches: "Iterable[pa.RecordBatch]",
    path: str | Path,
    *,
    schema: "pa.Schema | None" = None,
    compress: str = "auto",
    group_rows: int = 0,
) -> int:
    """Write a steelpack file; one row group is in memory at a time.

    Args:
        batches: rows of one schema.
        path: the file, by custom with the end .steelpack; an older one stays until all is written.
        schema: columns; those of the first batch when it is left out.
        compress: texts by zstd: "auto" where that saves a fifth, "never" or "always".
        group_rows: rows of a row group, a multiple of 8,192; 0 for up to 1,048,576 in 256 MiB.

    Returns:
        Rows written.

    Raises:
        DataError: batches differ in their columns, two columns have one name, or a text is not
            UTF-8; the row is named.
        ConfigError: an option is none.
        CapacityError: the disk is full; an older file stays.
    """
    if compress not in COMPRESSIONS:
        raise ConfigError(f"compress is {compress!r}", hint=f"one of {', '.join(COMPRESSIONS)}")
    if group_rows < 0 or group_rows % ZONE_ROWS:
        raise ConfigError(f"{group_rows} rows in a group, but it must be a multiple of {ZONE_ROWS}")
    given = iter(batches)
    first = next(given, None)
    if first is None and schema is None:
        raise DataError("there are no batches to write", hint="give the schema of an empty table")
    known = schema if schema is not None else first.schema  # type: ignore[union-attr]
    if (
        twice := {name for name in known.names if known.names.count(name) > 1}
        if len(set(known.names)) < len(known.names)
        else set()
    ):
        raise DataError(f"two columns are named {min(twice)!r}", hint="rename one of them")
    every = given if first is None else _chained(first, given)
    with writing_pack(Path(path)) as pack:
        table = _GroupWriter(pack, known, compress)
        for group in _groups(every, known, group_rows):
            table.add(group)
        return table.finish()


def _chained(first: "pa.RecordBatch", rest: "Iterator[pa.RecordBatch]") -> Iterator[Any]:
    yield first
    yield from rest


def _groups(
    batches: "Iterable[pa.RecordBatch]", schema: "pa.Schema", group_rows: int
) -> "Iterator[pa.Table]":
    """Cut batches into row groups."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.schema.equals(schema):
            raise DataError(
                f"a batch has the columns {_told(batch.schema)}, and the table {_told(schema)}",
                hint="give batches of one schema",
            )
        held.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
        limit = group_rows or _limit(rows, size)
        while rows >= limit:
            table = pa.Table.from_batches(held, schema)
            yield table.slice(0, limit)
            held = table.slice(limit).to_batches()
            rows -= limit
            size = sum(item.nbytes for item in held)
    if rows:
        yield pa.Table.from_batches(held, schema)


def _told(schema: "pa.Schema") -> str:
    """Return some columns in words."""
    shown = ", ".join(f"{item.name}: {item.type}" for item in list(schema)[:8])
    return f"{shown} and {len(schema) - 8} more" if len(schema) > 8 else shown


def _limit(rows: int, size: int) -> int:
    """Return the rows of a group of about as many bytes as may be in memory."""
    fitting = int(GROUP_BYTES * rows / max(size, 1)) // ZONE_ROWS * ZONE_ROWS
    return min(max(fitting, ZONE_ROWS), GROUP_ROWS)


class _GroupWriter:
    """Row groups written so far, and their zone maps."""

    def __init__(self, pack: PackWriter, schema: "pa.Schema", compress: str) -> None:
        self._pack, self._schema, self._compress = pack, schema, compress
        self._zones: list[list[np.ndarray]] = [[] for _ in schema]
        self._rows: list[int] = []

    def add(self, group: "pa.Table") -> None:
        """Write a row group."""
        number, begins = len(self._rows), self._pack.place
        for place, field in enumerate(self._schema):
            array = _stored(group.column(place), field, sum(self._rows))
            self._pack.add(f"{number}/{field.name}", encode_column(array, self._compress))
            self._zones[place].append(zones_of(array))
        sealed = end_mark(number, sum(self._rows), len(group), begins)
        self._pack.add(f"end/{number}", np.frombuffer(sealed, np.uint8))
        self._rows.append(len(group))

    def finish(self) -> int:
        """Write zone maps, types and facts; return the rows."""
        import pyarrow as pa

        if not self._rows:
            self.add(self._schema.empty_table())
        first_zone = self._pack.count
        for field, zones in zip(self._schema, self._zones, strict=True):
            self._pack.add(f"zones/{field.name}", np.concatenate(zones))
        kinds: dict[bytes, int] = {}
        fields = np.zeros(len(self._schema), np.uint32)
        distinct: list[Any] = []
        for place, field in enumerate(self._schema):
            key = repr((str(field.type), field.nullable, field.metadata)).encode()
            if key not in kinds:
                distinct.append(field.with_name(str(len(kinds))))
            fields[place] = kinds.setdefault(key, len(kinds))
        types = pa.schema(distinct, self._schema.metadata).serialize()
        self._pack.add("types", np.frombuffer(types, np.uint8))
        # Columns that are all of one type need no list of their types.
        self._pack.add("fields", fields if len(kinds) > 1 else fields[:0])
        counts = (VERSION, sum(self._rows), len(fields), len(self._rows), ZONE_ROWS, first_zone)
        self._pack.add("steelpack", np.array([*counts, *self._rows]))
        return sum(self._rows)


def _stored(column: "pa.ChunkedArray", field: "pa.Field", before: int) -> "pa.Array":
    """Return a column of a row group in one piece, in the type in which it is kept."""
    import pyarrow as pa

    wanted = stored_type(field.type)
    if wanted != field.type:
        column = column.cast(wanted)
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        raise DataError(
            f"column {field.name!r} has more than 2 GiB of text in rows {before + 1} to "
            f"{before + len(column)}",
            hint="write smaller row groups",
        )
    if pa.types.is_string(wanted) or pa.types.is_large_string(wanted):
        _refuse_bad_text(array, field.name, before)
    return array


def _refuse_bad_text(array: "pa.Array", name: str, before: int) -> None:
    """Name the first text that is not UTF-8."""
    import pyarrow as pa

    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        wide = pa.types.is_large_string(array.type)
        for row, value in enumerate(array.cast(pa.large_binary() if wide else pa.binary())):
            try:
                (value.as_py() or b"").decode()
            except UnicodeDecodeError:
                raise DataError(
                    f"column {name!r} holds a text that is not UTF-8 in row {before + row + 1}",
                    hint="repair the text, or make the column one of bytes",
                ) from error
        raise DataError(f"column {name!r} is damaged: {error}") from error
