"""`steelyard laws forecast`: several forms at once, with an interval that their record demands."""

import math
from collections.abc import Sequence
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
    forms_past,
    input_words,
    named_laws,
    run_words,
)
from steelyard.cli.laws.pages import right, table_page
from steelyard.runs.report import Column, Report

if TYPE_CHECKING:
    from steelyard.laws.decisions.forecasting.forecast import EnsembleForecast
    from steelyard.laws.tables.trouble import Trouble
    from steelyard.runs.track import FormPast

__all__ = ["forecast"]


def forecast(
    file: Path,
    *,
    at: Annotated[tuple[str, ...], MANY],
    law: Annotated[tuple[str, ...], MANY] = (),
    target: str = "loss",
    along: str = "",
    level: float = 0.8,
    table: TableOptions | None = None,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Forecast a run beyond those of a table, from several forms weighed by what they foresaw.

    Example: steelyard laws forecast runs.csv --at parameters=7B tokens=140B

    Args:
        file: CSV, Parquet or JSON lines with one run per row, or the folder of a run store.
        at: the run as NAME=NUMBER, such as parameters=7B tokens=140B.
        law: forms to weigh; those of the literature that read the table's axes unless given.
        target: what to forecast, one of the columns by its new name.
        along: input that measures size; the product of all inputs (compute) unless given.
        level: probability that the run falls into the interval, 0..1.
        table: which columns and rows to read.
        json: print JSON instead of a table.
    """
    from steelyard.laws.decisions.forecasting.forecast import ensemble
    from steelyard.laws.tables.table_trouble import table_trouble

    points = (table or TableOptions()).read(file)
    run = asked_run(at, points, file)
    found = ensemble(points, target, named_laws(law) or None, along=along)
    said = found.predict(run, level)
    past = forms_past(target)
    trouble = table_trouble(points, target, tuple(found.rolling.inputs))
    if json:
        known = {"run": run, **asdict(said), "separating": found.separating()}
        known["past"] = {name: asdict(item) for name, item in past.items()}
        known |= {"provenance": "fitted", "source": points.source}
        print(dump(known | {"trouble": [asdict(item) for item in trouble]}))
    else:
        _page(run_words(run), points.source, said, past, found.separating(), trouble).print()
        say_next("laws", "compare", file, *(table or TableOptions()).words())


def _page(
    named: str,
    source: str,
    said: "EnsembleForecast",
    past: "dict[str, FormPast]",
    separating: dict[str, float],
    trouble: "Sequence[Trouble]",
) -> Report:
    """Show the forecast, its forms, and what would tell them apart."""
    value, low, high = (float(end[0]) for end in (said.value, said.low, said.high))
    return table_page(
        named,
        source,
        f"Forecast {value:.5g}, {100 * said.level:.0f} % interval {low:.5g} to {high:.5g}",
        [
            Column("form"),
            *right("weight", "forecast", "error beyond cuts"),
            Column("so far in your store"),
        ],
        _rows(said, past),
        f"Carried by {said.carried_by}; provenance fitted.",
        _notes(said, separating),
        trouble,
    )


def _rows(said: "EnsembleForecast", past: "dict[str, FormPast]") -> list[list[Any]]:
    """Return a row per form, with how it did before in this user's ledger."""
    rows: list[list[Any]] = []
    for form in said.forms:
        own = f"{100 * form.error:.2f} %" if len(said.past_errors) else ""
        before = str(past.get(form.name, ""))
        rows.append([form.name, f"{form.weight:.2f}", f"{form.value[0]:.5g}", own, before])
    return rows


def _notes(said: "EnsembleForecast", separating: dict[str, float]) -> list[str]:
    """Say how such forecasts did on the table itself, and which run would tell most."""
    past = said.past_errors
    off = math.sqrt(float((past**2).mean())) if len(past) else 0.0
    record = (
        f"{len(past)} forecasts of the table's own larger runs from smaller ones were off by "
        f"{100 * off:.2g} % (root mean square)."
    )
    wanted = ", ".join(f"{name} {input_words(name, number)}" for name, number in separating.items())
    reach = float(said.reach[0])
    return [
        record if len(past) else "The table has too few runs to try this on its own larger ones.",
        f"The forms lie farthest apart at {wanted}: that run would tell most about which is right.",
        f"The run lies {math.exp(reach):.3g}x beyond the largest one."
        if reach
        else "The run lies within the sizes of the table.",
    ]
