"""One reader of series: tables in files and behind addresses, Prometheus, the CloudOps schema."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from steelyard.errors import DataError, TraceError
from steelyard.operate.series.cloudops import from_records, is_cloudops
from steelyard.operate.series.grid import Origin, differenced, is_counter, on_grid
from steelyard.operate.series.prometheus import read_prometheus
from steelyard.operate.series.scanned import is_scanned, scanned_rows
from steelyard.operate.series.series_set import SeriesSet

if TYPE_CHECKING:
    import polars as pl

__all__ = ["read_series"]

_TIME_NAMES = ("timestamp", "time", "datetime", "date", "ds", "ts", "start_time", "hour", "t")
_NAMES = ("id", "item_id", "series", "unique_id", "name", "instance", "pod", "service")
_LARGEST_BYTES = 2 << 30


def read_series(
    path: str | Path,
    *,
    time: str = "",
    values: Sequence[str] = (),
    name: str = "",
    step_s: float | None = None,
    counter: bool | None = None,
) -> SeriesSet:
    """Read series from a file, a folder, a pattern or an address.

    A table has a column of times, columns of numbers, and where its rows are of several series, a
    column of names. Times are dates, or numbers of seconds or milliseconds since 1970; zones are
    turned to UTC. A JSON file is the answer of a Prometheus range query. A table with the columns
    `start`, `target` and `freq` is of the CloudOps schema, a row a series.

    Args:
        path: file in .csv, .csv.gz, .tsv, .parquet, .json or .jsonl; or what `DataTable.scan` takes
            as well: a folder or pattern, whose files follow one another by name, an address such as
            s3://bucket/load, and .arrow or .steelpack.
        time: column of the times; empty finds it by its name or type.
        values: columns of the values; empty takes all numbers.
        name: column of the series' names; empty finds it by its name.
        step_s: seconds between two values; None takes the most frequent distance.
        counter: whether the values only grow and their growth per second is wanted; None tells it
            by a name that ends with _total, _bucket, _count or _sum and values that hardly fall.

    Returns:
        The series; several columns of values make a series each.

    Raises:
        DataError: the file is missing, too large or of another kind.
        TraceError: its content is refused; the message names file, row and field.
        BackendError: it needs Arrow, which is not installed.
    """
    if is_scanned(str(path)):
        source, table = str(path), scanned_rows(str(path), _LARGEST_BYTES)
        return _of_rows(table, source, (time, tuple(values), name), step_s, counter)
    path = Path(path)
    if not path.is_file():
        raise DataError(f"no such file: {path}", hint="give a CSV, Parquet or JSON file of series")
    if path.stat().st_size > _LARGEST_BYTES:
        raise DataError(f"{path} is larger than 2 GiB", hint="cut it by time or by series")
    if path.suffix == ".json":
        return read_prometheus(path, step_s=step_s, counter=counter)
    given = (time, tuple(values), name)
    return _of_rows(_read_table(path), str(path), given, step_s, counter)


def _of_rows(
    table: "pl.DataFrame",
    source: str,
    chosen: tuple[str, tuple[str, ...], str],
    step_s: float | None,
    counter: bool | None,
) -> SeriesSet:
    """Make a set of rows of either schema."""
    if is_cloudops(table.columns):
        return from_records(table.iter_rows(named=True), source)
    return _from_table(table, source, chosen, step_s, counter)


def _read_table(path: Path) -> "pl.DataFrame":
    """Read a table by the end of its file's name."""
    import polars as pl

    kind = path.suffixes[-2] if path.suffix == ".gz" and len(path.suffixes) > 1 else path.suffix
    try:
        if kind == ".parquet":
            return pl.read_parquet(path)
        if kind in (".jsonl", ".ndjson"):
            return pl.read_ndjson(path)
        if kind in (".csv", ".tsv", ".txt"):
            separator = "\t" if kind == ".tsv" else ","
            return pl.read_csv(
                path, separator=separator, try_parse_dates=True, infer_schema_length=10_000
            )
    except (pl.exceptions.PolarsError, UnicodeDecodeError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else "unreadable"
        raise DataError(f"{path} cannot be read: {first}", hint="save it anew as CSV") from error
    raise DataError(
        f"{path} is of an unknown kind {kind!r}",
        hint="give .csv, .csv.gz, .tsv, .parquet, .json (a Prometheus answer) or .jsonl",
    )


def _from_table(
    table: "pl.DataFrame",
    path: str,
    chosen: tuple[str, tuple[str, ...], str],
    step_s: float | None,
    counter: bool | None,
) -> SeriesSet:
    """Make a set of a table of times and values."""
    time, values, name = chosen
    if not table.height:
        raise TraceError(f"{path}: no rows below the header", hint="give at least 3 rows")
    for column in (time, name, *values):
        if column and column not in table.columns:
            raise TraceError(
                f"{path}: no column {column!r}", hint=f"there are: {', '.join(table.columns)}"
            )
    time = time or _time_column(table, path)
    name = name or _name_column(table, time)
    values = values or _value_columns(table, path, {time, name})
    parts = table.with_row_index("row of the file")
    groups = parts.partition_by(name, maintain_order=True) if name else [parts]
    grids, origins = [], []
    for group in groups:
        label = str(group[name][0]) if name else ""
        for column in values:
            # The times stand in rows that other series may lie between, so rows are looked up.
            origins.append((label, column))
            grids.append(_grid(group, time, column, Origin(path, column, label), step_s))
    several = len(values) > 1
    ids = [
        "/".join(filter(None, (label, column if several or not label else "")))
        for label, column in origins
    ]
    return _made(grids, ids, [column for _, column in origins], path, counter)


def _made(
    grids: Sequence[tuple[float, float, np.ndarray]],
    ids: Sequence[str],
    fields: Sequence[str],
    source: str,
    counter: bool | None,
) -> SeriesSet:
    """Join grids to a set, counters differenced."""
    starts, steps, arrays, notes = [], [], [], []
    for (start_s, step_s, grid), field in zip(grids, fields, strict=True):
        grows = is_counter(field, grid) if counter is None else counter
        arrays.append(differenced(grid, step_s) if grows else grid)
        starts.append(start_s + step_s * grows)
        steps.append(step_s)
        notes.append(f"{source}: {field}{', growth per second' if grows else ''}")
    return SeriesSet.from_arrays(arrays, step_s=steps, ids=ids, start_s=starts, provenance=notes)


def _grid(
    group: "pl.DataFrame", time: str, column: str, origin: Origin, step_s: float | None
) -> tuple[float, float, np.ndarray]:
    """Put one column of one series on its grid."""
    import polars as pl

    rows = group["row of the file"].to_numpy()
    numbers = group[column].cast(pl.Float64, strict=False)
    wrong = np.flatnonzero((numbers.is_null() & group[column].is_not_null()).to_numpy())
    if len(wrong):
        raise TraceError(
            f"{origin.words(int(rows[wrong[0]]))}: {group[column][int(wrong[0])]!r} is no number",
            hint="leave the cell empty where nothing was observed",
        )
    whole = bool((np.diff(rows) == 1).all())
    here = Origin(origin.file, origin.field, origin.series, int(rows[0]) + 2 if whole else 2)
    found = numbers.to_numpy().astype(np.float64)
    return on_grid(_seconds(group[time], here), found, here, step_s)


def _seconds(column: "pl.Series", origin: Origin) -> np.ndarray:
    """Turn times to seconds since 1970 (UTC)."""
    import polars as pl

    if column.dtype == pl.String:
        found = column.str.to_datetime(strict=False, time_zone="UTC", ambiguous="earliest")
        unread = np.flatnonzero((found.is_null() & column.is_not_null()).to_numpy())
        if len(unread):
            raise TraceError(
                f"{origin.words(int(unread[0]))}: {column[int(unread[0])]!r} is no time",
                hint="write times as 2026-01-31T12:00:00",
            )
        column = found
    if column.dtype.is_temporal():
        stamps = column.cast(pl.Datetime("us", getattr(column.dtype, "time_zone", None)))
        return stamps.dt.epoch("us").to_numpy().astype(np.float64) / 1e6
    numbers = column.cast(pl.Float64, strict=False).to_numpy().astype(np.float64)
    # Seconds of this century have ten digits, milliseconds thirteen.
    return numbers / 1000 if len(numbers) and np.nanmedian(numbers) > 1e11 else numbers


def _time_column(table: "pl.DataFrame", path: str) -> str:
    """Find the column of times by its type, then by its name."""
    dated = [name for name, kind in table.schema.items() if kind.is_temporal()]
    named = [name for name in table.columns if name.strip().lower() in _TIME_NAMES]
    found = [*dated, *named]
    if not found:
        raise TraceError(
            f"{path}: no column of times among {', '.join(table.columns)}",
            hint="name it with --time, or call it timestamp",
        )
    return found[0]


def _name_column(table: "pl.DataFrame", time: str) -> str:
    """Find the column of the series' names; empty where there is one series."""
    import polars as pl

    words = [
        name
        for name, kind in table.schema.items()
        if kind == pl.String and name != time and not _mostly_numbers(table[name])
    ]
    known = [name for name in table.columns if name.strip().lower() in _NAMES and name != time]
    found = [*known, *words]
    return found[0] if found else ""


def _mostly_numbers(column: "pl.Series") -> bool:
    """Tell whether a column of text is one of numbers with a few cells that are none."""
    import polars as pl

    if column.dtype != pl.String:
        return False
    known = column.drop_nulls()
    read = known.cast(pl.Float64, strict=False).is_not_null()
    return 2 * int(read.sum()) > len(known)


def _value_columns(table: "pl.DataFrame", path: str, used: set[str]) -> tuple[str, ...]:
    """List the columns of numbers."""
    numbers = [
        name
        for name, kind in table.schema.items()
        if kind.is_numeric() or _mostly_numbers(table[name])
    ]
    found = tuple(name for name in numbers if name not in used)
    if not found:
        raise TraceError(
            f"{path}: no column of numbers among {', '.join(table.columns)}",
            hint="name the column of values with --value",
        )
    return found
