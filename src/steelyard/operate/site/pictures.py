"""A day of a site in one picture: power by part, inlet, grid carbon, and the battery."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from steelyard.runs import layers
from steelyard.runs.layers import PLOT_WIDTH, finish
from steelyard.runs.theme import LIGHT, SERIES
from steelyard.sim.datacenter import SiteRun

__all__ = ["site_day"]

_POWERS = {
    "it_w": "racks",
    "chiller_w": "chiller",
    "crac_w": "room fans",
    "tower_w": "tower",
    "pumps_w": "pumps",
}
_STEPS_PER_DAY, _STEPS_PER_HOUR = 96, 4


def site_day(
    runs: dict[str, SiteRun], carbon_g_per_kwh: np.ndarray, *, first_day: int = 0
) -> dict[str, Any]:
    """Draw the first day of runs, power by part for the first of them.

    Args:
        runs: two runs or more to compare, by name; the first has its powers drawn.
        carbon_g_per_kwh: intensity of the grid by step.
        first_day: day of the year, for the title.

    Returns:
        Vega-Lite spec.
    """
    name = next(iter(runs))
    first = runs[name]
    steps = min(_STEPS_PER_DAY, first.rows.shape[0])
    hours = np.arange(steps) / _STEPS_PER_HOUR
    # A part that never runs, such as a tower that stands still, would only lengthen the legend.
    shown = {
        words: first.column(column)[:steps, 0] / 1e3
        for column, words in _POWERS.items()
        if first.column(column)[:steps, 0].max() > 0
    }
    inlets = {key: run.column("inlet_c")[:steps, 0] for key, run in runs.items()}
    batteries = {
        key: run.column("stored_j")[:steps, 0] / 3.6e9
        for key, run in runs.items()
        if run.column("stored_j").max() > 0
    }
    limit = first.inlet_limit_c
    panels = [
        _stack(hours, shown, f"Power of {name!r}, kW", f"Day {first_day} of the year"),
        _lines(hours, inlets, "Warmest inlet, °C", rule=limit),
        _lines(hours, {"grid": carbon_g_per_kwh[:steps]}, "Grid carbon, g/kWh"),
    ]
    if batteries:
        panels.append(_lines(hours, batteries, "In the battery, MWh"))
    return finish(alt.vconcat(*panels, spacing=14).resolve_scale(color="independent", x="shared"))


def _table(hours: np.ndarray, series: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return rows of hour, value and name."""
    return [
        {"hour": float(hour), "value": float(value), "name": name}
        for name, values in series.items()
        for hour, value in zip(hours, values, strict=True)
    ]


def _hours() -> Any:
    """Return the axis of local hours."""
    return alt.X(
        "hour:Q",
        title="Local hour",
        scale=alt.Scale(domain=[0, 24], nice=False),
        axis=alt.Axis(values=list(range(0, 25, 3)), grid=False),
    )


def _colours(names: Sequence[str]) -> Any:
    """Return the colours of named series, in the order of the names."""
    known = [SERIES[place % len(SERIES)][0] for place in range(len(names))]
    return alt.Color(
        "name:N", title=None, sort=list(names), scale=alt.Scale(domain=list(names), range=known)
    )


def _stack(hours: np.ndarray, series: dict[str, np.ndarray], title: str, heading: str) -> Any:
    """Draw parts on top of one another, the largest lowest."""
    rows = _table(hours, series)
    order = {name: place for place, name in enumerate(series)}
    for row in rows:
        row["order"] = order[row["name"]]
    return (
        alt.Chart(layers.values(rows))
        .mark_area(interpolate="step-after", opacity=0.85)
        .encode(
            x=_hours(),
            y=alt.Y("value:Q", title="kW", stack="zero"),
            color=_colours(list(series)),
            order="order:Q",
        )
        .properties(
            width=PLOT_WIDTH,
            height=150,
            title=alt.TitleParams(title, subtitle=heading, frame="group"),
        )
    )


def _lines(
    hours: np.ndarray, series: dict[str, np.ndarray], title: str, rule: float | None = None
) -> Any:
    """Draw lines, with a limit where there is one."""
    base = alt.Chart(layers.values(_table(hours, series)))
    lines = base.mark_line(interpolate="step-after", strokeWidth=1.6).encode(
        x=_hours(),
        y=alt.Y("value:Q", title=title.rpartition(", ")[2], scale=alt.Scale(zero=False)),
        color=_colours(list(series)) if len(series) > 1 else alt.value(SERIES[0][0]),
    )
    drawn = [lines]
    if rule is not None:
        limit = alt.Chart(layers.values([{"limit": rule}]))
        drawn.append(limit.mark_rule(strokeDash=[4, 3], color=LIGHT["bad"]).encode(y="limit:Q"))
    return alt.layer(*drawn).properties(
        width=PLOT_WIDTH, height=95, title=alt.TitleParams(title, frame="group")
    )
