"""Traces of cold starts and of invocations, in the Huawei and both Azure schemas, checked."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from steelyard.errors import DataError, TraceError

__all__ = ["PARTS", "read_functions", "scan_file", "scan_traces", "schema_of"]

PARTS = {
    "podAllocationCost": "pod_allocation",
    "deployCodeCost": "deploy_code",
    "deployDependencyCost": "deploy_dependency",
    "schedulingCost": "scheduling",
}
"""Parts of a start by the column that holds them."""
_TOTAL = "totalCost_cold_start"
_NEEDED: dict[str, tuple[str, ...]] = {
    "huawei": ("time", _TOTAL, *PARTS, "podID"),
    "huawei-requests": ("time_worker", "totalCost_worker", "podID"),
    "azure-2021": ("app", "func", "end_timestamp", "duration"),
    "azure-2019": ("HashApp", "HashFunction", "Trigger", "1"),
}
_TIMES: dict[str, tuple[str, ...]] = {
    "huawei": (_TOTAL, *PARTS),
    "huawei-requests": ("totalCost_worker",),
    "azure-2021": ("duration",),
    "azure-2019": (),
}
_SORTED: dict[str, str] = {"huawei": "time", "huawei-requests": "time_worker"}
_MARKS: dict[str, str] = {
    _TOTAL: "huawei",
    "podAllocationCost": "huawei",
    "totalCost_worker": "huawei-requests",
    "time_worker": "huawei-requests",
    "end_timestamp": "azure-2021",
    "HashFunction": "azure-2019",
}
_DAY_S = 86_400.0


def scan_file(path: Path) -> pl.LazyFrame:
    """Open a CSV (also packed by gzip) or Parquet file without reading it.

    Args:
        path: the file.

    Returns:
        Its lazy frame.

    Raises:
        DataError: there is no such file, or it is of another kind.
    """
    if not path.is_file():
        raise DataError(f"{path} is no file", hint="give CSV or Parquet files")
    if path.suffix == ".parquet":
        return pl.scan_parquet(path)
    if path.name.endswith((".csv", ".csv.gz")):
        return pl.scan_csv(path, infer_schema_length=1000)
    raise DataError(f"{path} is neither .csv, .csv.gz nor .parquet", hint="convert or rename it")


def schema_of(path: Path) -> str:
    """Say in which schema a file is, by its columns.

    Args:
        path: the file.

    Returns:
        huawei, huawei-requests, azure-2019 or azure-2021.

    Raises:
        TraceError: it is in none, or lacks columns of its schema; all missing ones are named.
    """
    names = _names(path)
    schema = next((kind for mark, kind in _MARKS.items() if mark in names), None)
    if schema is None:
        raise TraceError(
            f"{path.name}: columns {', '.join(names[:8])} are of no known schema",
            hint="; ".join(f"{kind}: {', '.join(needed)}" for kind, needed in _NEEDED.items()),
        )
    missing = [name for name in _NEEDED[schema] if name not in names]
    if schema.startswith("huawei") and not {"funcID", "funcName"} & set(names):
        missing.append("funcID (or funcName)")
    if missing:
        raise TraceError(
            f"{path.name}: columns {', '.join(missing)} are missing from the {schema} schema",
            hint=f"it has {', '.join(names[:12])}",
        )
    return schema


def _names(path: Path) -> list[str]:
    """Return the columns of a file."""
    try:
        return scan_file(path).collect_schema().names()
    except pl.exceptions.PolarsError as error:
        raise TraceError(f"{path.name} cannot be read: {error}") from error


def scan_traces(paths: Sequence[Path]) -> tuple[pl.LazyFrame, str]:
    """Open files of one schema as one trace, after checking every row of each.

    Args:
        paths: files in the order of time.

    Returns:
        Columns time_s, function, total_s, pod, the parts and what else the files have (Huawei);
        time_s, function, app, duration_s (Azure 2021, `time_s` is the start); the columns of the
        file (Azure 2019). And the schema.

    Raises:
        TraceError: names file, row and column of what is missing, negative, empty, unsorted,
            overlapping, or less than its parts by more than 5 %.
        DataError: a file is missing, or none is given.
    """
    if not paths:
        raise DataError("no trace is given", hint="name one or more files")
    schemas = {path: schema_of(path) for path in paths}
    if len(set(schemas.values())) > 1:
        told = ", ".join(f"{path.name} ({kind})" for path, kind in schemas.items())
        raise TraceError(f"files are in different schemas: {told}", hint="give one kind at a time")
    schema = schemas[paths[0]]
    last_s = float("-inf")
    for path in paths:
        last_s = _checked(path, schema, last_s)
    frames = [_normal(scan_file(path), schema) for path in paths]
    return pl.concat(frames, how="diagonal_relaxed"), schema


def _checked(path: Path, schema: str, last_s: float) -> float:
    """Check the rows of a file that begins after `last_s`; return its last time."""
    frame = _typed(path, schema)
    rules = {name: (pl.col(name).is_null() | (pl.col(name) < 0)) for name in _TIMES[schema]}
    allowed = dict.fromkeys(rules, "a number of seconds, 0 or more")
    if schema == "azure-2019":
        counts = [name for name in frame.collect_schema().names() if name.isdigit()]
        rules |= {name: pl.col(name).is_null() | (pl.col(name) < 0) for name in counts}
        allowed |= dict.fromkeys(counts, "a count, 0 or more")
    if schema in _SORTED:
        name = _SORTED[schema]
        rules[name] = pl.col(name).is_null() | (_time(frame, schema).diff() < 0)
        allowed[name] = "a time, not before the row above"
    first = {
        name: pl.arg_where(rule).first().cast(pl.Int64).alias(name) for name, rule in rules.items()
    }
    if schema == "huawei":
        parts = pl.sum_horizontal(*PARTS)
        first["parts"] = pl.arg_where(pl.col(_TOTAL) < 0.95 * parts).first().cast(pl.Int64)
        first["parts"] = first["parts"].alias("parts")
    times = _time(frame, schema)
    found = frame.select(*first.values(), times.first().alias("begin"), times.last().alias("end"))
    row = found.collect(engine="streaming").row(0, named=True)
    _refuse(path, row, allowed)
    if schema in _SORTED and row["begin"] is not None and row["begin"] < last_s:
        raise TraceError(
            f"{path.name}, row 1, column {_SORTED[schema]}: lies before the end of the file ahead",
            hint="give files in the order of time, none twice",
        )
    return row["end"] if row["end"] is not None else last_s


def _refuse(path: Path, row: dict, allowed: dict[str, str]) -> None:
    """Raise for the first broken row of a column."""
    for name, text in allowed.items():
        if row[name] is not None:
            raise TraceError(
                f"{path.name}, row {row[name] + 1}, column {name}: must be {text}",
                hint="correct or leave out the row",
            )
    if row.get("parts") is not None:
        raise TraceError(
            f"{path.name}, row {row['parts'] + 1}, column {_TOTAL}: is less than the sum of its "
            "parts by more than 5 %",
            hint="correct or leave out the row",
        )


def _typed(path: Path, schema: str) -> pl.LazyFrame:
    """Open a file and see that columns of numbers hold numbers."""
    frame = scan_file(path)
    kinds = frame.collect_schema()
    numbers = [*_TIMES[schema], _SORTED.get(schema, "")]
    numbers += ["end_timestamp"] if schema == "azure-2021" else []
    for name in filter(None, numbers):
        if not kinds[name].is_numeric():
            wrong = pl.arg_where(pl.col(name).cast(pl.Float64, strict=False).is_null()).first()
            row = frame.select(wrong).collect().item()
            raise TraceError(
                f"{path.name}, row {(row or 0) + 1}, column {name}: is not a number",
                hint="correct or leave out the row",
            )
    return frame


def _time(frame: pl.LazyFrame, schema: str) -> pl.Expr:
    """Return the time of a row, seconds from the start of the trace."""
    if schema == "azure-2019":
        return pl.lit(0.0)
    if schema == "azure-2021":
        return pl.col("end_timestamp") - pl.col("duration")
    time = pl.col(_SORTED[schema]).cast(pl.Float64)
    if schema == "huawei" and "day" in frame.collect_schema().names():
        begin = pl.col("day").cast(pl.Float64) * _DAY_S
        # Files exist with the time within the day and with that from the trace's start.
        return pl.when(time < begin).then(time + begin).otherwise(time)
    return time


def _normal(frame: pl.LazyFrame, schema: str) -> pl.LazyFrame:
    """Bring a file's columns to common names."""
    if schema == "azure-2019":
        return frame
    time = _time(frame, schema).alias("time_s")
    if schema == "azure-2021":
        return frame.select(
            time,
            pl.col("func").alias("function"),
            pl.col("app"),
            pl.col("duration").alias("duration_s"),
        )
    names = frame.collect_schema().names()
    pool = pl.col("podID").cast(pl.String).str.replace(r"-[^-]*$", "")
    if "funcID" in names:
        function = pl.col("funcID").cast(pl.String)
    else:
        keys = [pl.col(name).cast(pl.String) for name in ("funcName", "userID") if name in names]
        function = pl.concat_str(*keys, pool, separator="---")
    common = [time, function.alias("function"), pl.col("podID").cast(pl.String).alias("pod")]
    common.append(pool.alias("pool"))
    for name, to in (("runtime", "runtime"), ("triggerType-invocationType", "trigger")):
        if name in names:
            common.append(pl.col(name).alias(to))
    if schema == "huawei-requests":
        return frame.select(*common, pl.col("totalCost_worker").alias("duration_s"))
    parts = [pl.col(name).cast(pl.Float64).alias(to) for name, to in PARTS.items()]
    return frame.select(*common, pl.col(_TOTAL).cast(pl.Float64).alias("total_s"), *parts)


def read_functions(path: Path) -> pl.DataFrame:
    """Read the table of functions: funcID, runtime, triggerType-invocationType.

    Args:
        path: CSV or Parquet file.

    Returns:
        Columns function, runtime, trigger; one row per function.

    Raises:
        TraceError: a column is missing.
    """
    names = _names(path)
    needed = ("funcID", "runtime", "triggerType-invocationType")
    missing = [name for name in needed if name not in names]
    if missing:
        raise TraceError(f"{path.name}: columns {', '.join(missing)} are missing")
    columns = [
        pl.col(old).cast(pl.String).alias(new)
        for old, new in zip(needed, ("function", "runtime", "trigger"), strict=True)
    ]
    return scan_file(path).select(columns).unique("function", keep="first").collect()
