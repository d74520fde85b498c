"""Pictures of a simulated fleet: its work over time, and one instance step by step."""

from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from steelyard.runs import layers
from steelyard.runs.layers import PLOT_WIDTH, finish
from steelyard.runs.theme import SERIES
from steelyard.serve.fleet_replay import FleetReplay

__all__ = ["fleet_pictures"]

_STRETCHES = 240
"""Stretches of time that are drawn."""


def fleet_pictures(replay: FleetReplay) -> dict[str, Any]:
    """Draw instances over demand, and below it the timeline of the busiest instance.

    Args:
        replay: the run.

    Returns:
        Vega-Lite spec.
    """
    edges = np.linspace(0, replay.span_s, _STRETCHES + 1)
    busiest = int(np.argmax(replay.busy()))
    return finish(alt.vconcat(_fleet(replay, edges), _instance(replay, busiest, edges), spacing=18))


def _fleet(replay: FleetReplay, edges: NDArray[np.float64]) -> Any:
    """Draw requests in the system as an area, and the instances that are there as a line."""
    arrivals = np.sort([job.arrival_s for job in replay.jobs])
    ends = np.sort([job.last_token_s for job in replay.jobs])
    middles = (edges[1:] + edges[:-1]) / 2
    inside = np.searchsorted(arrivals, middles) - np.searchsorted(ends, middles)
    ready = replay.asked_at(middles)
    rows = [
        {"at": float(at), "requests": int(count), "instances": float(number)}
        for at, count, number in zip(middles, inside, ready, strict=True)
    ]
    base = alt.Chart(layers.values(rows)).encode(x=_time())
    area = base.mark_area(interpolate="step", opacity=0.3, color=SERIES[0][0]).encode(
        y=alt.Y("requests:Q", title="Requests (area)")
    )
    line = base.mark_line(interpolate="step", strokeWidth=1.6, color=SERIES[1][0]).encode(
        y=alt.Y("instances:Q", title="Instances (line)", scale=alt.Scale(zero=True))
    )
    return (
        alt.layer(area, line)
        .resolve_scale(y="independent")
        .properties(width=PLOT_WIDTH, height=160, title="Instances over demand")
    )


def _instance(replay: FleetReplay, place: int, edges: NDArray[np.float64]) -> Any:
    """Draw the prompt tokens of one instance's steps as bars, and its batch as a line."""
    steps = replay.replicas[place].steps
    starts = np.array([step.start_s for step in steps])
    where = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, _STRETCHES - 1)
    prompts = np.bincount(where, [step.prompt_tokens for step in steps], minlength=_STRETCHES)
    lasting = np.array([step.end_s - step.start_s for step in steps])
    weighted = np.array([step.decodes for step in steps]) * lasting
    spent = np.bincount(where, lasting, minlength=_STRETCHES)
    # Weighted by the time of the steps: short ones would else count as much as long ones.
    batch = np.bincount(where, weighted, minlength=_STRETCHES) / np.maximum(spent, 1e-12)
    width_s = float(edges[1] - edges[0])
    rows = [
        {
            "at": float(edges[row] + width_s / 2),
            "prompts": float(prompts[row] / width_s),
            "batch": float(batch[row]),
        }
        for row in range(_STRETCHES)
    ]
    base = alt.Chart(layers.values(rows)).encode(x=_time())
    area = base.mark_area(interpolate="step", opacity=0.3, color=SERIES[2][0]).encode(
        y=alt.Y("prompts:Q", title="Prompt tokens/s (area)", axis=alt.Axis(format="~s"))
    )
    line = base.mark_line(interpolate="step", strokeWidth=1.4, color=SERIES[3][0]).encode(
        y=alt.Y("batch:Q", title="Decoding requests (line)")
    )
    role = replay.replicas[place].role
    return (
        alt.layer(area, line)
        .resolve_scale(y="independent")
        .properties(
            width=PLOT_WIDTH,
            height=160,
            title=f"Instance {place} ({role}), the busiest: {replay.busy()[place]:.0%} of the time",
        )
    )


def _time() -> Any:
    """Return the axis of time."""
    return alt.X(
        "at:Q",
        title="Seconds",
        scale=alt.Scale(nice=False),
        axis=alt.Axis(tickCount=8, grid=False),
    )
