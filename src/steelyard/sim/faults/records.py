"""Failures as they were written down: a table of times, of daily counts, or of instances up."""

import csv
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from steelyard.errors import DataError
from steelyard.sim.faults.processes import Array

__all__ = ["FailureRecord", "read_failures", "record_of_counts", "record_of_drops"]

_DAY_S = 86400.0
_MOST_ROWS = 10_000_000


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Failures within a span of time.

    Attributes:
        times_s: [n] seconds from the span's begin, rising.
        span_s: seconds that were watched.
    """

    times_s: Array
    span_s: float

    @property
    def gaps_s(self) -> Array:
        """Seconds from the begin to the first failure, and between failures; without zeros."""
        gaps = np.diff(self.times_s, prepend=0.0)
        return gaps[gaps > 0]

    @property
    def quiet_s(self) -> float:
        """Seconds after the last failure, in which none came."""
        return self.span_s - float(self.times_s[-1]) if len(self.times_s) else self.span_s


def read_failures(path: Path, *, count: str = "count") -> FailureRecord:
    """Read a CSV file of failures.

    Its columns are `time_s` (seconds) or `date` (ISO dates or times, UTC unless they say), and
    optionally a count (failures then, 1 when absent); or `start_s` and `instances`, of which every
    fall is a failure. Days that have counts are taken as whole days, their failures evenly spread
    over them.

    Args:
        path: CSV file with a header.
        count: name of the column of counts.

    Returns:
        The failures; the span begins with the first row.

    Raises:
        DataError: the file is missing, or its columns or values are not these.
    """
    rows = _rows(path)
    names = rows[0].keys() if rows else ()
    if {"start_s", "instances"} <= set(names):
        start, up = (_numbers(rows, name, path) for name in ("start_s", "instances"))
        return record_of_drops(start, up)
    if not {"time_s", "date"} & set(names):
        raise DataError(
            f"{path}: columns are {', '.join(names) or 'none'}",
            hint="it needs time_s or date, with count where there are several; or start_s and "
            "instances",
        )
    counts = _numbers(rows, count, path) if count in names else np.ones(len(rows))
    if counts.sum() > _MOST_ROWS:
        raise DataError(f"{path}: more than {_MOST_ROWS} failures", hint="correct the counts")
    if "time_s" in names:
        times = _numbers(rows, "time_s", path)
        times = np.sort(np.repeat(times, counts.astype(int)))
        return FailureRecord(times, float(times[-1]) if len(times) else 0.0)
    return record_of_counts(_days(rows, path), counts)


def record_of_counts(days: Array, counts: Array, *, span_days: float = 0.0) -> FailureRecord:
    """Spread the failures of days evenly over each day.

    Args:
        days: [n] days from the begin; days without failures may be absent.
        counts: [n] failures of each.
        span_days: days that were watched; up to the end of the last one when not given.

    Returns:
        The failures in seconds.
    """
    times = [
        _DAY_S * (day + (number + 0.5) / count)
        for day, count in zip(days, counts.astype(int), strict=True)
        for number in range(count)
    ]
    last = float(days.max(initial=-1.0)) + 1
    return FailureRecord(np.sort(np.array(times)), _DAY_S * max(span_days, last))


def record_of_drops(start_s: Array, instances: Array) -> FailureRecord:
    """Take each fall in the number of instances that are up as a failure.

    Args:
        start_s: [n] seconds from which a number of instances was up, rising.
        instances: [n] instances then.

    Returns:
        The failures; the span ends with the last row.
    """
    falls = np.diff(instances, prepend=instances[:1]) < 0
    return FailureRecord(start_s[falls] - start_s[0], float(start_s[-1] - start_s[0]))


def _rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = []
            for row in csv.DictReader(file):
                rows.append(row)
                if len(rows) > _MOST_ROWS:
                    raise DataError(f"{path}: more than {_MOST_ROWS} rows", hint="cut the file")
            return rows
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: {error}", hint="give a CSV file with a header") from error


def _numbers(rows: list[dict[str, str]], name: str, path: Path) -> Array:
    """Read a column of numbers that are at least 0."""
    found = []
    for place, row in enumerate(rows):
        try:
            value = float(row[name])
        except (TypeError, ValueError):
            value = -1.0
        if not 0 <= value < np.inf:
            raise DataError(
                f"{path}, row {place + 2}: {name} is {row[name]!r}, but must be 0 or more",
                hint="correct the row",
            )
        found.append(value)
    return np.array(found)


def _days(rows: list[dict[str, str]], path: Path) -> Array:
    """Read a column of dates as days since the first."""
    found = []
    for place, row in enumerate(rows):
        try:
            moment = datetime.fromisoformat(row["date"] or "")
            # A day is 24 hours: no clock is set forward in UTC.
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            found.append(moment.timestamp() / _DAY_S)
        except ValueError as error:
            raise DataError(
                f"{path}, row {place + 2}: date is {row['date']!r}",
                hint="write such as 2024-03-31",
            ) from error
    days = np.array(found)
    return np.round(days - days.min(), 6)
