"""From time stamps to a regular grid, or a refusal that names file, row and field."""

import re
from dataclasses import dataclass

import numpy as np

from steelyard.errors import TraceError

__all__ = ["Origin", "differenced", "is_counter", "on_grid", "step_of_frequency"]

_MOST_MISSING = 0.05
_JITTER = 0.25
"""Largest distance of a time stamp from its place on the grid, in steps."""
_UNITS_S = {
    "ms": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "t": 60.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
}
_FREQUENCY = re.compile(r"(\d*\.?\d*)\s*([a-zA-Z]+)(?:-[A-Z]{3})?")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where values were read: what a refusal names.

    Attributes:
        file: the file or address.
        field: the column or metric.
        series: name of the series.
        first_row: number of the first value's row as an editor counts it.
    """

    file: str
    field: str
    series: str = ""
    first_row: int = 2

    def words(self, row: int | None = None) -> str:
        """Return the beginning of a message about a row, counted from 0 among the values."""
        place = "" if row is None else f", row {row + self.first_row}"
        series = f", series {self.series!r}" if self.series else ""
        return f"{self.file}{place}, field {self.field!r}{series}"


def step_of_frequency(text: str, origin: Origin) -> float:
    """Read the name of a frequency, such as "5T", "5min", "H" or "1D".

    Args:
        text: the name.
        origin: where it stands.

    Returns:
        Seconds of a step.

    Raises:
        TraceError: it is unknown, or of steps of unequal length such as months.
    """
    match = _FREQUENCY.fullmatch(text.strip())
    # "M" is a month and "m" a minute, so the month is caught before case is dropped.
    unit = match.group(2) if match else ""
    known = unit in _UNITS_S or (unit != "M" and unit.lower() in _UNITS_S)
    count = float(match.group(1) or 1) if match and match.group(1) != "." else 0.0
    if not known or count <= 0:
        raise TraceError(
            f"{origin.words()}: unknown frequency {text!r}",
            hint="give a number and one of ms, s, min (or T), h, d, w, such as 5min",
        )
    return count * _UNITS_S[unit if unit in _UNITS_S else unit.lower()]


def on_grid(
    times_s: np.ndarray, values: np.ndarray, origin: Origin, step_s: float | None = None
) -> tuple[float, float, np.ndarray]:
    """Put values on the grid that their time stamps mean.

    Args:
        times_s: seconds since 1970 (UTC) [T].
        values: values [T]; NaN where none was observed.
        origin: where they were read.
        step_s: seconds between two values; None takes the most frequent distance.

    Returns:
        Time of the first value, step, and values [grid] with NaN in the holes.

    Raises:
        TraceError: time stands still or goes back, steps are mixed, more than 5 % of the values are
            missing, or too few rows tell no step.
    """
    _check_times(times_s, origin, step_s)
    gaps = np.diff(times_s)
    step = step_s or _usual(gaps)
    # Each stamp is placed after the one before it, so that a clock which drifts slowly stays on it.
    jumps = gaps / step
    places = np.round(jumps)
    off = (np.abs(jumps - places) > _JITTER) | (places < 1)
    if off.mean() > 0.01:
        row = int(np.flatnonzero(off)[0]) + 1
        raise TraceError(
            f"{origin.words(row)}: mixed steps: {gaps[row - 1]:g} s after the row before, where "
            f"{step:g} s is the rule",
            hint="resample to one step, or give each step its own file",
        )
    index = np.concatenate([[0], np.cumsum(np.maximum(places, 1))]).astype(np.int64)
    grid = np.full(index[-1] + 1, np.nan)
    grid[index] = values
    _check_missing(grid, index, origin)
    return float(times_s[0]), float(step), grid


def _check_times(times_s: np.ndarray, origin: Origin, step_s: float | None) -> None:
    """Refuse too few rows, stamps that are no time, and time that does not go on."""
    if len(times_s) < (2 if step_s else 3):
        raise TraceError(
            f"{origin.words()}: {len(times_s)} rows tell no frequency",
            hint="give at least 3 rows",
        )
    unread = np.flatnonzero(~np.isfinite(times_s))
    if len(unread):
        raise TraceError(f"{origin.words(int(unread[0]))}: the time is missing")
    back = np.flatnonzero(np.diff(times_s) <= 0)
    if len(back):
        row = int(back[0]) + 1
        stays = "is that of the row before" if times_s[row] == times_s[row - 1] else "goes back"
        raise TraceError(
            f"{origin.words(row)}: time {stays}",
            hint="sort the rows, drop repeated ones, and write times in UTC: local time repeats "
            "an hour a year",
        )


def _usual(gaps: np.ndarray) -> float:
    """Return the most frequent distance; stamps that jitter vote within a tenth of a second."""
    rounded, counts = np.unique(np.round(gaps, 1), return_counts=True)
    step = float(rounded[counts.argmax()])
    return step if step > 0 else float(np.median(gaps))


def _check_missing(grid: np.ndarray, index: np.ndarray, origin: Origin) -> None:
    """Refuse series with more than 5 % of holes, naming the longest."""
    missing = ~np.isfinite(grid)
    if missing.all():
        raise TraceError(f"{origin.words()}: no value is a finite number")
    if missing.mean() <= _MOST_MISSING:
        return
    edges = np.flatnonzero(np.diff(np.concatenate([[0], missing.view(np.int8), [0]])))
    starts, ends = edges[::2], edges[1::2]
    longest = int((ends - starts).argmax())
    row = int(np.searchsorted(index, starts[longest]))
    raise TraceError(
        f"{origin.words(row)}: {missing.mean():.1%} of the values are missing, at most "
        f"{_MOST_MISSING:.0%} may be; the longest gap is {ends[longest] - starts[longest]} steps",
        hint="fill the gaps, cut the file to a part without them, or take a longer step",
    )


def is_counter(name: str, grid: np.ndarray) -> bool:
    """Tell whether values are a count that only grows, by Prometheus' custom of naming.

    Args:
        name: name of the column or metric.
        grid: its values [T]; NaN in holes.

    Returns:
        Whether the name is a counter's and at most 1 % of the steps fall, as a restart does.
    """
    steps = np.diff(grid[np.isfinite(grid)])
    # The name alone would difference a column such as "request_count" that counts each interval.
    falls = (steps < 0).mean() if len(steps) else 0.0
    return name.endswith(("_total", "_bucket", "_count", "_sum")) and bool(falls <= 0.01)


def differenced(grid: np.ndarray, step_s: float) -> np.ndarray:
    """Turn a count that only grows into its growth per second.

    Args:
        grid: counts [T]; NaN in holes.
        step_s: seconds of a step.

    Returns:
        Rates [T - 1] of the steps that follow the first. A count that falls was reset, and what it
        shows afterwards is its growth. The growth over a hole is spread over its steps.
    """
    known = np.flatnonzero(np.isfinite(grid))
    counts = grid[known]
    growth = np.diff(counts)
    growth = np.where(growth < 0, counts[1:], growth)
    spans = np.diff(known)
    rates = np.full(len(grid) - 1, np.nan)
    rates[known[0] : known[-1]] = np.repeat(growth / (spans * step_s), spans)
    return rates
