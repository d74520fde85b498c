"""What one pass over a table has to read and look at, by its files' sizes and first rows."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from steelyard.cost.scan import ColumnWork, FileWork
from steelyard.data.table.counts import ReadCounts
from steelyard.data.table.looking import ColumnProbe, RowBytes
from steelyard.data.table.partitions import TableFile, TablePart, is_gzip
from steelyard.data.table.reading import BATCH_ROWS, BLOCK_BYTES, ReadLimits
from steelyard.data.table.sources import open_source

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

__all__ = ["kind_of", "scan_work"]

_MANY = 3000
"""Values of a column from which on a profile takes as long as if all differed."""
_FOOTER_BYTES = 64 << 10
"""What Arrow reads first of a Parquet file: its end."""
_ASSUMED_TEXT_BYTES = 12.0


class LookedAt(Protocol):
    """What is asked of a table."""

    @property
    def schema(self) -> "pa.Schema":
        """Columns that are read."""
        ...

    @property
    def files(self) -> Sequence[TableFile]:
        """The files."""
        ...

    @property
    def partitions(self) -> Sequence[TablePart]:
        """Parts that are read at once."""
        ...

    @property
    def kinds(self) -> "Mapping[str, str]":
        """Kinds of columns of text files."""
        ...

    @property
    def probes(self) -> "Mapping[str, ColumnProbe]":
        """First values of columns of text files."""
        ...

    @property
    def limits(self) -> ReadLimits:
        """How much is read at once."""
        ...

    @property
    def row_bytes(self) -> "Mapping[str, RowBytes]":
        """What a row of a text file takes."""
        ...


def kind_of(type: "pa.DataType") -> str:
    """Return the kind of column that an Arrow type is most like.

    Args:
        type: any Arrow type.

    Returns:
        One of `KINDS`; "text" for nested types, which count by their text.
    """
    import pyarrow as pa

    kinds = {
        "whole number": pa.types.is_integer,
        "number": lambda item: pa.types.is_floating(item) or pa.types.is_decimal(item),
        "yes or no": pa.types.is_boolean,
        "date": pa.types.is_date,
        "time": lambda item: pa.types.is_timestamp(item) or pa.types.is_time(item),
    }
    return next((kind for kind, is_kind in kinds.items() if is_kind(type)), "text")


def scan_work(table: LookedAt, *, is_profiled: bool = True) -> list[FileWork]:
    """Return what one pass over a table has to do.

    Args:
        table: a table that was looked at; only ends of Parquet files are read for the answer.
        is_profiled: whether its columns are profiled, or only read.

    Returns:
        Amounts by format; the sum over them is that of the table.
    """
    by_path = {item.path: item for item in table.files}
    works = []
    for path, parts in groupby(table.partitions, key=lambda part: part.path):
        works.append(_of_file(table, by_path[path], list(parts), is_profiled))
    return list(_together(works))


def _together(works: list[FileWork]) -> Iterator[FileWork]:
    """Add up files that are alike: a table of thousands of files is a few sums."""
    groups: dict[Any, list[FileWork]] = {}
    for work in works:
        groups.setdefault((work.format, work.is_packed, work.columns), []).append(work)
    for (format, is_packed, columns), alike in groups.items():
        yield FileWork(
            format=format,
            is_packed=is_packed,
            parts=sum(item.parts for item in alike),
            num_bytes=sum(item.num_bytes for item in alike),
            requests=sum(item.requests for item in alike),
            text_bytes=sum(item.text_bytes for item in alike),
            rows=sum(item.rows for item in alike),
            batches=sum(item.batches for item in alike),
            columns=columns,
            is_profiled=alike[0].is_profiled,
        )


def _of_file(
    table: LookedAt, file: TableFile, parts: list[TablePart], is_profiled: bool
) -> FileWork:
    """Return what one file takes."""
    if parts[0].format == "parquet":
        return _of_parquet(table, parts, is_profiled)
    if parts[0].format in ("arrow", "frame", "steelpack"):
        return _of_arrow(table, file, parts, is_profiled)
    return _of_text(table, file, parts, is_profiled)


def _of_text(
    table: LookedAt, file: TableFile, parts: list[TablePart], is_profiled: bool
) -> FileWork:
    """Return what a file of lines takes; its rows are estimated from its first ones."""
    of_row = table.row_bytes.get(file.path) or _mean(table.row_bytes, file.num_bytes)
    is_packed = is_gzip(file.path)
    rows = sum(part.num_bytes for part in parts) / max(of_row.stored, 1e-9)
    text = rows * of_row.text
    pieces = len(parts)
    if parts[0].format == "json lines":
        batches = max(rows / BATCH_ROWS, pieces)
    else:
        batches = max(math.ceil(text / pieces / table.limits.block_bytes), 1) * pieces
    read_bytes = sum(part.num_bytes for part in parts)
    return FileWork(
        format=parts[0].format,
        is_packed=is_packed,
        parts=pieces,
        num_bytes=read_bytes,
        requests=math.ceil(read_bytes / table.limits.block_bytes) + pieces,
        text_bytes=text,
        rows=rows,
        batches=batches,
        columns=tuple(
            _text_column(table.kinds[name], table.probes[name], rows / batches)
            for name in table.schema.names
            if name in table.kinds
        ),
        is_profiled=is_profiled,
    )


def _mean(found: "Mapping[str, RowBytes]", num_bytes: float) -> RowBytes:
    """Return what a row takes in the files that were looked into; a whole file where none has."""
    if not found:
        return RowBytes(num_bytes, num_bytes)
    text, stored = (sum(values) / len(found) for values in zip(*found.values(), strict=True))
    return RowBytes(text, stored)


def _variety(distinct: float) -> float:
    """Return how varied a column of some different values is, 0 to 1."""
    return min(math.log(max(distinct, 1.0)) / math.log(_MANY), 1.0)


def _text_column(kind: str, probe: ColumnProbe, batch_rows: float) -> ColumnWork:
    """Return a column of text by its first values."""
    is_varied = probe.distinct > 0.5 * probe.rows
    good = 1 - probe.misfits / max(probe.rows, 1)
    return ColumnWork(
        kind=kind,
        text_bytes=round(probe.text_bytes, 3),
        variety=1.0 if is_varied else round(_variety(probe.distinct), 3),
        doubtful=round(1 - good**batch_rows, 3),
    )


def _of_arrow(
    table: LookedAt, file: TableFile, parts: list[TablePart], is_profiled: bool
) -> FileWork:
    """Return what an Arrow file or a frame takes; widths of types tell its rows."""
    columns = tuple(_plain_column(item.type) for item in table.schema if item.name in file.columns)
    width = sum(item.text_bytes if item.kind == "text" else 8.0 for item in columns) or 8.0
    is_frame = parts[0].format == "frame"
    rows = float(file.rows) if file.rows is not None else file.num_bytes / width
    batches = sum(part.last - part.first for part in parts) if not is_frame else 0
    return FileWork(
        format=parts[0].format,
        parts=len(parts),
        num_bytes=0.0 if is_frame else float(file.num_bytes),
        requests=0.0 if is_frame else 2.0 * batches + len(parts),
        text_bytes=float(file.num_bytes),
        rows=rows,
        batches=float(batches or math.ceil(rows / BATCH_ROWS)),
        columns=columns,
        is_profiled=is_profiled,
    )


def _plain_column(type: "pa.DataType") -> ColumnWork:
    """Return a column of which nothing but its type is known."""
    kind = kind_of(type)
    return ColumnWork(kind=kind, text_bytes=_ASSUMED_TEXT_BYTES if kind == "text" else 0.0)


def _of_parquet(table: LookedAt, parts: list[TablePart], is_profiled: bool) -> FileWork:
    """Return what a Parquet file takes: its end says what each column of each group holds."""
    from pyarrow import parquet

    with (
        open_source(parts[0].path, ReadCounts()) as source,
        parquet.ParquetFile(source) as file,
    ):
        metadata, size = file.metadata, source.size()
        names = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
    known = set(table.schema.names)
    wanted = [place for place, name in enumerate(names) if name.partition(".")[0] in known]
    groups = [metadata.row_group(place) for part in parts for place in range(part.first, part.last)]
    chunks = [[group.column(place) for group in groups] for place in wanted]
    every = [chunk for column in chunks for chunk in column]
    stored = sum(chunk.total_compressed_size for chunk in every)
    # Each part reads the end of the file again.
    footer = max(min(size, _FOOTER_BYTES), metadata.serialized_size + 8)
    rows = sum(group.num_rows for group in groups)
    return FileWork(
        format="parquet",
        parts=len(parts),
        num_bytes=stored + footer * len(parts),
        requests=2 * len(parts)
        + sum(math.ceil(chunk.total_compressed_size / BLOCK_BYTES) for chunk in every),
        text_bytes=sum(chunk.total_uncompressed_size for chunk in every),
        rows=float(rows),
        batches=float(sum(math.ceil(group.num_rows / BATCH_ROWS) for group in groups)),
        columns=tuple(
            _parquet_column(table.schema.field(names[place].partition(".")[0]).type, column, rows)
            for place, column in zip(wanted, chunks, strict=True)
        ),
        is_profiled=is_profiled,
    )


def _parquet_column(type: "pa.DataType", chunks: list[Any], rows: int) -> ColumnWork:
    """Return a column by the sizes of its chunks: few values need few bits."""
    kind = kind_of(type)
    width = sum(chunk.total_uncompressed_size for chunk in chunks) / max(rows, 1)
    has_words = bool(chunks) and all(
        any("DICTIONARY" in name for name in chunk.encodings) for chunk in chunks
    )
    # A dictionary of 3000 values has codes of 11.6 bits; without one, values are stored one by one.
    variety = min(8 * width / math.log2(_MANY), 1.0) if has_words else 1.0
    length = 0.0
    if kind == "text":
        length = width if not has_words else _told_length(chunks)
    return ColumnWork(kind=kind, text_bytes=round(length, 2), variety=round(variety, 2))


def _told_length(chunks: list[Any]) -> float:
    """Return the mean length of the least and largest texts that statistics name."""
    told = [
        len(str(value))
        for chunk in chunks
        if chunk.statistics is not None and chunk.statistics.has_min_max
        for value in (chunk.statistics.min, chunk.statistics.max)
    ]
    return sum(told) / len(told) if told else _ASSUMED_TEXT_BYTES
