"""What verbs print: reports and records, for people or as JSON, and tables of quantities."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import cyclopts
import msgspec

from steelyard import units
from steelyard.quantity import QUANTITIES, Forecast, Measurement
from steelyard.runs.report import Cell, Column, Report, Table
from steelyard.runs.wording import quantity_words

__all__ = ["Switch", "forecast_table", "measured_table", "print_json", "print_report"]

Switch = Annotated[bool, cyclopts.Parameter(negative=())]
"""An option that is on when it is given; there is no form that turns it off."""


def print_json(value: Any) -> None:
    """Print any value as indented JSON."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_report(
    report: Report, *, json: bool, html: Path | None = None, values: Any = None
) -> None:
    """Print a report for people, or JSON, and write it to an HTML file where one is named.

    Args:
        report: what people see.
        json: print JSON: the values, or the report's layout where there are none.
        html: file for the page.
        values: what programs want to know, without layout.
    """
    if html:
        report.write_html(html)
    if json and values is not None:
        print_json(values)
    elif json:
        sys.stdout.write(report.to_json() + "\n")
    else:
        report.print()


def measured_table(measurements: Sequence[Measurement]) -> Table:
    """Make the table of measurements, each with the definition of its quantity."""
    rows: list[list[Cell]] = [
        [item.quantity, units.pretty(item.value, item.unit), QUANTITIES[item.quantity].definition]
        for item in measurements
    ]
    return Table(
        [Column("quantity"), Column("measured", align="right"), Column("definition")], rows
    )


def forecast_table(
    forecasts: Sequence[Forecast], records: Mapping[str, str] | None = None
) -> Table:
    """Make the table of forecasts with their intervals; its caption names each source once.

    Args:
        forecasts: the rows.
        records: how good such forecasts have been on this machine, by quantity.

    Returns:
        The table; its column of records is there only where there are some.
    """
    known = records or {}
    has_records = any(item.quantity in known for item in forecasts)
    rows: list[list[Cell]] = []
    for item in forecasts:
        interval, value = quantity_words(item.low, item.high, item.unit, item.value)
        record = [known.get(item.quantity, "")] if has_records else []
        rows.append([item.quantity, value, interval, item.provenance, *record])
    heads = [
        Column("quantity"),
        Column("forecast", align="right"),
        Column("80 % interval", align="right"),
        Column("provenance", rank=1),
        *([Column("on this machine")] if has_records else []),
    ]
    sources = dict.fromkeys(item.source for item in forecasts)
    return Table(columns=heads, rows=rows, caption="; ".join(sources))
