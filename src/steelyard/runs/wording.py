"""How numbers, intervals and verdicts are worded; terminal and HTML share it."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from steelyard.quantity import Check
from steelyard.runs.blocks import Cell, Column, Table
from steelyard.units import pretty

__all__ = [
    "cell_text",
    "chart_title",
    "check_values",
    "check_words",
    "error_words",
    "interval_words",
    "machine_changed",
    "more_digits",
    "number_text",
    "quantity_words",
    "right_aligned",
    "summary_words",
    "verdict_words",
]

DASH = "–"
_MOST_MORE = 4

_SAME_SPEED = 0.05
"""Relative change of a machine's speed below which it counts as the same: what the fixed piece of
work varies by on a quiet machine."""


def number_text(value: float, *, more: int = 0) -> str:
    """Print a number for a table: four significant digits, integers whole; "–" for NaN."""
    if math.isnan(value):
        return DASH
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 1e12:
        return f"{int(value):,}"
    if abs(value) >= 1e9 or abs(value) < 1e-4:
        mantissa, exponent = f"{value:.{3 + more}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    digits = max(0, 3 + more - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def cell_text(cell: Cell) -> str:
    """Print a table cell; None is a dash, booleans are yes and no."""
    if cell is None:
        return DASH
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return cell if isinstance(cell, str) else number_text(cell)


def right_aligned(table: Table) -> list[bool]:
    """Say of each column whether it is set to the right.

    Its head says so, or it leaves the choice and all cells are numbers.
    """

    def numeric(index: int) -> bool:
        cells = [row[index] for row in table.rows if row[index] is not None]
        return bool(cells) and all(
            isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells
        )

    return [
        column.align == "right" or (not column.align and numeric(index))
        for index, column in enumerate(table.columns)
    ]


def chart_title(spec: Mapping[str, Any]) -> tuple[str, str]:
    """Return a Vega-Lite chart's title and subtitle, each as one line; empty where it has none."""
    title = spec.get("title") or ""
    parts = title if isinstance(title, Mapping) else {"text": title}
    lines = [parts.get("text") or "", parts.get("subtitle") or ""]
    first, second = ("; ".join(item) if isinstance(item, list) else str(item) for item in lines)
    return first, second


def heading(column: Column) -> str:
    """Print a column's name and unit as one line."""
    return f"{column.name} [{column.unit}]" if column.unit else column.name


def more_digits(
    write: Callable[[float, int], str], values: Sequence[float], low: float, high: float
) -> int:
    """Count the further digits that keep values from looking like the ends of their interval.

    Args:
        write: prints a number with so many digits more than usual.
        values: what stands beside the interval.
        low: the lower end.
        high: the upper end.

    Returns:
        0 where all look different, or are equal to the last digit.
    """
    for more in range(_MOST_MORE + 1):
        ends = [(end, write(end, more)) for end in (low, high)]
        if not any(
            value != end and write(value, more) == text for value in values for end, text in ends
        ):
            return more
    return 0


def quantity_words(low: float, high: float, unit: str, *values: float) -> tuple[str, ...]:
    """Print an interval and the values beside it.

    A value that rounds to an end of the interval gets further digits, and all others with it.

    Args:
        low: the lower end.
        high: the upper end.
        unit: base unit of all.
        *values: forecast, measured value and the like.

    Returns:
        The interval, then each value.
    """
    more = more_digits(lambda value, extra: pretty(value, unit, more=extra), values, low, high)
    return (
        interval_words(low, high, unit, more=more),
        *(pretty(value, unit, more=more) for value in values),
    )


def interval_words(low: float, high: float, unit: str, *, more: int = 0) -> str:
    """Print "312 – 356 ms": the unit once when both ends share it, one number without a width."""
    first, last = pretty(low, unit, more=more), pretty(high, unit, more=more)
    if low == high:
        return first
    number, _, suffix = first.partition(" ")
    if suffix and last.endswith(f" {suffix}"):
        first = number
    return f"{first} – {last}"


def _percent_words(error: float) -> str:
    """Print the relative error of a forecast with its sign: "+3.1 %"."""
    if not math.isfinite(error):
        return "∞"
    return f"{'+' if error > 0 else '−' if error < 0 else '±'}{abs(error) * 100:.1f} %"


def machine_changed(check: Check) -> bool:
    """Say whether the machine ran at another speed than the one the forecast is for."""
    return abs(math.log(check.slowdown)) > math.log1p(_SAME_SPEED)


def error_words(check: Check) -> str:
    """Print the error, and beside it the error at equal speed where the speed was another."""
    words = _percent_words(check.relative_error)
    if not machine_changed(check):
        return words
    return f"{words} ({_percent_words(check.error_at_equal_speed)} at equal speed)"


def verdict_words(check: Check) -> str:
    """Print "inside" or "outside", and that the machine changed where it did."""
    verdict = "inside" if check.covered else "outside"
    if not machine_changed(check):
        return verdict
    times = f"{max(check.slowdown, 1 / check.slowdown):.2f}x"
    return f"{verdict}: machine {times} {'slower' if check.slowdown > 1 else 'faster'}"


def check_values(check: Check) -> dict[str, float | bool]:
    """Return what follows from a check, for JSON."""
    return {
        "relative_error": check.relative_error,
        "covered": check.covered,
        "slowdown": check.slowdown,
        "error_at_equal_speed": check.error_at_equal_speed,
    }


def check_words(check: Check) -> tuple[str, str, str, str, str]:
    """Word a check: forecast, 80 % interval, measured, error, verdict."""
    said = check.forecast
    interval, forecast, measured = quantity_words(
        said.low, said.high, said.unit, said.value, check.measurement.value
    )
    return forecast, interval, measured, error_words(check), verdict_words(check)


def summary_words(checks: list[Check]) -> str:
    """Sum checks up in one or two sentences; empty for no checks."""
    if not checks:
        return ""
    inside = sum(check.covered for check in checks)
    middle = statistics.median(abs(check.relative_error) for check in checks)
    verb = "lies" if inside == 1 else "lie"
    said = (
        f"{inside} of {len(checks)} measured values {verb} inside the 80 % interval; median "
        f"absolute error {middle * 100:.1f} %."
    )
    changed = [check for check in checks if machine_changed(check)]
    if not changed:
        return said
    held = sum(check.covered_at_equal_speed for check in changed)
    return (
        f"{said} {len(changed)} of them were measured while the machine ran at another speed than "
        f"the one forecast; at equal speed {held} of these {len(changed)} lie inside."
    )
