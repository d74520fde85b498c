"""Writes rows as CSV, JSON lines, Parquet, Arrow or steelpack, whole or not at all."""

import gzip
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from steelyard.data.formats.writer import write_steelpack
from steelyard.data.table.partitions import FORMATS, format_of, is_gzip
from steelyard.data.table.reading import ReadLimits
from steelyard.errors import ConfigError
from steelyard.files import atomic_path, folder_beside, replace_folder

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["checked_format", "write_file", "write_folder"]

_GROUP_ROWS = 131_072


def checked_format(path: Path) -> str:
    """Return the format that a file is written in, by the end of its name.

    Args:
        path: the file.

    Returns:
        One of the values of `FORMATS`.

    Raises:
        ConfigError: the end is of no format.
    """
    format = format_of(str(path))
    if not format:
        raise ConfigError(
            f"{path} is of no known format", hint=f"let it end in one of {', '.join(FORMATS)}"
        )
    return format


def write_file(
    path: Path,
    schema: "pa.Schema",
    batches: "Iterable[pa.RecordBatch]",
    group_bytes: int = ReadLimits().group_bytes,
) -> int:
    """Write batches beside a file's place and put them there whole.

    Missing values are empty in CSV and null in JSON; nested values are JSON in CSV. Text formats
    are compressed where the name ends in .gz.

    Args:
        path: the file; the end of its name says the format.
        schema: columns of the batches.
        batches: rows, which are taken in one after the other.
        group_bytes: most bytes of rows that are gathered for a row group of Parquet.

    Returns:
        Rows that were written.

    Raises:
        ConfigError: the end of the name is of no format.
        CapacityError: the disk is full; an older file stays.
    """
    format, rows = checked_format(path), 0
    if format == "steelpack":
        return write_steelpack(batches, path, schema=schema)
    with atomic_path(path) as beside, _writer(beside, path, format, schema) as write:
        for batch in _in_groups(batches, group_bytes) if format == "parquet" else batches:
            write(batch)
            rows += len(batch)
    return rows


def write_folder(folder: Path, end: str, write: "Callable[[Path], Iterable[int]]") -> int:
    """Write files into a folder, which is put in its place when it is whole.

    Args:
        folder: the folder; one that is there is replaced if it holds nothing but tables.
        end: end of the files' names, such as ".parquet".
        write: writes files into the folder that it is given, and tells the rows of each.

    Returns:
        Rows that were written.

    Raises:
        ConfigError: the end is of no format, or the folder holds other things.
        CapacityError: the disk is full; an older folder stays.
    """
    checked_format(Path(f"part{end}"))
    if folder.exists() and not (folder.is_dir() and all(map(_is_table, folder.iterdir()))):
        raise ConfigError(
            f"{folder} holds more than tables, and would be replaced", hint="name a new folder"
        )
    with folder_beside(folder) as made:
        rows = sum(write(made))
        replace_folder(made, folder)
    return rows


def _is_table(path: Path) -> bool:
    """Return whether an entry of a folder is a file of a known format."""
    return path.is_file() and bool(format_of(path.name))


@contextmanager
def _writer(
    beside: Path, path: Path, format: str, schema: "pa.Schema"
) -> "Iterator[Callable[[pa.RecordBatch], Any]]":
    """Open a writer of a format."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    if format == "parquet":
        with parquet.ParquetWriter(beside, schema, compression="zstd") as file:
            yield file.write_batch
        return
    if format == "arrow":
        with pa.OSFile(str(beside), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
            yield file.write_batch
        return
    opener = gzip.open if is_gzip(str(path)) else open
    with opener(beside, "wb") as sink:
        if format == "json lines":
            yield lambda batch: sink.write(_lines_of(batch))
            return
        options = csv.WriteOptions(delimiter="\t" if format == "tsv" else ",")
        with csv.CSVWriter(sink, _flat(schema), write_options=options) as file:
            yield lambda batch: file.write_batch(_flattened(batch))


def _in_groups(batches: "Iterable[pa.RecordBatch]", group_bytes: int) -> "Iterator[pa.RecordBatch]":
    """Join batches: a file of many small row groups reads slowly."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        size = sum(item.nbytes for item in held)
        if sum(map(len, held)) >= _GROUP_ROWS or size >= group_bytes:
            yield _joined(held)
            held = []
    if held:
        yield _joined(held)


def _joined(batches: "list[pa.RecordBatch]") -> "pa.RecordBatch":
    """Return batches as one."""
    import pyarrow as pa

    return pa.concat_batches(batches)


def _lines_of(batch: "pa.RecordBatch") -> bytes:
    """Return rows as JSON objects, one a line."""
    encoder = msgspec.json.Encoder()
    return encoder.encode_lines(batch.to_pylist())


def _is_nested(type: "pa.DataType") -> bool:
    """Return whether CSV has no form for a type."""
    import pyarrow as pa

    return pa.types.is_nested(type) or pa.types.is_binary(type)


def _flat(schema: "pa.Schema") -> "pa.Schema":
    """Return a schema with nested columns as text."""
    import pyarrow as pa

    fields = [
        pa.field(item.name, pa.string()) if _is_nested(item.type) else item for item in schema
    ]
    return pa.schema(fields)


def _flattened(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Return a batch with nested values as JSON."""
    import pyarrow as pa

    if not any(_is_nested(item.type) for item in batch.schema):
        return batch
    columns = []
    for item, values in zip(batch.schema, batch.columns, strict=True):
        if _is_nested(item.type):
            texts = [
                None if value is None else msgspec.json.encode(value).decode()
                for value in values.to_pylist()
            ]
            values = pa.array(texts, pa.string())
        columns.append(values)
    return pa.RecordBatch.from_arrays(columns, schema=_flat(batch.schema))
