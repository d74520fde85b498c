"""A day of a row in one picture: its power with the thresholds, and the clocks of its servers."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np

from steelyard.runs import layers
from steelyard.runs.layers import PLOT_WIDTH, finish
from steelyard.runs.theme import LIGHT, SERIES
from steelyard.sim.control import Landing
from steelyard.sim.power import BRAKE, CLOCKS, RowReplay

__all__ = ["highest_day", "row_day"]

_DAY_S, _STEP_S = 86_400.0, 60.0
_PRIORITIES = ("high priority", "low priority")


def highest_day(replay: RowReplay) -> int:
    """Return the day in which the row drew most, from 0."""
    return int(np.argmax(replay.power_w) * replay.period_s // _DAY_S)


def row_day(
    replay: RowReplay, *, day: int, thresholds: Mapping[str, float], free: RowReplay | None = None
) -> dict[str, Any]:
    """Draw a day: highest power of each minute over the budget, clocks, and brakes.

    Args:
        replay: the row under a policy.
        day: day of the replay, from 0.
        thresholds: levels to draw by name, over the budget.
        free: the same row without caps, drawn behind.

    Returns:
        Vega-Lite spec.
    """
    series = {} if free is None else {"without caps": _minutes(free, day)}
    series |= {"with caps": _minutes(replay, day)}
    power = _power(series, thresholds, replay.report.name, day)
    clocks = _clocks(_landed(replay.report.landed, day))
    return finish(alt.vconcat(power, clocks, spacing=14).resolve_scale(color="independent"))


def _minutes(replay: RowReplay, day: int) -> np.ndarray:
    """Return the highest power of each minute of a day over the budget."""
    first, last = (round(at * _DAY_S / replay.period_s) for at in (day, day + 1))
    values = replay.power_w[first:last] / replay.plant.row.budget_w
    each = max(round(_STEP_S / replay.period_s), 1)
    whole = len(values) // each * each
    return values[:whole].reshape(-1, each).max(axis=1)


def _hours() -> Any:
    """Return the axis of hours."""
    return alt.X(
        "hour:Q",
        title="Hour of the day",
        scale=alt.Scale(domain=[0, 24], nice=False),
        axis=alt.Axis(values=list(range(0, 25, 3)), grid=False),
    )


def _colours(names: list[str], first: int = 0) -> Any:
    """Return colours of named lines."""
    shades = [SERIES[(first + place) % len(SERIES)][0] for place in range(len(names))]
    scale = alt.Scale(domain=names, range=shades)
    return alt.Color("name:N", title=None, sort=names, scale=scale)


def _power(
    series: Mapping[str, np.ndarray], thresholds: Mapping[str, float], name: str, day: int
) -> Any:
    """Draw lines of power, and thresholds with their names at the left."""
    rows = [
        {"hour": minute * _STEP_S / 3600, "value": float(value), "name": key}
        for key, values in series.items()
        for minute, value in enumerate(values)
    ]
    top = max(1.02, *(row["value"] for row in rows))
    bottom = min(row["value"] for row in rows)
    y = alt.Y(
        "value:Q",
        title="Share of the budget",
        scale=alt.Scale(domain=[bottom - 0.02, top + 0.02], nice=False),
        axis=alt.Axis(format="%"),
    )
    # Behind capped power the uncapped one shows what was cut off: it is drawn first.
    lines = (
        alt.Chart(layers.values(rows))
        .mark_line(strokeWidth=1.1, opacity=0.9)
        .encode(x=_hours(), y=y, color=_colours(list(series), 5 if len(series) == 1 else 0))
    )
    marks = [{"value": level, "name": words, "hour": 0.0} for words, level in thresholds.items()]
    marks.append({"value": 1.0, "name": "budget, brake", "hour": 0.0})
    base = alt.Chart(layers.values(marks))
    rules = base.mark_rule(strokeDash=[4, 3], color=LIGHT["bad"]).encode(y="value:Q")
    words = base.mark_text(align="left", dx=4, dy=-6, color=LIGHT["bad"], fontSize=11).encode(
        x=_hours(), y="value:Q", text="name:N"
    )
    heading = alt.TitleParams(
        f"Power of the row under {name!r}",
        subtitle=f"day {day + 1}, highest of each minute",
        frame="group",
    )
    return alt.layer(lines, rules, words).properties(width=PLOT_WIDTH, height=230, title=heading)


def _landed(landings: tuple[Landing, ...], day: int) -> list[dict[str, Any]]:
    """Return the settings of a day as steps, from what was in force at its start."""
    start, end = day * _DAY_S, (day + 1) * _DAY_S
    rows: list[dict[str, Any]] = []
    for target, name in zip(CLOCKS, _PRIORITIES, strict=True):
        own = [(item.time_s, item.command.value) for item in landings if _is(item, target)]
        before = [value for time_s, value in own if time_s < start]
        value = before[-1] if before else 1.0
        steps = [(start, value), *(item for item in own if start <= item[0] < end)]
        steps.append((end, steps[-1][1]))
        rows += [
            {"hour": (time_s - start) / 3600, "value": clock, "name": name}
            for time_s, clock in steps
        ]
    brakes = [item for item in landings if _is(item, BRAKE) and item.command.value]
    return rows + [
        {"hour": (item.time_s - start) / 3600, "value": 0.2, "name": "brake"}
        for item in brakes
        if start <= item.time_s < end
    ]


def _is(item: Landing, target: str) -> bool:
    """Whether a landing set a target."""
    return item.command.target == target


def _clocks(rows: list[dict[str, Any]]) -> Any:
    """Draw clocks as steps, and brakes as points."""
    y = alt.Y(
        "value:Q",
        title="Clock",
        scale=alt.Scale(domain=[0.15, 1.05], nice=False),
        axis=alt.Axis(format="%"),
    )
    steps = [row for row in rows if row["name"] != "brake"]
    lines = (
        alt.Chart(layers.values(steps))
        .mark_line(interpolate="step-after", strokeWidth=1.6)
        .encode(x=_hours(), y=y, color=_colours(list(_PRIORITIES), 2))
    )
    points = [row for row in rows if row["name"] == "brake"]
    brakes = (
        alt.Chart(layers.values(points or steps[:1]))
        .mark_point(color=LIGHT["bad"], shape="triangle-down", opacity=1.0 if points else 0.0)
        .encode(x=_hours(), y=y)
    )
    heading = alt.TitleParams("Clock over the highest; triangles are brakes", frame="group")
    return alt.layer(lines, brakes).properties(width=PLOT_WIDTH, height=95, title=heading)
