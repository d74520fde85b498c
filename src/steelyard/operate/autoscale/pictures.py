"""Replicas over demand, with the moments at which the promise was missed."""

from typing import Any

import altair as alt
import numpy as np

from steelyard.operate.autoscale.replay import ScalerRun
from steelyard.operate.autoscale.study import AutoscaleStudy
from steelyard.runs import layers
from steelyard.runs.layers import PLOT_WIDTH, finish
from steelyard.runs.theme import LIGHT, SERIES

__all__ = ["replicas_over_demand"]

_MOST_POINTS = 400


def replicas_over_demand(study: AutoscaleStudy, names: tuple[str, ...]) -> dict[str, Any]:
    """Draw a panel per scaler: replicas needed as an area, ready ones as a line, misses in red.

    Args:
        study: the replay.
        names: scalers to draw, top to bottom.

    Returns:
        Vega-Lite spec.
    """
    needed = study.demand / study.service.load_per_replica
    top = max(float(needed.max()), *(float(study.runs[name].ready.max()) for name in names))
    panels = [_panel(study, name, needed, top * 1.05) for name in names]
    return finish(alt.vconcat(*panels, spacing=18))


def _panel(study: AutoscaleStudy, name: str, needed: np.ndarray, top: float) -> Any:
    """Draw one scaler."""
    run = study.runs[name]
    rows = _rows(run, needed, study.step_s)
    days = rows[-1]["end"] - rows[0]["start"]
    x = alt.X(
        "start:Q",
        title="Day" if days > 1 else "Part of the day",
        scale=alt.Scale(nice=False),
        axis=alt.Axis(tickCount=8, grid=False),
    )
    y_scale = alt.Scale(domain=[0, top], nice=False)
    base = alt.Chart(layers.values(rows)).encode(x=x)
    area = base.mark_area(interpolate="step-after", opacity=0.25, color=SERIES[0][0]).encode(
        y=alt.Y("needed:Q", title="Replicas", scale=y_scale)
    )
    line = base.mark_line(interpolate="step-after", strokeWidth=1.4, color=SERIES[1][0]).encode(
        y=alt.Y("ready:Q", title="Replicas", scale=y_scale)
    )
    missed = [row for row in rows if row["missed"] > 0]
    marks = (
        alt.Chart(layers.values(missed or rows[:1]))
        .mark_rule(color=LIGHT["bad"], opacity=0.55 if missed else 0.0, strokeWidth=1.6)
        .encode(x=x, y=alt.value(0), y2=alt.value(12))
    )
    outcome = run.report.outcome
    subtitle = (
        f"{outcome.details['instance_hours']:,.0f} instance-hours, "
        f"{outcome.violation_rate:.1%} missed (red)"
    )
    return alt.layer(area, line, marks).properties(
        width=PLOT_WIDTH,
        height=150,
        title=alt.TitleParams(f"{run.report.name}: ready over needed", subtitle=subtitle),
    )


def _rows(run: ScalerRun, needed: np.ndarray, step_s: float) -> list[dict[str, float]]:
    """Return at most 400 stretches: the most needed, the fewest ready, the time missed."""
    # Of a stretch the worst is drawn: a mean would hide exactly the moments that count.
    width = -(-len(needed) // _MOST_POINTS)
    found = []
    for first in range(0, len(needed), width):
        part = slice(first, first + width)
        found.append(
            {
                "start": first * step_s / 86_400,
                "end": min(first + width, len(needed)) * step_s / 86_400,
                "needed": float(needed[part].max()),
                "ready": float(run.ready[part].min()),
                "missed": float(run.missed_s[part].sum()),
            }
        )
    return found
