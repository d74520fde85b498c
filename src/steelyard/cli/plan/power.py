"""`steelyard plan power`: how many more servers a row's power budget carries."""

import sys
from dataclasses import replace
from pathlib import Path

from steelyard.cli.flags import flags
from steelyard.cli.output import Switch, print_report
from steelyard.config import to_plain
from steelyard.plan.power import LatencyLimits, OversubscriptionPlan, RowTrial, plan_row
from steelyard.runs.report import Cell, Column, Report, Section, Table, Text
from steelyard.sim.power import RowScenario

__all__ = ["power"]

_Flags = flags(RowScenario)
_Limits = flags(LatencyLimits)
_LONGER = ("high_p50", "high_p99", "low_p50", "low_p99")


def power(
    *,
    seeds: int = 3,
    most_added: float = 0.5,
    margin: float = 0.0,
    training: Switch = False,
    json: Switch = False,
    report: Path | None = None,
    limits: _Limits | None = None,  # pyright: ignore[reportInvalidTypeForm]
    options: _Flags | None = None,  # pyright: ignore[reportInvalidTypeForm]
) -> None:
    """Find how many more servers a row carries with caps, without a brake or slower answers.

    Example: steelyard plan power --servers 40 --days 7 --seeds 3

    Args:
        seeds: trials of each number of servers, each with requests of its own.
        most_added: most servers to add over those planned for.
        margin: share of the budget that the second threshold keeps free besides the rise.
        training: whether the row trains.
        json: print the plan as JSON.
        report: HTML file for the page.
        limits: how much longer than without caps requests may take, as shares.
        options: the row, its requests and its devices; those added are what is asked for.
    """
    scenario = options or RowScenario()
    made = plan_row(
        replace(scenario, added=0),
        limits=limits or LatencyLimits(),
        seeds=range(scenario.seed, scenario.seed + seeds),
        most_added=most_added,
        margin=margin,
        is_training=training,
        told=lambda text: print(text, file=sys.stderr) if sys.stderr.isatty() else None,
    )
    print_report(_page(made, scenario), json=json, html=report, values=_values(made, scenario))


def _page(made: OversubscriptionPlan, scenario: RowScenario) -> Report:
    """Make the page: the answer, how sure it is, and the trials."""
    trials = sorted(made.trials, key=lambda item: (item.added, item.seed))
    heads = ("seed", "brakes", "peak", *(name.replace("_", " ") for name in _LONGER))
    columns = [Column("added"), *(Column(words, align="right") for words in heads)]
    table = Table(columns, [_row(item) for item in trials], caption="latencies against no caps")
    count = sum(item.added == made.added for item in trials)
    words = (
        f"Within the {scenario.clock_latency_s:g} s of a command the power of the planned row "
        f"rises by up to {made.rise:.1%} of the budget, so T2 is {made.t2:.0%} and T1 "
        f"{made.t1:.0%}. What binds: {made.binding}. None of {count} trials of "
        f"{scenario.days:g} days braked; a chance of {made.brake_chance:.0%} of a brake in such a "
        "time would still show that in one of five cases."
    )
    return Report(
        f"{made.added} servers more than {made.servers} ({made.share:+.0%})",
        f"{scenario.days:g} days, load {scenario.load:g}; simulated",
        [Section("Answer", [Text(words)]), Section("Trials", [table])],
    )


def _row(item: RowTrial) -> list[Cell]:
    """List one trial."""
    return [
        f"{item.added}",
        item.seed,
        item.brakes,
        f"{item.peak:.1%}",
        *(f"{item.longer[name]:+.1%}" for name in _LONGER),
    ]


def _values(made: OversubscriptionPlan, scenario: RowScenario) -> dict[str, object]:
    """Return the plan as plain values."""
    plain = to_plain(made) | {"share": made.share, "provenance": "simulated"}
    return plain | {"scenario": to_plain(scenario)}
