"""`steelyard sim power`: a row of servers on one power budget under each policy."""

from pathlib import Path
from typing import Any

from steelyard.cli.flags import flags
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_report
from steelyard.cli.sim.row_page import page, values
from steelyard.cli.sim.row_trace import requests_of
from steelyard.config import load
from steelyard.errors import ConfigError
from steelyard.operate.power import POLICIES, RowAnswer, compare_policies
from steelyard.sim.power import RowScenario

__all__ = ["power"]

_Flags = flags(RowScenario)


def power(
    recipe: Path | None = None,
    *,
    policy: str = "all",
    t1: float = 0.80,
    t2: float = 0.89,
    trace: Path | None = None,
    high_share: float = 0.5,
    json: Switch = False,
    report: Path | None = None,
    chart: Path | None = None,
    options: _Flags | None = None,  # pyright: ignore[reportInvalidTypeForm]
) -> None:
    """Replay a row of servers on one power budget: caps, brakes, and what requests wait.

    Example: steelyard sim power --added 12 --days 7 --report row.html

    Args:
        recipe: TOML file with the options of the row, in their place.
        policy: polca, one-threshold, all-cap, no-cap, oracle, or all of them.
        t1: first threshold of polca, over the budget.
        t2: its second one, and the only one of the policies of one threshold.
        trace: file of requests, in any format of serve bench; repeated for the time of the row. In
            place of the published mix by day and night.
        high_share: share of the trace's requests that are of high priority, drawn.
        json: print figures as JSON.
        report: HTML file for the page with the picture of the highest day.
        chart: file for that picture alone, .html, .svg, .png or .json.
        options: the row, its requests and its devices.
    """
    if recipe is not None and options is not None:
        raise ConfigError(f"options are part of the recipe {recipe}", hint="change them there")
    scenario = load(recipe, RowScenario) if recipe else options or RowScenario()
    requests = None if trace is None else requests_of(trace, scenario, high_share)[0]
    answer = compare_policies(scenario, _names(policy), t1=t1, t2=t2, requests=requests)
    if chart is not None:
        from steelyard.runs.save import save_chart

        save_chart(_day(answer), chart)
    drawn = _day(answer) if report is not None else None
    print_report(page(answer, drawn), json=json, html=report, values=values(answer))
    if not json:
        say_next("plan", "power", "--servers", scenario.servers, "--load", scenario.load)


def _names(policy: str) -> tuple[str, ...]:
    """Return the policies that are asked for."""
    if policy == "all":
        return POLICIES
    known = {name.replace(" ", "-"): name for name in POLICIES}
    if policy not in known:
        raise ConfigError(
            f"--policy is {policy!r}, but must be one of {', '.join(known)} or all",
            hint="such as --policy polca",
        )
    return (known[policy],)


def _day(answer: RowAnswer) -> dict[str, Any]:
    """Draw the day on which the row would have drawn most, under the first policy."""
    from steelyard.operate.power.pictures import highest_day, row_day

    first = next(iter(answer.replays.values()))
    t1, t2 = answer.thresholds
    return row_day(
        first, day=highest_day(answer.free), thresholds={"T1": t1, "T2": t2}, free=answer.free
    )
