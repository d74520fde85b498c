"""Rows of a key taken out of tables, and of all that was made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from steelyard.config import convert
from steelyard.data.governance.audit import AuditLog
from steelyard.data.governance.lineage import Lineage, LineageRecord
from steelyard.data.pipeline.pipeline import FittedPipeline
from steelyard.data.pipeline.recipe import SplitRule
from steelyard.data.sketch import hash_column
from steelyard.data.stages import hash_of
from steelyard.data.table import DataTable, Quarantine
from steelyard.data.table.cleaning import quarantine_path
from steelyard.data.table.partitions import format_of
from steelyard.data.table.writing import write_file
from steelyard.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Erasure", "erase"]


@dataclass(frozen=True, kw_only=True)
class Erasure:
    """What was erased.

    Attributes:
        rows: rows that went, by file.
        rebuilt: outputs without the key, which were made again of what is left.
        removed: files of rows set aside, which might have held the key and are gone.
        learned: pipelines that have learned from rows that are gone.
    """

    rows: Mapping[str, int]
    rebuilt: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    learned: list[str] = field(default_factory=list)


def erase(
    lineage: Lineage,
    column: str,
    values: Sequence[str],
    *,
    audit: AuditLog,
    reason: str = "",
) -> Erasure:
    """Take the rows of some keys out of all tables that the lineage knows.

    Tables that have the column lose the rows; outputs that lack it are made again, by their
    pipeline, of what is left. Files of rows set aside beside them are removed. Nothing is touched
    unless all of it can be done; files are written beside and renamed, so that the same call goes
    on after a kill.

    Args:
        lineage: what was made of what.
        column: column of the key.
        values: keys, as text.
        audit: takes an entry before and one after, with a hash of the keys.
        reason: why, for the audit.

    Returns:
        What went.

    Raises:
        ConfigError: no table has the column, or no key is given.
        DataError: a file is missing or holds rows that cannot be read, or an output lacks the
            column and there is no pipeline to make it again. Nothing was touched.
        CapacityError: the disk is full; the file that was being written is as before.
    """
    roots = [path for path in lineage.roots() if _has(path, column)]
    if not roots or not values:
        raise ConfigError(
            f"no table of the lineage {lineage.folder} has a column {column!r}"
            if values
            else "no key is given",
            hint="name the column of the key as the first tables have it",
        )
    derived = lineage.derived(roots)
    _check(roots, derived, column)
    told = {"column": column, "keys": hash_of(sorted(values)), "reason": reason}
    audit.append("erasure begun", told | {"tables": len(roots) + len(derived)})
    rows: dict[str, int] = {path: _without(Path(path), column, values) for path in roots}
    rebuilt, removed = [], _remove_beside(roots)
    for record in derived:
        if _has(record.output, column):
            rows[record.output] = _without(Path(record.output), column, values)
        else:
            _rebuild(record)
            rebuilt.append(record.output)
        removed += _remove_beside([record.output])
        lineage.refresh(record)
    learned = list(dict.fromkeys(item.pipeline for item in derived if item.pipeline))
    audit.append("erasure done", told | {"rows": sum(rows.values()), "rebuilt": len(rebuilt)})
    return Erasure(rows=rows, rebuilt=rebuilt, removed=removed, learned=learned)


def _has(path: str, column: str) -> bool:
    """Return whether a table has a column."""
    return Path(path).exists() and column in DataTable.scan(path).schema.names


def _files(path: Path) -> list[Path]:
    """Return the files of a table."""
    if path.is_dir():
        return sorted(item for item in path.rglob("*") if format_of(str(item)))
    return [path]


def _check(roots: Sequence[str], derived: Sequence[LineageRecord], column: str) -> None:
    """Refuse before anything is touched."""
    for path in (*roots, *(item.output for item in derived)):
        if not Path(path).exists():
            raise DataError(f"{path} is not there", hint="restore it, or drop its record")
        for file in _files(Path(path)):
            if format_of(str(file)) in ("", "item lines"):
                raise DataError(f"{file} is of no format that can be written")
            quarantine = Quarantine()
            table = _as_it_is(file)
            for part in table.partitions:
                for _ in table.read(part, quarantine):
                    pass
            if quarantine.total:
                raise DataError(
                    f"{file} has {quarantine.total:,} rows that cannot be read, in which a key may "
                    "stand",
                    hint="repair the file: steelyard data table clean",
                )
    for item in derived:
        if not _has(item.output, column) and not Path(item.pipeline or "-").is_file():
            raise DataError(
                f"{item.output} has no column {column!r} and no pipeline to make it again",
                hint="remove it and its record, or keep the key in it",
            )


def _as_it_is(file: Path) -> DataTable:
    """Look at a file; values of text files stay the texts that they are."""
    table = DataTable.scan(str(file))
    # A number of JSON stays one; in separated values all is text.
    is_separated = format_of(str(file)) in ("csv", "tsv")
    texts = dict.fromkeys(table.kinds, "text") if is_separated else {}
    return DataTable.scan(str(file), types=texts) if texts else table


def _without(path: Path, column: str, values: Sequence[str]) -> int:
    """Write a table without some rows, and return how many went."""
    gone = 0
    for file in _files(path):
        table = _as_it_is(file)
        if column not in table.schema.names:
            continue
        wanted = _hashes(values, table.schema.field(column).type)
        before = sum(
            int(np.isin(hash_column(batch[column]), wanted).sum()) for batch in table.batches
        )
        if before:
            kept = table.map_batches(partial(_kept, column=column, wanted=wanted))
            write_file(file, kept.schema, kept.batches)
            gone += before
    return gone


def _hashes(values: Sequence[str], kind: "pa.DataType") -> np.ndarray:
    """Return the hashes of keys in a column's type; a text that is none of it is in no row."""
    import pyarrow as pa

    found = []
    for value in values:
        try:
            found.append(hash_column(pa.array([value], pa.string()).cast(kind)))
        except pa.ArrowInvalid:
            continue
    return np.concatenate([np.zeros(0, np.uint64), *found])


def _kept(batch: "pa.RecordBatch", *, column: str, wanted: np.ndarray) -> "pa.RecordBatch":
    """Return the rows of other keys."""
    import pyarrow as pa

    return batch.filter(pa.array(~np.isin(hash_column(batch[column]), wanted)))


def _rebuild(record: LineageRecord) -> None:
    """Make an output again of its inputs."""
    table = DataTable.scan(*record.inputs)
    if record.split:
        rule = convert(record.split, SplitRule)
        table = rule.split(table).tables[record.share]
    made = FittedPipeline.open(Path(record.pipeline)).transform(table, training=record.training)
    path = Path(record.output)
    if path.is_dir():
        ends = {"".join(item.suffixes) for item in _files(path)}
        made.write(path, parts=next(iter(ends), ".parquet"))
    else:
        made.write(path)


def _remove_beside(paths: Sequence[str]) -> list[str]:
    """Remove files of rows set aside, and return their names."""
    found = [quarantine_path(Path(path)) for path in paths]
    there = [path for path in found if path.is_file()]
    for path in there:
        path.unlink()
    return [str(path) for path in there]
