"""Writes the good rows of a table, and those set aside beside them; the counts add up."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from steelyard.data.arrow import compute
from steelyard.data.sketch import hash_column
from steelyard.data.sketch.hashing import mix64
from steelyard.data.table.quarantine import BadRow, Quarantine
from steelyard.data.table.reading import MISSING
from steelyard.data.table.writing import checked_format, write_file
from steelyard.files import atomic_path

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.table import DataTable

__all__ = ["Cleaned", "clean", "quarantine_path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What became of the rows of a table.

    Attributes:
        read: rows of the files.
        written: good rows.
        duplicates: good rows that were left out, equal to an earlier one.
        trimmed: texts that had blanks around them.
        emptied: texts that stand for a missing value.
        quarantine: rows set aside; with those written and left out they are all rows.
    """

    read: int
    written: int
    duplicates: int
    trimmed: int
    emptied: int
    quarantine: Quarantine


@dataclass(slots=True)
class _CleanCounts:
    """Counts of a cleaning that is under way."""

    good: int = 0
    duplicates: int = 0
    trimmed: int = 0
    emptied: int = 0


def clean(
    table: "DataTable", out: Path, *, drop_duplicates: bool = False, missing: Sequence[str] = ()
) -> Cleaned:
    """Write the good rows of a table to one file, and the others beside it.

    Texts lose blanks around them, and those that stand for a missing value become missing. Rows
    that broke a rule are written to `quarantine_path(out)` with file, row, field and reason.

    Args:
        table: the table.
        out: file of the good rows; the end of its name says the format.
        drop_duplicates: leave out rows that equal an earlier one in every column, by a 128-bit hash
            of the row; some hundred bytes of memory a row.
        missing: texts that stand for a missing value too, beside the usual ones.

    Returns:
        Counts that add up.

    Raises:
        ConfigError: the end of the name is of no format.
        DataError: a file cannot be read.
        CapacityError: the disk is full; older files stay.
    """
    checked_format(out)
    tally = _CleanCounts()
    words = [*MISSING, *missing]
    seen = set() if drop_duplicates else None
    with atomic_path(quarantine_path(out)) as beside, beside.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(BadRow._fields)
        quarantine = Quarantine(sink=writer.writerow)
        written = write_file(out, table.schema, _cleaned(table, quarantine, tally, words, seen))
    return Cleaned(
        read=tally.good + quarantine.total,
        written=written,
        duplicates=tally.duplicates,
        trimmed=tally.trimmed,
        emptied=tally.emptied,
        quarantine=quarantine,
    )


def quarantine_path(out: Path) -> Path:
    """Return the file for the rows that a cleaning sets aside: beside its own.

    Args:
        out: file of the good rows.

    Returns:
        "clean.quarantine.csv" for "clean.parquet" or "clean.csv.gz".
    """
    return out.with_name(out.name.split(".")[0] + ".quarantine.csv")


def _cleaned(
    table: "DataTable",
    quarantine: Quarantine,
    tally: _CleanCounts,
    words: list[str],
    seen: set[bytes] | None,
) -> "Iterator[pa.RecordBatch]":
    """Read a table's rows, clean, without those that were seen."""
    for part in table.partitions:
        for batch in table.read(part, quarantine):
            tally.good += len(batch)
            tidy = _tidied(batch, words, tally)
            if seen is not None:
                tidy = _unseen(tidy, seen)
                tally.duplicates += len(batch) - len(tidy)
            yield tidy


def _tidied(batch: "pa.RecordBatch", words: list[str], tally: _CleanCounts) -> "pa.RecordBatch":
    """Trim texts; those that stand for nothing become missing."""
    import pyarrow as pa

    pc = compute()
    columns = []
    for values in batch.columns:
        if pa.types.is_string(values.type):
            trimmed = pc.utf8_trim_whitespace(values)
            tally.trimmed += pc.sum(pc.not_equal(trimmed, values)).as_py() or 0
            is_word = pc.is_in(trimmed, value_set=pa.array(words, pa.string()))
            tally.emptied += pc.sum(is_word).as_py() or 0
            values = pc.if_else(is_word, pa.scalar(None, pa.string()), trimmed)
        columns.append(values)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _unseen(batch: "pa.RecordBatch", seen: set[bytes]) -> "pa.RecordBatch":
    """Return rows that equal none before them."""
    import pyarrow as pa

    first = np.zeros(len(batch), np.uint64)
    second = np.zeros(len(batch), np.uint64)
    for place, values in enumerate(batch.columns):
        hashes = hash_column(values)
        # Two hashes that scramble columns differently: 64 bits alone meet by chance in 2^32 rows.
        first += mix64(hashes + np.uint64(2 * place + 1))
        second ^= mix64(hashes ^ np.uint64((2 * place + 1) * 0x9E3779B97F4A7C15 % 2**64))
    keys = np.stack([first, second], axis=1)
    is_new = np.zeros(len(batch), bool)
    for row, key in enumerate(map(bytes, keys)):
        if key not in seen:
            seen.add(key)
            is_new[row] = True
    return batch if is_new.all() else batch.filter(pa.array(is_new))
