"""`steelyard operate autoscale`: every scaler on one demand, in one table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steelyard.cli.flags import flags
from steelyard.cli.operate.autoscale.demand import demand_of, load_recipe
from steelyard.cli.output import Switch, print_report
from steelyard.config import to_plain
from steelyard.errors import ConfigError
from steelyard.operate.autoscale.book import checked_steps
from steelyard.operate.autoscale.config import AutoscaleConfig
from steelyard.operate.autoscale.demand import Demand
from steelyard.operate.autoscale.study import AutoscaleStudy, run_study
from steelyard.operate.forecast.bookkeeping import enter, held_by_forecaster
from steelyard.runs.report import Cell, Chart, Column, Report, Section, Table, Text
from steelyard.units import pretty_duration

__all__ = ["replay_demand"]

_Flags = flags(AutoscaleConfig)
Held = Mapping[str, tuple[int, float]]
"""Checked steps of each forecaster, and the share of them whose 80 % interval held."""
_RANKS = (0, 0, 2, 0, 1, 1)
"""Ranks of the table's figures: those of the highest go first where a screen is narrow."""


def replay_demand(
    demand: Path | None = None,
    *,
    shadow: str = "",
    column: str = "",
    store: str = "",
    no_keep: Switch = False,
    json: Switch = False,
    report: Path | None = None,
    options: _Flags | None = None,  # pyright: ignore[reportInvalidTypeForm]
) -> None:
    """Replay a demand with every scaler: instance-hours, misses, thrash, dollars and regret.

    Each forecast that a scaler decided on is checked against the demand that came, and entered in
    the ledger; one of a generated demand is only shown.

    Example: steelyard operate autoscale demand.csv --startup '3 min' --report autoscale.html

    Args:
        demand: file of the demand (CSV, Parquet, a Prometheus answer), or a recipe in TOML.
        shadow: address of a Prometheus range query, or a file with its answer, in place of a
            demand: what each scaler would have cost and missed in the later part of it.
        column: id of the series that is the demand, where there are several.
        store: folder of the run store; the user's own when left out.
        no_keep: enter nothing in the ledger.
        json: print figures as JSON.
        report: HTML file for the page with pictures.
        options: the service, its promise and the replay.
    """
    found, config = _asked(demand, shadow, column, options)
    study = run_study(found.load, config, step_s=found.step_s)
    said = study.said(start_s=found.start_s, series=found.source)
    steps = checked_steps(said, found.load, start_s=found.start_s, source=found.source)
    # The ledger holds measurements; a demand of our own making is none.
    if found.is_measured and not no_keep:
        from steelyard.runs.store import RunStore

        enter(RunStore(store or None), steps)
    held = held_by_forecaster(steps)
    values = _values(study, found, held)
    print_report(_page(study, found, held), json=json, html=report, values=values)


def _asked(
    demand: Path | None, shadow: str, column: str, options: AutoscaleConfig | None
) -> tuple[Demand, AutoscaleConfig]:
    """Return the demand and the options, from a file, a server or a recipe."""
    # Neither is nothing to replay, both are two demands.
    if (demand is None) == (not shadow):
        raise ConfigError(
            "give either a demand or --shadow",
            hint="such as demand.csv, recipes/autoscale-demo.toml, or --shadow answer.json",
        )
    # A recipe holds all options, so that it replays the same wherever it lies.
    if demand is not None and demand.suffix == ".toml":
        if options is not None or column:
            raise ConfigError(f"options are part of the recipe {demand}", hint="change them there")
        return load_recipe(demand)
    source = shadow or str(demand)
    return demand_of(source, column), options or AutoscaleConfig()


def _values(study: AutoscaleStudy, found: Demand, held: Held) -> dict[str, Any]:
    """Return all figures, for programs."""
    return {
        "source": found.source,
        "steps": len(study.demand),
        "step_s": study.step_s,
        "history_steps": study.history_steps,
        "lead_steps": study.lead_steps,
        "service": to_plain(study.service),
        "forecaster": study.forecaster,
        "forecast_scores": dict(study.scores),
        "forecasts": [
            {"forecaster": name, "steps": steps, "held": share}
            for name, (steps, share) in held.items()
        ],
        "scalers": [
            run.report.row() | {"num_fallbacks": run.num_fallbacks} for run in study.runs.values()
        ],
        "provenance": "simulated",
    }


def _page(study: AutoscaleStudy, found: Demand, held: Held) -> Report:
    """Make the page: the table, how the forecaster was chosen, and pictures."""
    from steelyard.operate.autoscale.pictures import replicas_over_demand

    lasts = pretty_duration(len(study.demand) * study.step_s)
    chart = Chart(
        replicas_over_demand(study, ("BayesianScaler", "ReactiveHPA")),
        caption="of a stretch with several steps the worst is drawn",
    )
    return Report(
        "Replicas for a demand",
        f"{found.source}, the last {lasts}; simulated",
        [
            Section("Scalers", [_table(study), Text(_sizing(study))]),
            Section("Forecaster", [_scores(study), _held(study, held)]),
            Section("Replicas over demand", [chart]),
        ],
    )


def _sizing(study: AutoscaleStudy) -> str:
    """Say what a replica carries and what is promised."""
    service = study.service
    start = pretty_duration(service.startup.quantile_s(0.5))
    if service.goal == "queue":
        promise = f"no work waits for longer than {pretty_duration(service.max_wait_s)}"
    else:
        promise = f"replicas are used to at most {service.target_utilization:.0%}"
    return (
        f"A replica carries {service.capacity:.4g} at full use and starts within {start} "
        f"(median). Promise: {promise}, but for {service.allowed:.1%} of the time. Regret is "
        f"dollars and missing replicas at {service.miss_ratio:.0f} times their price."
    )


def _table(study: AutoscaleStudy) -> Table:
    """List every scaler."""
    rows: list[list[Cell]] = []
    for run in study.runs.values():
        item = run.report
        rows.append(
            [
                item.name,
                f"{item.outcome.details['instance_hours']:,.0f}",
                f"{item.outcome.violation_rate:.2%}",
                item.thrash,
                f"{item.outcome.cost:,.2f}",
                f"{item.oracle_regret:,.2f}",
                f"{item.fixed_regret:,.2f}",
            ]
        )
    heads = ("instance-hours", "missed", "thrash", "dollars", "regret to oracle", "to best fixed")
    return Table(
        [
            Column("scaler"),
            *(
                Column(item, align="right", rank=rank)
                for item, rank in zip(heads, _RANKS, strict=True)
            ),
        ],
        rows,
        caption="missed: share of the time; thrash: changes that were taken back within half an "
        "hour; a regret below 0 beat the best fixed number",
    )


def _scores(study: AutoscaleStudy) -> Table:
    """List the forecasters and what they scored on the history."""
    rows: list[list[Cell]] = [
        [name, f"{score:.4f}", "used" if name == study.forecaster else ""]
        for name, score in sorted(study.scores.items(), key=lambda item: item[1])
    ]
    return Table(
        [Column("forecaster"), Column("error", align="right"), Column("")],
        rows,
        caption="mean quantile loss over the mean load, on the end of the history",
    )


def _held(study: AutoscaleStudy, held: Held) -> Table:
    """List who made the forecasts that were decided on, and how often they held."""
    late = f"; {study.num_fallbacks} were late or failed and were replaced"
    return Table(
        [
            Column("decided on forecasts of"),
            Column("steps that came", align="right"),
            Column("80 % interval held", align="right"),
        ],
        [[name, f"{steps:,}", f"{share:.1%}"] for name, (steps, share) in held.items()],
        caption="each step of each forecast beside the demand that came"
        + (late if study.num_fallbacks else ""),
    )
