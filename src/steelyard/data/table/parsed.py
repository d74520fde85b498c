"""Lines of text as values of their kinds, parsed once and kept for later passes."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.data.stages import hash_of
from steelyard.data.table.fitting import ROW
from steelyard.data.table.kinds import Misfit, as_kind, as_type
from steelyard.data.table.partitions import TablePart
from steelyard.data.table.quarantine import BadRow, Quarantine
from steelyard.data.table.sources import stamp_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ParsedRows", "fitted", "keeping", "kept_path", "kept_rows", "parsed"]

_ABOUT = "steelyard.parsed"


@dataclass(frozen=True, slots=True)
class ParsedRows:
    """Rows of a text file, those with values that do not fit still among them.

    Attributes:
        batch: columns of their kinds, missing where a value does not fit.
        numbers: row of the file of each, [rows].
        misfits: values that do not fit, by column.
        lines: lines before or among the rows that are none, such as those of too many values.
    """

    batch: "pa.RecordBatch"
    numbers: NDArray[np.int64]
    misfits: Mapping[str, Misfit] = field(default_factory=dict)
    lines: tuple[BadRow, ...] = ()


def parsed(
    batch: "pa.RecordBatch",
    numbers: NDArray[np.int64],
    columns: Sequence[str],
    kinds: Mapping[str, str],
) -> ParsedRows:
    """Turn columns of text into values of their kinds.

    Args:
        batch: columns of text.
        numbers: row of the file of each, [rows].
        columns: which; those that the batch lacks are left out.
        kinds: kind of each column.

    Returns:
        The rows.
    """
    import pyarrow as pa

    # Arrow makes the list of names anew at each look: of 10,000 columns that would be 10^8 names.
    known = set(batch.schema.names)
    found, misfits = {}, {}
    for name in columns:
        if name in known:
            found[name], misfit = as_kind(batch[name], kinds[name])
            if misfit is not None:
                misfits[name] = misfit
    arrays = list(found.values()) or [pa.nulls(len(batch))]
    return ParsedRows(pa.RecordBatch.from_arrays(arrays, list(found) or [""]), numbers, misfits)


def fitted(
    rows: ParsedRows, path: str, schema: "pa.Schema", quarantine: Quarantine
) -> "pa.RecordBatch":
    """Return the rows of which all values of a table's columns fit; others are set aside.

    Args:
        rows: the rows.
        path: their file.
        schema: columns with their types.
        quarantine: takes rows with a misfit, and lines that are none.

    Returns:
        The rows that fit; a column that they lack is missing throughout.
    """
    import pyarrow as pa

    for line in rows.lines:
        quarantine.add(line)
    columns, is_bad = [], np.zeros(len(rows.numbers), bool)
    known = set(rows.batch.schema.names)
    for item in schema:
        if item.name == ROW:
            columns.append(pa.array(rows.numbers, pa.int64()))
            continue
        if item.name not in known:
            columns.append(pa.nulls(len(is_bad), item.type))
            continue
        values, others = rows.batch[item.name], None
        if values.type != item.type:
            # Files of Arrow's types say what the column is.
            values, others = as_type(values, item.type)
        columns.append(values)
        for found in filter(None, (rows.misfits.get(item.name), others)):
            for place, value in zip(found.rows.tolist(), found.values, strict=True):
                if not is_bad[place]:
                    is_bad[place] = True
                    number = int(rows.numbers[place])
                    quarantine.add(BadRow(path, number, item.name, str(value), found.reason))
    made = pa.RecordBatch.from_arrays(columns, schema=schema)
    return made.filter(pa.array(~is_bad)) if is_bad.any() else made


def kept_path(
    folder: Path | None, part: TablePart, columns: Sequence[str], kinds: Mapping[str, str]
) -> Path | None:
    """Return the file of the values of a part.

    Args:
        folder: folder of kept values, None for none.
        part: the part.
        columns: columns of its file.
        kinds: kind of each.

    Returns:
        A file of the folder that may not be there yet; None where nothing is kept.
    """
    if folder is None or not folder.is_dir():
        return None
    cut = [part.first, part.last, part.first_row]
    told = [part.path, stamp_of(part.path), *cut, [[name, kinds[name]] for name in columns]]
    return folder / f"{hash_of(told)[:24]}.arrow"


def keeping(path: Path, rows: Iterator[ParsedRows]) -> Iterator[ParsedRows]:
    """Keep rows in a file while they are used; one that does not come to its end is not kept.

    Args:
        path: file of `kept_path`.
        rows: rows of all columns of the file.

    Yields:
        The same rows.
    """
    import pyarrow as pa

    beside = path.with_suffix(f".{os.getpid()}")
    writer: pa.ipc.RecordBatchFileWriter | None = None
    is_kept = True
    try:
        for item in rows:
            batch = item.batch.append_column(ROW, pa.array(item.numbers, pa.int64()))
            try:
                if writer is None and is_kept:
                    writer = pa.ipc.new_file(str(beside), batch.schema)
                if writer is not None and is_kept:
                    writer.write_batch(batch, custom_metadata={_ABOUT: _about(item)})
            except OSError:
                # A full disk: the part is parsed again.
                is_kept = False
            yield item
        if writer is not None and is_kept:
            writer.close()
            # Not flushed: after a power cut there is no pass that would read it.
            beside.replace(path)
    except OSError:
        if writer is None:
            raise
    finally:
        if writer is not None:
            with suppress(OSError):
                writer.close()
        beside.unlink(missing_ok=True)


def _about(rows: ParsedRows) -> str:
    """Return what was set aside as JSON."""
    misfits = {
        name: [found.rows.tolist(), found.values, found.reason]
        for name, found in rows.misfits.items()
    }
    return json.dumps([misfits, rows.lines])


def kept_rows(path: Path, batch_bytes: int) -> Iterator[ParsedRows]:
    """Read rows that were kept.

    Args:
        path: a file of `keeping`.
        batch_bytes: most bytes of values at once, nearly.

    Yields:
        The rows, mapped from the file.
    """
    import pyarrow as pa

    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        for place in range(reader.num_record_batches):
            batch, about = reader.get_batch_with_custom_metadata(place)
            misfits, lines = json.loads(about[_ABOUT.encode()])
            known = {
                name: Misfit(np.array(rows, np.int64), values, reason)
                for name, (rows, values, reason) in misfits.items()
            }
            numbers = np.asarray(batch[ROW])
            values = batch.drop_columns([ROW])
            whole = ParsedRows(values, numbers, known, tuple(BadRow(*line) for line in lines))
            yield from _cut(whole, batch_bytes)


def _cut(rows: ParsedRows, batch_bytes: int) -> Iterator[ParsedRows]:
    """Cut rows that were parsed within another bound."""
    count = len(rows.numbers)
    step = max(int(count * batch_bytes / max(rows.batch.nbytes, 1)), 1)
    if step >= count:
        yield rows
        return
    for first in range(0, count, step):
        last = min(first + step, count)
        misfits = {}
        for name, found in rows.misfits.items():
            begin, end = np.searchsorted(found.rows, [first, last])
            own = found.rows[begin:end] - first
            misfits[name] = Misfit(own, found.values[begin:end], found.reason)
        lines = rows.lines if first == 0 else ()
        yield ParsedRows(
            rows.batch.slice(first, last - first), rows.numbers[first:last], misfits, lines
        )
