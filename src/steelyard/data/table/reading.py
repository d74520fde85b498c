"""Reads a part of a file as Arrow batches; rows that do not fit go to the quarantine."""

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data.table.counts import ReadCounts
from steelyard.data.table.decoding import decoded
from steelyard.data.table.fitting import ROW, cast_to
from steelyard.data.table.item_lines import read_item_lines
from steelyard.data.table.json_lines import MISSING, read_json_lines
from steelyard.data.table.parsed import (
    ParsedRows,
    fitted,
    keeping,
    kept_path,
    kept_rows,
    parsed,
)
from steelyard.data.table.partitions import TablePart, is_gzip
from steelyard.data.table.quarantine import BadRow, Quarantine
from steelyard.data.table.sources import open_source
from steelyard.data.table.steelpack_file import steelpack_batches
from steelyard.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BATCH_ROWS",
    "BLOCK_BYTES",
    "MISSING",
    "ROW",
    "ReadLimits",
    "column_names",
    "opened_text",
    "read_partition",
    "read_texts",
    "usual_limits",
]

BLOCK_BYTES = 1 << 20
_COLUMN_BYTES = 16 << 10
_VALUES_PER_TEXT = 4
"""Most bytes of values that are expected of a byte of text."""
BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How much is read at once.

    Attributes:
        batch_rows: most rows of a batch of columns or of JSON lines.
        block_bytes: bytes of text that are split into rows at once.
        buffer_bytes: what is read ahead of each column of a row group.
        group_bytes: rows that are gathered for a row group of Parquet that is written.
    """

    batch_rows: int = BATCH_ROWS
    block_bytes: int = BLOCK_BYTES
    buffer_bytes: int = 1 << 20
    group_bytes: int = 64 << 20

    def divided(self, times: float) -> "ReadLimits":
        """Return limits of batches that become some times as wide.

        Args:
            times: 1 or more.

        Returns:
            Smaller ones.
        """
        return ReadLimits(
            batch_rows=max(int(self.batch_rows / times), 64),
            block_bytes=max(int(self.block_bytes / times), 1 << 16),
            buffer_bytes=self.buffer_bytes,
            group_bytes=self.group_bytes,
        )


def usual_limits(columns: int) -> ReadLimits:
    """Return how much of a table is read at once where nothing bounds it.

    Args:
        columns: of the table; each costs some microseconds a batch, so that wide ones are read in
            larger blocks.

    Returns:
        Limits.
    """
    return ReadLimits(block_bytes=max(BLOCK_BYTES, columns * _COLUMN_BYTES))


_USUAL = ReadLimits()
_DELIMITERS = {"csv": ",", "tsv": "\t"}


def _opened(partition: TablePart, counts: ReadCounts) -> Any:
    """Open the bytes of a part for reading."""
    file = open_source(partition.path, counts)
    if is_gzip(partition.path):
        return _unzipped(file)
    return file.get_stream(partition.first, partition.last - partition.first)


def opened_text(path: str, counts: ReadCounts) -> Any:
    """Open a file of lines at its beginning, decompressed.

    Args:
        path: the file.
        counts: takes in what is read of it, compressed.

    Returns:
        The open file.
    """
    file = open_source(path, counts)
    return _unzipped(file) if is_gzip(path) else file


def _unzipped(file: Any) -> Any:
    """Return the decompressed bytes of a file, which is asked for a block at a time."""
    import pyarrow as pa

    # The decompressor asks for some kilobytes, and remote storage is paid by the request.
    return gzip.open(pa.BufferedInputStream(file, BLOCK_BYTES))


def column_names(path: str, format: str) -> list[str]:
    """Return the names in the first line of a file of lines.

    Args:
        path: the file.
        format: "csv" or "tsv".

    Returns:
        Names in their order.

    Raises:
        DataError: the file is empty, not text, or names a column twice.
    """
    import pyarrow as pa
    from pyarrow import csv

    try:
        with opened_text(path, ReadCounts()) as file:
            block = file.read(BLOCK_BYTES)
        line = csv.read_csv(
            pa.BufferReader(block.partition(b"\n")[0] + b"\n" if b'"' not in block else block),
            read_options=csv.ReadOptions(use_threads=False),
            parse_options=csv.ParseOptions(
                delimiter=_DELIMITERS[format],
                newlines_in_values=True,
                invalid_row_handler=lambda _: "skip",
            ),
        )
    except (OSError, EOFError, pa.ArrowException) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    names = [name.lstrip("\ufeff") for name in line.schema.names]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{path} names the column {twice[0]!r} twice", hint="rename one of them")
    return names


def read_texts(
    partition: TablePart,
    names: list[str],
    quarantine: Quarantine,
    limits: ReadLimits = _USUAL,
) -> Iterator[tuple["pa.RecordBatch", np.ndarray]]:
    """Read lines as columns of text.

    Args:
        partition: part of a file of lines.
        names: columns of the file.
        quarantine: takes lines of another number of values, or that are no JSON objects.
        limits: how much is read at once.

    Yields:
        Columns of text, and the row of the file of each row, [rows].

    Raises:
        DataError: the file cannot be read.
    """
    import pyarrow as pa

    try:
        if partition.format == "json lines":
            with _opened(partition, quarantine.reads) as file:
                yield from read_json_lines(partition, file, names, quarantine, limits.batch_rows)
        else:
            yield from _separated(partition, names, quarantine, limits)
    except (OSError, EOFError, pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read {partition.path} from row {partition.first_row}: {error}",
            hint="repair the file, or leave it out",
        ) from error


def _separated(
    partition: TablePart, names: list[str], quarantine: Quarantine, limits: ReadLimits
) -> Iterator[tuple["pa.RecordBatch", np.ndarray]]:
    """Read separated values."""
    import pyarrow as pa
    from pyarrow import csv

    # The reader counts the line of names as a row of the first part.
    before = partition.first_row - (2 if partition.first == 0 else 1)
    bad_rows: list[int] = []

    def set_aside(row: Any) -> str:
        bad_rows.append(row.number + before)
        reason = f"{row.actual_columns} values, not {row.expected_columns}"
        quarantine.add(BadRow(partition.path, bad_rows[-1], "", row.text, reason))
        return "skip"

    with _opened(partition, quarantine.reads) as file:
        batches = csv.open_csv(
            file,
            read_options=csv.ReadOptions(
                use_threads=False,
                block_size=limits.block_bytes,
                column_names=names,
                skip_rows=1 if partition.first == 0 else 0,
            ),
            parse_options=csv.ParseOptions(
                delimiter=_DELIMITERS[partition.format],
                newlines_in_values=True,
                invalid_row_handler=set_aside,
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.binary()),
                null_values=list(MISSING),
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )
        good = 0
        for batch in batches:
            numbers = _file_rows(good, len(batch), np.array(bad_rows), partition.first_row)
            yield decoded(batch, numbers, partition.path, quarantine)
            good += len(batch)


def _file_rows(start: int, count: int, bad_rows: np.ndarray, first_row: int) -> np.ndarray:
    """Return the row of the file of some good rows, those set aside before them counted."""
    good = np.arange(start, start + count)
    if not len(bad_rows):
        return good + first_row
    # The n-th row set aside has as many good ones before it as its place less n.
    passed = np.sort(bad_rows) - first_row - np.arange(len(bad_rows))
    return good + np.searchsorted(passed, good, side="right") + first_row


def read_partition(
    partition: TablePart,
    kinds: Mapping[str, str],
    schema: "pa.Schema",
    names: list[str],
    quarantine: Quarantine,
    limits: ReadLimits = _USUAL,
    kept_in: Path | None = None,
) -> Iterator["pa.RecordBatch"]:
    """Read a part of a file as batches of the table's schema.

    Args:
        partition: the part.
        kinds: kind of each column of text files.
        schema: columns that are wanted, with their types.
        names: columns of the file.
        quarantine: takes rows that do not fit.
        limits: how much is read at once.
        kept_in: folder of values of text files that were parsed before; None keeps none.

    Yields:
        Batches; a column that the file lacks is missing throughout.

    Raises:
        DataError: the file cannot be read, or a column cannot be turned into its type.
    """
    if partition.format in ("parquet", "arrow", "steelpack"):
        yield from _columnar(partition, schema, quarantine.reads, limits)
        return
    if partition.format == "item lines":
        yield from _item_lines(partition, schema, quarantine)
        return
    path = kept_path(kept_in, partition, names, kinds)
    if path is not None and path.is_file():
        every = kept_rows(path, _VALUES_PER_TEXT * limits.block_bytes)
    elif path is not None:
        every = keeping(path, _parsed_apart(partition, kinds, names, quarantine, limits))
    else:
        texts = read_texts(partition, names, quarantine, limits)
        every = (parsed(*given, schema.names, kinds) for given in texts)
    for rows in every:
        yield fitted(rows, partition.path, schema, quarantine)


def _parsed_apart(
    partition: TablePart,
    kinds: Mapping[str, str],
    names: list[str],
    quarantine: Quarantine,
    limits: ReadLimits,
) -> Iterator[ParsedRows]:
    """Read a part of a text file with all of its columns, lines that are none beside its rows."""
    import pyarrow as pa

    lines: list[BadRow] = []
    own = Quarantine(reads=quarantine.reads, sink=lines.append)
    for batch, numbers in read_texts(partition, names, own, limits):
        # The reader parses ahead in a thread of its own, which may add lines meanwhile.
        count = len(lines)
        own_lines = tuple(lines[:count])
        del lines[:count]
        yield replace(parsed(batch, numbers, names, kinds), lines=own_lines)
    # Those behind the last row; the reader ends with a block of none.
    if lines:
        none = [pa.array([], pa.string()) for _ in names]
        texts = pa.RecordBatch.from_arrays(none, names)
        empty = parsed(texts, np.zeros(0, np.int64), names, kinds)
        yield replace(empty, lines=tuple(lines))


def _item_lines(
    partition: TablePart, schema: "pa.Schema", quarantine: Quarantine
) -> Iterator["pa.RecordBatch"]:
    """Read baskets, one a line."""
    import pyarrow as pa

    try:
        with _opened(partition, quarantine.reads) as file:
            first = partition.first_row
            for batch in read_item_lines(partition, file, quarantine):
                yield cast_to(batch, schema, partition.path, first)
                first += len(batch)
    except (OSError, EOFError, pa.ArrowException) as error:
        raise DataError(
            f"cannot read {partition.path}: {error}", hint="repair the file, or leave it out"
        ) from error


def _columnar(
    partition: TablePart, schema: "pa.Schema", counts: ReadCounts, limits: ReadLimits
) -> Iterator["pa.RecordBatch"]:
    """Read row groups of Parquet and steelpack files, or batches of Arrow files."""
    import pyarrow as pa

    first = partition.first_row
    try:
        for batch in _own_batches(partition, schema.names, counts, limits):
            yield cast_to(batch, schema, partition.path, first)
            first += len(batch)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"cannot read {partition.path}: {error}", hint="repair the file, or leave it out"
        ) from error


def _own_batches(
    partition: TablePart, names: list[str], counts: ReadCounts, limits: ReadLimits
) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa
    from pyarrow import parquet

    if partition.format == "steelpack":
        yield from steelpack_batches(partition, names, counts, limits.batch_rows)
        return
    if partition.format == "parquet":
        # A buffered stream keeps pages, not whole columns of a row group, in memory.
        source = open_source(partition.path, counts)
        buffer = limits.buffer_bytes
        with parquet.ParquetFile(source, buffer_size=buffer, pre_buffer=False) as file:
            # The schema is made anew at each look.
            known = set(file.schema_arrow.names)
            own = [name for name in names if name in known]
            groups = list(range(partition.first, partition.last))
            yield from file.iter_batches(
                limits.batch_rows, row_groups=groups, columns=own, use_threads=False
            )
        return
    with open_source(partition.path, counts) as source, pa.ipc.open_file(source) as reader:
        for place in range(partition.first, partition.last):
            batch = reader.get_batch(place)
            known = set(batch.schema.names)
            yield batch.select([name for name in names if name in known])
