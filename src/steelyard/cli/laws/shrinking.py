"""`steelyard laws shrink`: which runs of a study a forecast could have done without."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from steelyard.cli.following import say_next
from steelyard.cli.laws.options import (
    FLAG,
    MANY,
    TableOptions,
    asked_run,
    dump,
    input_words,
    named_laws,
    run_words,
)
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    from steelyard.laws.decisions.forecasting.forecast import EnsembleForecast
    from steelyard.laws.decisions.forecasting.shrink import ShrunkStudy
    from steelyard.laws.tables.table import RunTable
    from steelyard.runs.report import Report

__all__ = ["shrink"]

_MOST_ROWS = 20


def shrink(
    file: Path,
    *,
    at: Annotated[tuple[str, ...], MANY],
    law: Annotated[tuple[str, ...], MANY] = (),
    target: str = "loss",
    along: str = "",
    run: str = "",
    level: float = 0.8,
    wider: float = 1.5,
    table: TableOptions | None = None,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Find runs of a study that a forecast could have done without, the dearest first.

    Example: steelyard laws shrink runs.csv --at parameters=7B tokens=140B

    Args:
        file: CSV, Parquet or JSON lines with one run per row, or the folder of a run store.
        at: the run that is forecast as NAME=NUMBER, such as parameters=7B tokens=140B.
        law: forms to weigh; those of the literature that read the table's axes unless given.
        target: what to forecast, one of the columns by its new name.
        along: input that measures size; the product of all inputs (compute) unless given.
        run: column that names the run of a row where rows are checkpoints; they go together.
        level: probability that the run falls into the interval, 0..1.
        wider: how many times as wide the interval may become, in log units; 1 or more.
        table: which columns and rows to read.
        json: print JSON instead of a table.
    """
    from steelyard.laws.decisions.forecasting.shrink import shrink as find
    from steelyard.laws.tables.frames import pick

    if not 1 <= wider < math.inf:
        raise ConfigError(f"--wider {wider:g} is not allowed", hint="give 1 or more, such as 1.5")
    options = table or TableOptions()
    points = options.read(file)
    wanted = asked_run(at, points, file)
    columns = {**points.numbers, **points.words}
    found = find(
        points,
        target,
        named_laws(law) or None,
        at=wanted,
        runs=columns[pick(run, columns, file.name)] if run else None,
        level=level,
        along=along,
        wider=wider,
    )
    if json:
        print(dump(_record(found, points, wanted)))
    else:
        _page(found, points, wanted).print()
        say_next("laws", "forecast", file, "--at", *at, *options.words())


def _record(found: "ShrunkStudy", points: "RunTable", run: dict[str, float]) -> dict[str, Any]:
    """Return what a machine reads; rows are those of the file, the first is 1."""
    return {
        "run": run,
        "kept": points.rows[found.kept],
        "left_out": points.rows[found.left_out],
        "saved_fraction": found.saved_fraction,
        "whole": asdict(found.whole),
        "shrunk": asdict(found.shrunk),
        "num_tried": found.num_tried,
        "provenance": "fitted",
        "source": points.source,
    }


def _page(found: "ShrunkStudy", points: "RunTable", run: dict[str, float]) -> "Report":
    """Show both forecasts and the rows that could have been left out."""
    from steelyard.runs.report import Column, Report, Section, Table, Text

    percent = f"{100 * found.whole.level:.0f} % interval"
    heads = [Column("from"), *(Column(word, align="right") for word in ("runs", "forecast"))]
    last = _last_rows(found)
    total, count = len(set(found.runs.tolist())), len(last)
    rows = [_said("all", total, found.whole), _said("kept", total - count, found.shrunk)]
    said = Table([*heads, Column(percent, align="right")], rows, "Provenance fitted.")
    inputs = [name for name in run if name in points]
    names = ["row", *inputs, "compute"]
    caption = "Rows of the file count from 1; compute as a share of the whole study."
    gone = _gone(found, points, inputs, last[:_MOST_ROWS])
    tried = Text(f"{found.num_tried} smaller studies were tried; more could perhaps go.")
    listed = Table([Column(name, align="right") for name in names], gone, caption)
    title = f"{count} of {total} runs could go: {100 * found.saved_fraction:.0f} % of the compute"
    left = f"Left out{f', the dearest {_MOST_ROWS}' if count > _MOST_ROWS else ''}"
    nothing = Text(f"No run could be left out; {found.num_tried} smaller studies were tried.")
    sections = [
        Section(title, [said]),
        Section(left, [listed, tried] if count else [nothing]),
    ]
    return Report(run_words(run), points.source, sections)


def _last_rows(found: "ShrunkStudy") -> list[int]:
    """Return the dearest row of every run left out: its last checkpoint."""
    rows: dict[Any, int] = {}
    for row in found.left_out.tolist():
        rows.setdefault(found.runs[row].item(), row)
    return list(rows.values())


def _said(name: str, count: int, said: "EnsembleForecast") -> list[Any]:
    """Return one forecast as a row."""
    low, value, high = (f"{float(end[0]):.5g}" for end in (said.low, said.value, said.high))
    return [name, str(count), value, f"{low} to {high}"]


def _gone(
    found: "ShrunkStudy", points: "RunTable", inputs: list[str], rows: list[int]
) -> list[list[Any]]:
    """Return a row per run left out, the dearest first."""
    return [
        [
            str(points.rows[row]),
            *(input_words(name, float(points[name][row])) for name in inputs),
            f"{100 * found.cost[row] / found.total_cost:.1f} %",
        ]
        for row in rows
    ]
