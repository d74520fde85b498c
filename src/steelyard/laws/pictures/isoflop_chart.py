"""The charts of isoFLOP valleys and of the best sizes over compute."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
from numpy.typing import ArrayLike

from steelyard.laws.fitting.terms import Array
from steelyard.laws.pictures.marks import COLOR, SHAPE
from steelyard.runs.axes import Scale, tick_text
from steelyard.runs.layers import finish, shaded, values, x_of, y_of
from steelyard.runs.theme import LIGHT, SERIES, ordered_colours

if TYPE_CHECKING:
    from steelyard.laws.decisions.optima.isoflop import IsoFlop

__all__ = ["isoflop_chart"]

_HEIGHT = 380
_PANEL = 385
_SAME_BUDGET = 0.05
_CURVE_POINTS = 60
_HEADROOM = 0.75


def isoflop_chart(
    found: "IsoFlop",
    points: Mapping[str, ArrayLike],
    *,
    title: str = "",
    until: float | None = None,
    flops_per_parameter_token: float = 6.0,
) -> dict[str, Any]:
    """Draw the valleys of loss over model size per budget, and the best sizes over compute.

    Args:
        found: result of `isoflop`.
        points: the columns it was given: "parameters", "loss" and "flops", or "tokens" in place of
            "flops".
        title: heading; empty for the exponent.
        until: largest budget the line is drawn to, FLOP; None for ten times the largest of the
            points.
        flops_per_parameter_token: FLOP per parameter and token where "flops" is missing.

    Returns:
        Vega-Lite spec of two panels; both colour a budget alike, crosses mark budgets that took no
        part.
    """
    size, loss = (np.asarray(points[name], dtype=np.float64) for name in ("parameters", "loss"))
    flops = np.asarray(
        points["flops"]
        if "flops" in points
        else flops_per_parameter_token * size * np.asarray(points["tokens"])
    )
    colours = ordered_colours(len(found.budgets))
    exponent = found.exponent
    heading = title or f"Best size grows as compute to the power {exponent.value:.3f}"
    words = (
        f"{100 * found.level:.0f} % interval {exponent.low:.3f} to {exponent.high:.3f}; large "
        f"dots are the bottoms of the valleys"
    )
    left = _valleys(found, size, loss, flops, colours)
    right = _best_sizes(found, colours, until or 10 * max(item.flops for item in found.budgets))
    chart = alt.hconcat(left, right, spacing=34).properties(
        title=alt.TitleParams(heading, subtitle=words)
    )
    return finish(chart) | {"autosize": {"type": "pad"}}


def _valleys(
    found: "IsoFlop", size: Array, loss: Array, flops: Array, colours: Sequence[str]
) -> Any:
    """Draw runs, curves and minima of all budgets."""
    highest, lowest = (end([item.loss for item in found.budgets]) for end in (max, min))
    top = min(highest + _HEADROOM * (highest - lowest), float(loss.max()))
    runs: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for index, budget in enumerate(found.budgets):
        rows = np.flatnonzero(np.abs(np.log(flops / budget.flops)) < _SAME_BUDGET)
        rows = rows[np.argsort(size[rows], kind="stable")]
        words = tick_text(budget.flops, "FLOP")
        runs += [
            {"x": float(size[row]), "y": float(loss[row]), "color": colours[index], "FLOP": words}
            for row in rows
            if loss[row] <= top
        ]
        x, y = _smooth(size[rows], loss[rows])
        curves += [
            {"x": float(a), "y": float(b), "color": colours[index], "budget": index}
            for a, b in zip(x, y, strict=True)
        ]
    bottoms = [
        {
            "x": item.parameters.value,
            "y": item.loss,
            "color": colour,
            "shape": "cross" if item.state == "dropped" else "circle",
        }
        for item, colour in zip(found.budgets, colours, strict=True)
    ]
    x_scale = Scale.over(
        [row["x"] for row in runs],
        "parameter",
        title="Parameters",
        kind="log",
        margin=0.05,
        most_ticks=6,
    )
    y_scale = Scale.over(
        [lowest - 0.06 * (top - lowest), top],
        title="Loss",
        kind="linear",
        margin=0.04,
        most_ticks=6,
    )
    x, y, color = (
        x_of("x", x_scale),
        y_of("y", y_scale),
        COLOR,
    )
    marks = {"filled": True, "size": 110, "stroke": LIGHT["card"], "strokeWidth": 1.2}
    layers = [
        alt.Chart(values(curves))
        .mark_line(strokeWidth=1.4, clip=True, opacity=0.8)
        .encode(x=x, y=y, color=color, detail="budget:N"),
        alt.Chart(values(runs))
        .mark_point(filled=True, size=20)
        .encode(x=x, y=y, color=color, tooltip=["FLOP:N", "x:Q", "y:Q"]),
        alt.Chart(values(bottoms)).mark_point(**marks).encode(x=x, y=y, color=color, shape=SHAPE),
    ]
    first = max((row for row in runs if row["color"] == colours[0]), key=lambda row: row["x"])
    for named, budget, place in (
        (first, found.budgets[0], {"align": "right", "dx": -9}),
        (bottoms[-1], found.budgets[-1], {"baseline": "top", "dy": 11}),
    ):
        label = alt.Chart(values([named | {"text": tick_text(budget.flops, "FLOP")}])).mark_text(
            fontSize=11, fontWeight=500, **place
        )
        layers.append(label.encode(x=x, y=y, color=color, text="text:N"))
    return alt.layer(*layers).properties(
        width=_PANEL,
        height=_HEIGHT,
        title=_panel_title("Loss at each budget, smallest to largest FLOP"),
    )


def _panel_title(words: str) -> Any:
    """Return the heading of one of several panels."""
    return alt.TitleParams(words, fontSize=12.5, offset=8)


def _smooth(size: Array, loss: Array) -> tuple[Array, Array]:
    """Draw a smooth curve through runs of rising size; the mean where several runs share one."""
    from scipy.interpolate import Akima1DInterpolator

    log, place = np.unique(np.log(size), return_inverse=True)
    mean = np.bincount(place, np.log(loss)) / np.bincount(place)
    if len(log) < 3:
        return np.exp(log), np.exp(mean)
    fine = np.linspace(log[0], log[-1], _CURVE_POINTS)
    return np.exp(fine), np.exp(Akima1DInterpolator(log, mean)(fine))


def _best_sizes(found: "IsoFlop", colours: Sequence[str], until: float) -> Any:
    """Draw the best size of each budget, and the line through them with its band."""
    budgets = np.array([item.flops for item in found.budgets])
    grid = np.geomspace(budgets.min(), max(until, budgets.max()), _CURVE_POINTS)
    said = [found.parameters(float(flops)) for flops in grid]
    line = [
        {"x": float(x), "y": item.value, "low": item.low, "high": item.high}
        for x, item in zip(grid, said, strict=True)
    ]
    dots = [
        {
            "x": item.flops,
            "y": item.parameters.value,
            "low": item.parameters.low,
            "high": item.parameters.high,
            "color": colour,
            "shape": "cross" if item.state == "dropped" else "circle",
            "state": item.reason or item.state,
        }
        for item, colour in zip(found.budgets, colours, strict=True)
    ]
    x_scale = Scale.over(
        grid, "FLOP", title="Training compute, FLOP", kind="log", margin=0.03, most_ticks=6
    ).ending(float(grid[-1]))
    shown = [row[key] for row in (*line, *dots) for key in ("low", "high", "y")]
    y_scale = Scale.over(
        shown, "parameter", title="Best number of parameters", kind="log", margin=0.04, most_ticks=7
    )
    x, y, color = (
        x_of("x", x_scale),
        y_of("y", y_scale),
        COLOR,
    )
    base, marked = (
        alt.Chart(values(line)).encode(x=x),
        alt.Chart(values(dots)).encode(x=x, color=color),
    )
    edge = float(budgets.max())
    layers = [
        *shaded(edge, float(grid[-1]), "", x_scale, y_scale),
        base.mark_area(opacity=0.16, color=SERIES[0][0]).encode(
            y=y_of("low", y_scale), y2="high:Q"
        ),
        base.mark_line(color=SERIES[0][0]).transform_filter(f"datum.x <= {edge!r}").encode(y=y),
        base.mark_line(color=SERIES[0][0], strokeDash=[5, 4], strokeCap="butt")
        .transform_filter(f"datum.x >= {edge!r}")
        .encode(y=y),
        marked.mark_rule(strokeWidth=1.6).encode(y=y_of("low", y_scale), y2="high:Q"),
        marked.mark_point(filled=True, size=95, stroke=LIGHT["card"], strokeWidth=1.2).encode(
            y=y,
            shape=SHAPE,
            tooltip=["x:Q", "y:Q", "state:N"],
        ),
    ]
    return alt.layer(*layers).properties(
        width=_PANEL, height=_HEIGHT, title=_panel_title("Best size over compute")
    )
