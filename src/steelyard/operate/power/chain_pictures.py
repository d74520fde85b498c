"""A day from requests to carbon in one picture: servers, the row's power, and carbon by kind."""

import math
from typing import Any

import altair as alt
import numpy as np

from steelyard.operate.power.chain import AnswerChain, ChainRun
from steelyard.runs import layers
from steelyard.runs.layers import PLOT_WIDTH, finish
from steelyard.runs.theme import SERIES
from steelyard.sim.datacenter import STEP_S

__all__ = ["chain_day"]

_DAY_S, _SERVER_STEP_S = 86_400.0, 300.0


def chain_day(chain: AnswerChain) -> dict[str, Any]:
    """Draw the first day under each scaler, and the carbon of the last by kind of answer.

    Args:
        chain: requests, replicas, row, site and grid.

    Returns:
        Vega-Lite spec.
    """
    runs = chain.runs
    hours = min(chain.scenario.days, 1.0) * 24
    servers = {name: _asked(run, hours) for name, run in runs.items()}
    quarters = round(hours * 3600 / STEP_S)
    power = {
        name: run.meters.spent_j.sum(axis=1)[:quarters] / STEP_S / 1e3 for name, run in runs.items()
    }
    shown = runs.get("forecast") or list(runs.values())[-1]
    by_kind = {item.kind: item.carbon_g_by_hour[: math.ceil(hours)] / 1e3 for item in shown.kinds}
    panels = [
        _lines(servers, hours, "Servers that are on or starting", "Servers"),
        _lines(power, hours, "Power of the row", "kW"),
        _bars(by_kind, hours, f"Carbon of answers under {shown.name!r}, by hour", "kg"),
    ]
    drawn = alt.vconcat(*panels, spacing=14)
    return finish(drawn.resolve_scale(color="independent", x="shared"))


def _asked(run: ChainRun, hours: float) -> np.ndarray:
    """Return the servers that were asked for at the middle of each step."""
    row = run.scaled.plant.row
    times = np.arange(_SERVER_STEP_S / 2, hours * 3600, _SERVER_STEP_S)
    total = np.zeros(len(times))
    counts = {"high.servers": row.high_servers, "low.servers": row.low_servers}
    for target, first in counts.items():
        own = [item for item in run.scaled.report.landed if item.command.target == target]
        landed = np.array([-1.0, *(item.time_s for item in own)])
        values = np.array([float(first), *(item.command.value for item in own)])
        total += values[np.searchsorted(landed, times, side="right") - 1]
    return total


def _hours(hours: float) -> Any:
    """Return the axis of hours."""
    return alt.X(
        "hour:Q",
        title="Hour of the day",
        scale=alt.Scale(domain=[0, hours], nice=False),
        axis=alt.Axis(values=list(range(0, 25, 3)), grid=False),
    )


def _colours(names: list[str], first: int = 0) -> Any:
    """Return colours of named series."""
    shades = [SERIES[(first + place) % len(SERIES)][0] for place in range(len(names))]
    scale = alt.Scale(domain=names, range=shades)
    return alt.Color("name:N", title=None, sort=names, scale=scale)


def _lines(series: dict[str, np.ndarray], hours: float, heading: str, unit: str) -> Any:
    """Draw a line per scaler."""
    rows = [
        {"hour": place * hours / len(values), "value": float(value), "name": name}
        for name, values in series.items()
        for place, value in enumerate(values)
    ]
    return (
        alt.Chart(layers.values(rows))
        .mark_line(interpolate="step-after", strokeWidth=1.4, opacity=0.9)
        .encode(x=_hours(hours), y=alt.Y("value:Q", title=unit), color=_colours(list(series)))
        .properties(width=PLOT_WIDTH, height=130, title=alt.TitleParams(heading, frame="group"))
    )


def _bars(series: dict[str, np.ndarray], hours: float, heading: str, unit: str) -> Any:
    """Draw hours as stacked bars, a colour per kind."""
    rows, below = [], np.zeros(max(map(len, series.values())))
    for name, values in series.items():
        for place, value in enumerate(values):
            rows.append(
                {
                    "hour": place + 0.06,
                    "end": min(place + 0.94, hours),
                    "low": float(below[place]),
                    "high": float(below[place] + value),
                    "name": name,
                }
            )
        below[: len(values)] += values
    return (
        alt.Chart(layers.values(rows))
        .mark_rect()
        .encode(
            x=_hours(hours),
            x2="end:Q",
            y=alt.Y("low:Q", title=unit),
            y2="high:Q",
            color=_colours(list(series), 4),
        )
        .properties(width=PLOT_WIDTH, height=110, title=alt.TitleParams(heading, frame="group"))
    )
