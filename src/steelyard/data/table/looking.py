"""Looks at the files of a table: names, kinds, parts, and where files differ from one another."""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from steelyard.data.arrow import compute, release_unused
from steelyard.data.table.counts import ReadCounts
from steelyard.data.table.item_lines import ITEMS
from steelyard.data.table.kinds import KINDS, arrow_type, as_kind, majority_kind
from steelyard.data.table.partitions import (
    TableFile,
    TablePart,
    format_of,
    is_gzip,
    split_lines,
)
from steelyard.data.table.quarantine import Quarantine
from steelyard.data.table.reading import BLOCK_BYTES, column_names, opened_text, read_texts
from steelyard.data.table.sources import Found, is_remote, open_source
from steelyard.data.table.steelpack_file import steelpack_parts
from steelyard.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "PART_BYTES",
    "ColumnProbe",
    "Looked",
    "RowBytes",
    "grouped",
    "look_at",
    "row_group_parts",
]

PART_BYTES = 32 << 20
"""About the size of a part."""
_PROBE_FILES, _PROBE_ROWS = 16, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnProbe:
    """What the first values of a column of text look like.

    Attributes:
        rows: values that were looked at.
        distinct: how many of them differ.
        misfits: how many are not of the column's kind.
        text_bytes: mean length of their text.
    """

    rows: int
    distinct: int
    misfits: int
    text_bytes: float


class RowBytes(NamedTuple):
    """Bytes of a row of a text file.

    Attributes:
        text: bytes of its text, decompressed.
        stored: bytes that it takes in the file.
    """

    text: float
    stored: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a look at files found.

    Attributes:
        schema: columns of all files with their types.
        files: files that can be read.
        partitions: parts that are read at once.
        kinds: kind of each column of text files.
        unreadable: reason by file that was left out.
        drift: how files differ from the others, in words.
        probes: first values by column of text files.
        row_bytes: what a row of a text file takes, by its path, from its first rows.
    """

    schema: "pa.Schema"
    files: tuple[TableFile, ...]
    partitions: tuple[TablePart, ...]
    kinds: Mapping[str, str]
    unreadable: Mapping[str, str]
    drift: tuple[str, ...]
    probes: Mapping[str, ColumnProbe]
    row_bytes: Mapping[str, RowBytes]


def look_at(
    files: Sequence[Found], types: Mapping[str, str], *, part_bytes: int = PART_BYTES
) -> Looked:
    """Look at files; rows are not read, but for the first.

    Args:
        files: what to look at.
        types: kind of some columns of text files, in place of that of their values.
        part_bytes: least size of a part.

    Returns:
        What is known of the table.

    Raises:
        DataError: no file can be read.
        ConfigError: a kind is unknown, or of a column that there is not.
    """
    looking = _Looking(types, part_bytes)
    for file in files:
        looking.look(file)
    found = looking.looked()
    del looking
    release_unused()
    return found


class _Looking:
    """Gathers what a table needs from one file after the other."""

    def __init__(self, types: Mapping[str, str], part_bytes: int) -> None:
        if wrong := [kind for kind in types.values() if kind not in KINDS]:
            raise ConfigError(f"no kind {wrong[0]!r}", hint=f"kinds are {', '.join(KINDS)}")
        self.types, self.part_bytes = types, part_bytes
        self.files: list[TableFile] = []
        self.partitions: list[TablePart] = []
        self.unreadable: dict[str, str] = {}
        self.texts: dict[str, dict[str, Any]] = defaultdict(dict)
        self.own: dict[str, dict[str, Any]] = defaultdict(dict)
        self.row_bytes: dict[str, RowBytes] = {}

    def look(self, found: Found) -> None:
        """Take a file in; one that cannot be read is left out and named."""
        format = format_of(found.path)
        try:
            if format in ("parquet", "arrow", "steelpack"):
                self._look_columnar(found, format)
            else:
                self._look_lines(found, format)
        except DataError as error:
            self.unreadable[found.path] = str(error)

    def _look_lines(self, found: Found, format: str) -> None:
        path, size = found
        has_names = format in ("csv", "tsv")
        names = column_names(path, format) if has_names else self._names(path, format, size)
        if format != "item lines" and self._is_new(names):
            self._probe(TablePart(path, format, 0, size, 1, size), names)
        self.files.append(TableFile(path, size, tuple(names)))
        # Where lines break is known only to who has read them all: not what to fetch twice.
        is_whole = is_gzip(path) or is_remote(path)
        cuts = (
            [(0, 0)]
            if is_whole
            else split_lines(path, quoted=has_names, split_bytes=self.part_bytes)
        )
        ends = [*(first for first, _ in cuts[1:]), size]
        for (first, line), last in zip(cuts, ends, strict=True):
            row = line + (0 if has_names and line else 1)
            self.partitions.append(TablePart(path, format, first, last, row, last - first))

    def _names(self, path: str, format: str, size: int) -> list[str]:
        """Return the columns of a file of lines whose first line does not tell them."""
        import pyarrow as pa

        if format == "json lines":
            return _keys(path, size)
        self.own[ITEMS][path] = pa.list_(pa.int64())
        return [ITEMS]

    def _is_new(self, names: list[str]) -> bool:
        """Return whether a file of text is worth a look at its values."""
        return any(name not in self.texts for name in names) or len(self.files) < _PROBE_FILES

    def _probe(self, partition: TablePart, names: list[str]) -> None:
        """Keep the first values of each column, and what a row takes in the file."""
        quarantine = Quarantine()
        for batch, _ in read_texts(partition, names, quarantine):
            # A slice would keep the whole block: those of many files are more than a pass holds.
            first = np.arange(min(len(batch), _PROBE_ROWS))
            for name in names:
                self.texts[name][partition.path] = batch[name].take(first)
            self.row_bytes[partition.path] = _row_bytes(partition, len(batch) + quarantine.total)
            break
        release_unused()

    def _look_columnar(self, found: Found, format: str) -> None:
        import pyarrow as pa

        path, size = found
        try:
            schema, parts = row_group_parts(path, format, size, self.part_bytes)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"cannot read {path}: {error}") from error
        for item in schema:
            self.own[item.name][path] = item.type
        rows = sum(part.rows or 0 for part in parts) if format in ("parquet", "steelpack") else None
        self.files.append(TableFile(path, size, tuple(schema.names), rows))
        self.partitions += parts

    def looked(self) -> Looked:
        """Return what was found of all files."""
        import pyarrow as pa

        if not self.files:
            if not self.unreadable:
                raise DataError("no table is named", hint="give files, a folder or an address")
            told = "; ".join(self.unreadable.values())
            raise DataError(f"no file can be read: {told}")
        names = list(dict.fromkeys(name for item in self.files for name in item.columns))
        if unknown := [name for name in self.types if name not in names]:
            raise ConfigError(f"no column {unknown[0]!r}", hint=f"columns are {', '.join(names)}")
        values = {name: _joined(parts) for name, parts in self.texts.items()}
        # Of a text file whose first lines are all of another number of values nothing was seen.
        values |= {
            name: pa.array([], pa.string()) for name in names if name not in {*values, *self.own}
        }
        kinds = {
            name: self.types.get(name) or majority_kind(found) for name, found in values.items()
        }
        types = {
            name: Counter(self.own[name].values()).most_common(1)[0][0]
            if name in self.own
            else arrow_type(kinds[name])
            for name in names
        }
        return Looked(
            schema=pa.schema([pa.field(name, types[name]) for name in names]),
            files=tuple(self.files),
            partitions=tuple(self.partitions),
            kinds=kinds,
            unreadable=self.unreadable,
            drift=tuple(self._drift(names, kinds, types)),
            probes={name: _probed(values[name], kinds[name]) for name in kinds},
            row_bytes=self.row_bytes,
        )

    def _drift(self, names: list[str], kinds: Mapping[str, str], types: Mapping[str, Any]) -> Any:
        """Tell which files lack a column, have one that most lack, or hold another type."""
        for name in names:
            having = [item.path for item in self.files if name in item.columns]
            lacking = [item.path for item in self.files if name not in item.columns]
            if lacking and len(having) * 2 > len(self.files):
                yield from (f"{path} lacks the column {name!r}" for path in lacking)
            elif lacking:
                yield from (f"{path} has a column {name!r} that others lack" for path in having)
        for name, own in self.own.items():
            for path, kind in own.items():
                if kind != types[name]:
                    yield f"{path}: column {name!r} is {kind}, elsewhere {types[name]}"
        for name, parts in self.texts.items():
            for path, values in parts.items():
                kind = majority_kind(values)
                is_empty = values.null_count == len(values)
                if kind != kinds[name] and not is_empty and name not in self.types:
                    yield f"{path}: column {name!r} looks like {kind}, elsewhere {kinds[name]}"


def _row_bytes(partition: TablePart, batch_rows: int) -> RowBytes:
    """Return what a row takes, as text and in the file.

    Args:
        partition: a whole file.
        batch_rows: rows of the first batch, which is the first block of separated values.

    Returns:
        Bytes of a row.
    """
    counts = ReadCounts()
    is_packed = is_gzip(partition.path)
    with opened_text(partition.path, counts) as file:
        # A compressed file is read ahead of what it gives: a longer look makes that matter less.
        head = file.read(4 * BLOCK_BYTES if is_packed else BLOCK_BYTES)
    if partition.format == "json lines":
        rows, text = head.count(b"\n") or 1, len(head)
    else:
        rows, text = max(batch_rows, 1), min(len(head), BLOCK_BYTES)
    packed = min(counts.num_bytes, partition.num_bytes) / max(len(head), 1) if is_packed else 1.0
    return RowBytes(text / rows, packed * text / rows)


def _joined(parts: Mapping[str, Any]) -> Any:
    """Return the first values of a column of all files."""
    import pyarrow as pa

    return pa.concat_arrays(list(parts.values()) or [pa.array([], pa.string())])


def _probed(values: Any, kind: str) -> ColumnProbe:
    """Return what values look like."""
    pc = compute()
    misfit = as_kind(values, kind)[1]
    return ColumnProbe(
        rows=len(values),
        distinct=pc.count_distinct(values).as_py(),
        misfits=len(misfit.rows) if misfit else 0,
        text_bytes=(pc.sum(pc.binary_length(values)).as_py() or 0) / max(len(values), 1),
    )


def _keys(path: str, size: int) -> list[str]:
    """Return the keys of the first objects of a file of JSON lines, in the order they come."""
    import json

    import pyarrow as pa

    found: dict[str, None] = {}
    try:
        with opened_text(path, ReadCounts()) as file:
            head = file.read(1 << 20)
        for line in head.split(b"\n")[:_PROBE_ROWS]:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                found |= dict.fromkeys(row) if isinstance(row, dict) else {}
    except (OSError, EOFError, pa.ArrowException) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    if not found:
        raise DataError(f"{path} of {size} bytes holds no JSON object", hint="give one a line")
    return list(found)


def row_group_parts(
    path: str, format: str, size: int, part_bytes: int = PART_BYTES
) -> "tuple[pa.Schema, list[TablePart]]":
    """Return the schema of a Parquet or Arrow file, and parts of some row groups each.

    Args:
        path: the file.
        format: "parquet", "arrow" or "steelpack".
        size: its bytes.
        part_bytes: least size of a part, unless it is the last.

    Returns:
        Schema and parts.

    Raises:
        OSError: the file cannot be read.
    """
    import pyarrow as pa
    from pyarrow import parquet

    if format == "steelpack":
        return steelpack_parts(path)
    source = open_source(path, ReadCounts())
    if format == "arrow":
        with source, pa.ipc.open_file(source) as reader:
            # Only reading a batch tells its rows.
            part = TablePart(path, format, 0, reader.num_record_batches, 1, size)
            return reader.schema, [part]
    with source, parquet.ParquetFile(source) as file:
        groups = [file.metadata.row_group(place) for place in range(file.num_row_groups)]
        return file.schema_arrow, grouped(path, groups, range(len(groups)), part_bytes)


def grouped(
    path: str, groups: Sequence[Any], wanted: Sequence[int], part_bytes: int
) -> list[TablePart]:
    """Return parts of neighbouring row groups of a Parquet file.

    Args:
        path: the file.
        groups: metadata of all of its row groups.
        wanted: places of those that are to be read, ascending.
        part_bytes: least size of a part.

    Returns:
        Parts that hold each wanted row group once, and no other.
    """
    starts = [1]
    for group in groups:
        starts.append(starts[-1] + group.num_rows)
    parts: list[TablePart] = []
    held = 0
    for place in wanted:
        size = groups[place].total_byte_size
        last = parts[-1] if parts else None
        if last is None or last.last != place or held >= part_bytes:
            parts.append(TablePart(path, "parquet", place, place, starts[place], 0, 0))
            held = 0
        held += size
        first = parts[-1].first
        rows = starts[place + 1] - starts[first]
        parts[-1] = TablePart(path, "parquet", first, place + 1, starts[first], held, rows)
    return parts
