"""A day of a row in one picture: its power with the thresholds, and the clocks of its servers."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from steelyard.runs import layers
from steelyard.runs.layers import PLOT_WIDTH, finish
from steelyard.runs.theme import LIGHT, SERIES
from steelyard.sim.control import Landing
from steelyard.sim.power import BRAKE, CLOCKS, RowReplay

__all__ = ["highest_day", "row_day"]

_DAY_S, _STEP_S, _CLOCK_STEP_S = 86_400.0, 60.0, 600.0
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
    landed = replay.report.landed
    panels = alt.vconcat(_power(series, thresholds), _clocks(landed, day), spacing=14)
    heading = alt.TitleParams(
        f"Day {day + 1} of a row under {replay.report.name!r}",
        subtitle="power over the budget, highest of each minute",
    )
    return finish(panels.resolve_scale(color="independent").properties(title=heading))


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


def _power(series: Mapping[str, np.ndarray], thresholds: Mapping[str, float]) -> Any:
    """Draw lines of power, and thresholds with their names beside the right end."""
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
    marks = [{"value": level, "name": words, "hour": 24.0} for words, level in thresholds.items()]
    marks.append({"value": 1.0, "name": "budget", "hour": 24.0})
    base = alt.Chart(layers.values(marks))
    rules = base.mark_rule(strokeDash=[4, 3], color=LIGHT["bad"]).encode(y="value:Q")
    words = base.mark_text(align="left", dx=5, color=LIGHT["bad"], fontSize=11).encode(
        x=_hours(), y="value:Q", text="name:N"
    )
    return alt.layer(lines, rules, words).properties(width=PLOT_WIDTH, height=230)


def _mean_clocks(landings: Sequence[Landing], target: str, start_s: float) -> np.ndarray:
    """Return the mean clock of each ten minutes of a day: single steps would blacken it."""
    own = [(item.time_s, item.command.value) for item in landings if _is(item, target)]
    times = np.array([0.0, *(time_s for time_s, _ in own)])
    values = np.array([1.0, *(value for _, value in own)])
    edges = start_s + np.arange(0.0, _DAY_S + 1, _CLOCK_STEP_S)
    points = np.unique(np.concatenate([edges, times[(times > edges[0]) & (times < edges[-1])]]))
    held = values[np.searchsorted(times, points[:-1], side="right") - 1]
    area = np.concatenate([[0.0], np.cumsum(held * np.diff(points))])
    return np.diff(np.interp(edges, points, area)) / _CLOCK_STEP_S


def _is(item: Landing, target: str) -> bool:
    """Whether a landing set a target."""
    return item.command.target == target


def _clocks(landings: Sequence[Landing], day: int) -> Any:
    """Draw mean clocks, and brakes as points."""
    start_s = day * _DAY_S
    rows = [
        {"hour": place * _CLOCK_STEP_S / 3600, "value": float(value), "name": name}
        for target, name in zip(CLOCKS, _PRIORITIES, strict=True)
        for place, value in enumerate(_mean_clocks(landings, target, start_s))
    ]
    low = min(row["value"] for row in rows) - 0.03
    y = alt.Y(
        "value:Q",
        title="Mean clock",
        scale=alt.Scale(domain=[low, 1.02], nice=False),
        axis=alt.Axis(format="%"),
    )
    lines = (
        alt.Chart(layers.values(rows))
        .mark_line(interpolate="step-after", strokeWidth=1.8)
        .encode(x=_hours(), y=y, color=_colours(list(_PRIORITIES), 2))
    )
    brakes = [
        {"hour": (item.time_s - start_s) / 3600, "value": low + 0.01}
        for item in landings
        if _is(item, BRAKE) and item.command.value and 0 <= item.time_s - start_s < _DAY_S
    ]
    marks = (
        alt.Chart(layers.values(brakes or rows[:1]))
        .mark_point(color=LIGHT["bad"], shape="triangle-down", opacity=1.0 if brakes else 0.0)
        .encode(x=_hours(), y=y)
    )
    told = alt.TitleParams(
        "Clock over the highest, mean of ten minutes", subtitle="triangles: brakes", frame="group"
    )
    return alt.layer(lines, marks).properties(width=PLOT_WIDTH, height=120, title=told)
