"""Reports about runs: the list, one run, several side by side, checks, the ledger."""

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from steelyard.config import flatten
from steelyard.quantity import QUANTITIES, Check
from steelyard.runs.blocks import Block, Cell, Chart, Checks, Column, Facts, Section, Table, Text
from steelyard.runs.record import RunRecord
from steelyard.runs.report import Report
from steelyard.runs.wording import quantity_words
from steelyard.units import pretty, pretty_duration

if TYPE_CHECKING:
    import polars

    from steelyard.runs.ledger import LedgerRow

__all__ = [
    "check_report",
    "compare_report",
    "ledger_report",
    "list_report",
    "run_report",
]

_SPANS = ("run.duration", "serve.makespan")
"""Quantities that say how long a run took; a load is stored when it is over."""


def _scalar(value: Any) -> Cell:
    """Make a flattened value fit a table cell."""
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _moment(time_s: float) -> str:
    """Print a time as "2026-11-21 14:35" in UTC."""
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def _duration(record: RunRecord) -> str:
    """Print how long a run took; a dash while it has no end."""
    # What is measured counts every part of a run that was resumed, and of one stored at its end.
    whole = [item.value for item in record.measurements if item.quantity in _SPANS]
    if not whole and record.finished_s is None:
        return "–"
    took = record.finished_s - record.started_s if record.finished_s is not None else 0.0
    return pretty_duration(max(took, *whole, 0.0))


def _machine(record: RunRecord) -> str:
    """Name a run's machine in one phrase."""
    machine = record.machine
    memory = pretty(machine.get("memory_bytes", 0), "byte")
    return (
        f"{machine.get('processor', 'unknown processor')}, {machine.get('cores', '?')} cores, "
        f"{memory}"
    )


def list_report(records: Sequence[RunRecord], place: str) -> Report:
    """Report many runs, one line each.

    Args:
        records: newest first.
        place: where the store lies.

    Returns:
        The report.
    """
    columns = [
        Column("Run"),
        Column("Kind"),
        Column("Name"),
        Column("Status"),
        Column("Started", "UTC"),
        Column("Took", align="right"),
    ]
    rows: list[list[Cell]] = [
        [
            record.id,
            record.kind,
            record.name,
            record.status,
            _moment(record.started_s),
            _duration(record),
            len(record.measurements),
        ]
        for record in records
    ]
    table = Table([*columns, Column("Measured")], rows)
    block: Block = table if rows else Text("No runs yet. `steelyard quickstart` makes the first.")
    return Report("Runs", place, [Section("", [block])])


def _quantities(record: RunRecord) -> Table:
    """List what was measured and forecast, one quantity per row."""
    measured = {item.quantity: item for item in record.measurements}
    forecast = {item.quantity: item for item in record.forecasts}
    rows: list[list[Cell]] = []
    for name in dict.fromkeys([*forecast, *measured]):
        unit = QUANTITIES[name].unit
        said = forecast.get(name)
        found = measured.get(name)
        interval = value = None
        if said:
            interval, value = quantity_words(said.low, said.high, unit, said.value)
        rows.append(
            [
                name,
                value,
                interval,
                pretty(found.value, unit) if found else None,
                pretty(found.spread, unit) if found and found.count > 1 else None,
            ]
        )
    right = [
        Column(name, align="right") for name in ("Forecast", "80 % interval", "Measured", "Spread")
    ]
    return Table([Column("Quantity"), *right], rows)


def _curves(frame: "polars.DataFrame") -> list[Block]:
    """Draw the logged columns that are losses."""
    from steelyard.runs.charts import loss_curves

    curves: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    for name in (name for name in frame.columns if "loss" in name):
        part = frame.select("step", name).drop_nulls()
        curves[name] = (part["step"].to_list(), part[name].to_list())
    return [Chart(loss_curves(curves, "Logged losses", x_title="Step"))] if curves else []


def _tables(record: RunRecord) -> list[Section]:
    """Return tables of the recipe, the artifacts and the machine of a run."""
    recipe: list[list[Cell]] = [
        [path, _scalar(value)] for path, value in flatten(record.recipe).items() if path
    ]
    files: list[list[Cell]] = [
        [item.name, str(item.path), pretty(item.num_bytes, "byte"), item.sha256[:16]]
        for item in record.artifacts
    ]
    around: list[list[Cell]] = [
        [name, _scalar(value)] for name, value in (record.machine | record.versions).items()
    ]
    field, value = Column("Field"), Column("Value", align="left")
    heads = [Column("Name"), Column("Path"), Column("Size", align="right"), Column("SHA-256")]
    sections = [
        ("Recipe", Table([field, value], recipe)),
        ("Artifacts", Table(heads, files)),
        ("Machine and versions", Table([field, value], around)),
    ]
    return [Section(title, [table]) for title, table in sections if table.rows]


def run_report(record: RunRecord, checks: list[Check], frame: "polars.DataFrame") -> Report:
    """Report one run in full.

    Args:
        record: the run.
        checks: forecasts of the run that were measured.
        frame: logged columns of the run.

    Returns:
        The report.
    """
    facts = [
        ("Status", record.status, ""),
        ("Took", _duration(record), ""),
        ("Seed", str(record.seed), ""),
    ]
    blocks: list[Block] = [Facts([*facts, ("Logged rows", f"{frame.height:,}", "")])]
    if record.forecasts or record.measurements:
        blocks.append(_quantities(record))
    sections = [Section("", [*blocks, *_curves(frame)])]
    if checks:
        sections.append(Section("Forecast against measured", [Checks(checks)]))
    title = f"{record.name or record.kind} · {record.id}"
    return Report(
        title,
        f"{record.kind}, started {_moment(record.started_s)} UTC, {_machine(record)}",
        sections + _tables(record),
    )


def check_report(record: RunRecord, checks: list[Check]) -> Report:
    """Report how well a run's forecasts did.

    Args:
        record: the run.
        checks: forecasts of the run that were measured.

    Returns:
        The report.
    """
    from steelyard.runs.charts import predicted_measured

    lonely = sorted(
        {item.quantity for item in record.forecasts} - {item.forecast.quantity for item in checks}
    )
    blocks: list[Block] = (
        [Checks(checks), Chart(predicted_measured(checks))]
        if checks
        else [Text("No quantity of this run has both.")]
    )
    if lonely:
        blocks.append(Text(f"Forecast but not measured: {', '.join(lonely)}."))
    return Report(
        f"Check of {record.name or record.kind} · {record.id}",
        _machine(record),
        [Section("Forecast against measured", blocks)],
    )


def _differences(parts: Sequence[Mapping[str, Any]], heads: list[Column]) -> Table:
    """List the fields whose values differ between runs."""
    flat = [flatten(dict(part)) for part in parts]
    paths = dict.fromkeys(path for part in flat for path in part if path)
    rows = [[path, *(_scalar(part.get(path)) for part in flat)] for path in paths]
    # By their text, because 1, 1.0 and True are equal and still different settings.
    return Table(heads, [row for row in rows if len({repr(cell) for cell in row[1:]}) > 1])


def compare_report(records: Sequence[RunRecord]) -> Report:
    """Put runs side by side.

    Measured quantities, and where their recipes, seeds, versions and machines differ.

    Args:
        records: two or more; ratios are to the first.

    Returns:
        The report.
    """
    measured = [{item.quantity: item for item in record.measurements} for record in records]
    rows: list[list[Cell]] = []
    for name in dict.fromkeys(name for part in measured for name in part):
        values = [part[name].value if name in part else None for part in measured]
        row: list[Cell] = [
            name,
            *(None if value is None else pretty(value, QUANTITIES[name].unit) for value in values),
        ]
        first = values[0]
        ratios = [None if value is None or not first else value / first for value in values[1:]]
        rows.append([*row, *(None if ratio is None else f"{ratio:.3g}×" for ratio in ratios)])
    names = [record.id[:8] for record in records]
    heads = [Column("Quantity"), *(Column(name, align="right") for name in names)]
    heads += [
        Column(f"{name} to first" if len(names) > 2 else "Ratio", align="right")
        for name in names[1:]
    ]
    sections = [
        Section(
            "Measured",
            [Table(heads, rows) if rows else Text("None of these runs measured anything.")],
        )
    ]
    parts = [
        {
            "seed": item.seed,
            "recipe": item.recipe,
            "versions": item.versions,
            "machine": item.machine,
        }
        for item in records
    ]
    table = _differences(parts, [Column("Field"), *(Column(name, align="left") for name in names)])
    same = Text("Same recipe, seed, versions and machine.")
    return Report(
        "Runs compared",
        " · ".join(record.name or record.id for record in records),
        [*sections, Section("What differs", [table if table.rows else same])],
    )


def ledger_report(rows: Sequence["LedgerRow"], place: str) -> Report:
    """Report how well each forecaster has done.

    Args:
        rows: what `Ledger.summary` returned.
        place: where the store lies.

    Returns:
        The report.
    """
    heads = [
        Column("Forecaster"),
        Column("Quantity"),
        Column("Checks"),
        Column("Bias", align="right"),
    ]
    heads += [
        Column("Median error", align="right"),
        Column("Inside the 80 % interval", align="right"),
    ]
    cells: list[list[Cell]] = [
        [
            row.forecaster,
            row.quantity,
            row.count,
            f"{100 * row.bias:+.1f} %",
            f"{100 * row.median_error:.1f} %",
            f"{100 * row.coverage:.0f} %",
        ]
        for row in rows
    ]
    note = (
        "Bias is the mean of (forecast − measured) / measured: above 0 it forecasts too much. "
        "Honest 80 % intervals hold about 80 % of what is measured."
    )
    return Report(
        "Ledger",
        place,
        [Section("", [Table(heads, cells, note) if cells else Text("Nothing was checked yet.")])],
    )
