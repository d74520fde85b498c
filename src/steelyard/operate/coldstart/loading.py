"""Requests of a platform from traces of invocations."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from steelyard.errors import DataError, TraceError
from steelyard.operate.coldstart.traces import read_functions, scan_file, scan_traces
from steelyard.sim.serverless.workload import CloudFunction, Workload

__all__ = ["load_workload"]

_AZURE_TRIGGERS = {
    "timer": "TIMER-A",
    "http": "APIG-S",
    "storage": "OBS-A",
    "queue": "other-A",
    "event": "other-A",
    "orchestration": "workflow-S",
    "others": "other-S",
}
_LEAST_FIRINGS = 4
_EXACT = 0.9
"""Fraction of the times between calls that must agree for a timer's period to be known."""


def load_workload(
    paths: Sequence[Path],
    *,
    functions: Path | None = None,
    durations: Path | None = None,
    runtime: str = "Python3",
    slots: int = 1,
    seed: int = 0,
) -> Workload:
    """Read invocations: Huawei's request table, or either Azure schema.

    Args:
        paths: files of one schema, in the order of time.
        functions: Huawei's table of runtimes and triggers.
        durations: Azure 2019's table of durations; each takes 1 s without it.
        runtime: start-up of functions whose runtime the trace does not tell.
        slots: requests that a pod serves at a time.
        seed: seed of the times within a minute, which Azure 2019 only counts.

    Returns:
        The workload, its time from the first request; timers get their period where their calls
        are exact.

    Raises:
        TraceError: names file, row and column of what is wrong.
        DataError: the trace has cold starts and no requests, or nothing.
    """
    frame, schema = scan_traces(paths)
    if schema == "huawei":
        raise DataError(
            "this trace has cold starts, not requests",
            hint="`characterize` reads it; simulate a table of requests",
        )
    if schema == "azure-2019":
        table = _spread(frame, durations, seed)
    else:
        wanted = ["time_s", "function", "duration_s"]
        names = frame.collect_schema().names()
        wanted += [name for name in ("runtime", "trigger", "pool") if name in names]
        # Azure's rows are in the order of their ends, and a long request began before short ones.
        table = frame.select(wanted).sort("time_s").collect(engine="streaming")
    if functions is not None:
        # A left join: a function that the table lacks is still called, as an unknown one.
        table = table.drop("runtime", "trigger", strict=False).join(
            read_functions(functions), on="function", how="left", maintain_order="left"
        )
    if not len(table):
        raise DataError("the trace has no requests")
    return _workload(table, runtime, slots)


def _workload(table: pl.DataFrame, runtime: str, slots: int) -> Workload:
    """Make functions and requests of a sorted table."""
    keys = table["function"].to_numpy()
    names, first, owner = np.unique(keys, return_index=True, return_inverse=True)
    time_s = table["time_s"].to_numpy().astype(float)
    time_s = time_s - time_s[0]
    columns = {
        name: table[name].to_list() if name in table.columns else None
        for name in ("runtime", "trigger", "pool")
    }

    def told(name: str, row: int, other: str) -> str:
        found = columns[name]
        return str(found[row]) if found and found[row] is not None else other

    order = np.argsort(owner, kind="stable")
    parts = np.split(time_s[order], np.cumsum(np.bincount(owner))[:-1])
    made = []
    for at, (name, row) in enumerate(zip(names, first, strict=True)):
        trigger = told("trigger", row, "unknown")
        made.append(
            CloudFunction(
                name=str(name),
                runtime=told("runtime", row, runtime),
                size_class=_size_class(told("pool", row, "")),
                trigger=trigger,
                slots=slots,
                period_s=_period_s(parts[at]) if "TIMER" in trigger else 0.0,
            )
        )
    duration_s = table["duration_s"].to_numpy().astype(float)
    # The last arrival would be too early an end: requests that still run would count for less.
    return Workload(made, time_s, owner, duration_s, float((time_s + duration_s).max()))


def _size_class(pool: str) -> str:
    """Return the size class of a pool such as pool22-300-128."""
    return pool.partition("-")[2]


def _period_s(times_s: NDArray[np.float64]) -> float:
    """Return the period of calls to the second, 0 where they are not exact."""
    if len(times_s) < _LEAST_FIRINGS:
        return 0.0
    # Platforms fire within a second of the time that was set, so gaps alternate by one.
    gaps_s = np.round(np.diff(times_s))
    middle = float(np.median(gaps_s))
    return middle if middle > 0 and (np.abs(gaps_s - middle) <= 1).mean() >= _EXACT else 0.0


def _spread(frame: pl.LazyFrame, durations: Path | None, seed: int) -> pl.DataFrame:
    """Spread counts by minute evenly over their minute; timers fire at its beginning."""
    table = frame.collect(engine="streaming")
    minutes = sorted((name for name in table.columns if name.isdigit()), key=int)
    counts = table.select(minutes).to_numpy().astype(np.int64)
    rows, columns = np.nonzero(counts)
    each = counts[rows, columns]
    row, minute = np.repeat(rows, each), np.repeat(columns, each)
    trigger = np.array([_AZURE_TRIGGERS.get(name, "unknown") for name in table["Trigger"]])
    # A timer whose calls were spread too would not be known by its period any more.
    within = np.random.default_rng(seed).uniform(0, 60, len(row))
    time_s = 60.0 * minute + np.where(trigger[row] == "TIMER-A", 0.0, within)
    duration_s = _durations(table, durations)
    return pl.DataFrame(
        {
            "time_s": time_s,
            "function": table["HashFunction"].to_numpy()[row],
            "duration_s": duration_s[row],
            "trigger": trigger[row],
        }
    ).sort("time_s", maintain_order=True)


def _durations(table: pl.DataFrame, path: Path | None) -> NDArray[np.float64]:
    """Return the mean duration of each row's function, seconds."""
    if path is None:
        return np.ones(len(table))
    frame = scan_file(path)
    missing = {"HashFunction", "Average"} - set(frame.collect_schema().names())
    if missing:
        raise TraceError(f"{path.name}: columns {', '.join(sorted(missing))} are missing")
    # Days of the table may stand behind each other; a row for each would multiply the requests.
    known = frame.select("HashFunction", pl.col("Average") / 1e3).unique("HashFunction")
    joined = table.select("HashFunction").join(
        known.collect(), on="HashFunction", how="left", maintain_order="left"
    )
    found = joined["Average"].fill_null(1.0).to_numpy()
    if (found < 0).any():
        row = int(np.argmax(found < 0))
        raise TraceError(f"{path.name}, row {row + 1}, column Average: must be 0 or more")
    return found
