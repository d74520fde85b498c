"""`steelyard operate datacenter`: a site under each controller, and what delaying work changes."""

from pathlib import Path
from typing import Any

from steelyard.cli.flags import flags
from steelyard.cli.output import Switch, print_report
from steelyard.config import load, to_plain
from steelyard.errors import ConfigError
from steelyard.operate.site import SiteAccount, SiteAnswer, SiteRecipe, compare_controllers
from steelyard.runs.report import Cell, Chart, Column, Report, Section, Table, Text

__all__ = ["datacenter"]

_Flags = flags(SiteRecipe)
_HEADS = ("MWh", "PUE", "water m3", "carbon kg", "USD", "too hot", "regret kg", "to best fixed")
_RANKS = (1, 0, 2, 0, 0, 0, 0, 1)
_DRAWN = ("plan, both", "plan, battery", "plan, work waits", "plan")
_CHANGES = {
    "it_kwh": "racks, kWh",
    "crac_kwh": "room fans, kWh",
    "chiller_kwh": "chiller, kWh",
    "tower_kwh": "tower, kWh",
    "pumps_kwh": "pumps, kWh",
    "grid_kwh": "grid, kWh",
    "water_l": "water, l",
    "carbon_kg": "carbon, kg",
    "usd": "USD",
    "violations": "steps too hot",
}


def datacenter(
    recipe: Path | None = None,
    *,
    json: Switch = False,
    report: Path | None = None,
    chart: Path | None = None,
    options: _Flags | None = None,  # pyright: ignore[reportInvalidTypeForm]
) -> None:
    """Run a site under every controller: energy, PUE, water, carbon, money, violations, regret.

    Example: steelyard operate datacenter --datacenter free-cooled-1mw --start-day 190

    Args:
        recipe: TOML file with the options, in their place.
        json: print figures as JSON, by hour too.
        report: HTML file for the page with the picture of a day.
        chart: file for that picture alone, .html, .svg, .png or .json.
        options: the site, its load, the time and the controllers.
    """
    if recipe is not None and options is not None:
        raise ConfigError(f"options are part of the recipe {recipe}", hint="change them there")
    asked = load(recipe, SiteRecipe) if recipe else options or SiteRecipe()
    answer = compare_controllers(asked, _trained(asked) if asked.ppo_steps else None)
    if chart is not None:
        from steelyard.runs.save import save_chart

        save_chart(_day(answer, asked), chart)
    page = _page(answer, asked, with_chart=report is not None)
    print_report(page, json=json, html=report, values=_values(answer, asked))


def _trained(asked: SiteRecipe) -> Any:
    """Return what trains the learned controller; torch is imported only for that."""
    from steelyard.operate.ppo import trained_for

    return trained_for(asked.ppo_steps, asked.seed)


def _day(answer: SiteAnswer, asked: SiteRecipe) -> dict[str, Any]:
    """Draw the first day: the controllers that do most, and the fixed setpoint."""
    from steelyard.operate.site.pictures import site_day

    most = next(name for name in _DRAWN if name in answer.runs)
    runs = {name: answer.runs[name] for name in (most, "trim and respond", next(iter(answer.runs)))}
    return site_day(runs, answer.carbon_g_per_kwh, first_day=asked.start_day)


def _page(answer: SiteAnswer, asked: SiteRecipe, *, with_chart: bool) -> Report:
    """Make the page: the table, what a delay changes, and the picture."""
    sections = [Section("Controllers", [_table(answer), Text(_reading())])]
    if answer.delayed:
        sections.append(Section(_delay_title(asked), [_delay_table(answer)]))
    if with_chart:
        sections.append(Section("A day", [Chart(_day(answer, asked))]))
    return Report(
        f"Data center {asked.datacenter}",
        f"{asked.days} days from day {asked.start_day}; {answer.source}; simulated",
        sections,
    )


def _reading() -> str:
    """Say how the table is read."""
    return (
        "Carbon is that of the energy bought, hour by hour. Regret is carbon above that of the "
        "best setpoints known in advance, and above the best fixed one. Too hot are steps of 15 "
        "minutes with an inlet above its limit, or with overdue work."
    )


def _table(answer: SiteAnswer) -> Table:
    """List every controller."""
    rows: list[list[Cell]] = []
    for item in answer.reports:
        found = item.outcome.details
        rows.append(
            [
                item.name,
                f"{found['grid_kwh'] / 1e3:,.2f}",
                f"{found['pue']:.3f}",
                f"{found['water_l'] / 1e3:,.1f}",
                f"{found['carbon_kg']:,.1f}",
                f"{found['usd']:,.2f}",
                f"{item.outcome.violated:,.0f}",
                f"{(item.oracle_regret or 0.0) / 1e3:+,.1f}",
                f"{(item.fixed_regret or 0.0) / 1e3:+,.1f}",
            ]
        )
    heads = [
        Column(words, align="right", rank=rank) for words, rank in zip(_HEADS, _RANKS, strict=True)
    ]
    return Table([Column("controller"), *heads], rows)


def _delay_title(asked: SiteRecipe) -> str:
    """Name the question."""
    return f"If {asked.flexible_share:.0%} of the work ran {asked.delay_h:g} h later"


def _delay_table(answer: SiteAnswer) -> Table:
    """List each level of the account at once, delayed, and the difference."""
    before, after = (answer.delayed[name].totals() for name in ("at once", "delayed"))
    rows: list[list[Cell]] = [
        [
            words,
            f"{before[name]:,.1f}",
            f"{after[name]:,.1f}",
            f"{after[name] - before[name]:+,.1f}",
        ]
        for name, words in _CHANGES.items()
    ]
    heads = [Column(words, align="right") for words in ("at once", "delayed", "change")]
    note = "the same work over the same hours; racks, cooling and battery add up to the grid"
    return Table([Column(""), *heads], rows, caption=note)


def _values(answer: SiteAnswer, asked: SiteRecipe) -> dict[str, Any]:
    """Return all figures, for programs."""
    return {
        "recipe": to_plain(asked),
        "source": answer.source,
        "controllers": [item.row() for item in answer.reports],
        "hours": {name: _hours(account) for name, account in answer.accounts.items()},
        "delay": {
            name: {"total": account.totals(), "hours": _hours(account)}
            for name, account in answer.delayed.items()
        },
        "provenance": "simulated",
    }


def _hours(account: SiteAccount) -> dict[str, list[float]]:
    """Return an account by hour as plain numbers."""
    return {name: getattr(account, name).tolist() for name in account.totals()}
