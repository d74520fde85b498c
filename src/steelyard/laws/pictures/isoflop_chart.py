"""The charts of isoFLOP valleys and of the best sizes over compute."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import ArrayLike

from steelyard.laws.decisions.optima.isoflop import BudgetMinimum, IsoFlop
from steelyard.laws.fitting.fitted import Prediction
from steelyard.laws.fitting.terms import Array
from steelyard.laws.pictures.charts import COLOR, SHAPE, curve_layers, curve_rows, positions
from steelyard.runs.axes import Scale, tick_text
from steelyard.runs.layers import finish, shaded, values, x_of, y_of
from steelyard.runs.theme import LIGHT, SERIES, ordered_colours

__all__ = ["isoflop_chart"]

_HEIGHT = 380
_PANEL = 385
_SAME_BUDGET = 0.05
_CURVE_POINTS = 60
_HEADROOM = 0.75


def isoflop_chart(
    found: IsoFlop,
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
    minima = [_minimum(item, colour) for item, colour in zip(found.budgets, colours, strict=True)]
    left = _valleys(found, size, loss, flops, minima)
    right = _best_sizes(found, minima, until or 10 * max(item.flops for item in found.budgets))
    chart = alt.hconcat(left, right, spacing=34).properties(
        title=alt.TitleParams(heading, subtitle=words)
    )
    return finish(chart) | {"autosize": {"type": "pad"}}


def _minimum(item: BudgetMinimum, colour: str) -> dict[str, Any]:
    """Return the row of the best size of a budget, for both panels."""
    return {
        "flops": item.flops,
        "size": item.parameters.value,
        "low": item.parameters.low,
        "high": item.parameters.high,
        "loss": item.loss,
        "color": colour,
        "shape": "cross" if item.state == "dropped" else "circle",
        "state": item.reason or item.state,
        "text": tick_text(item.flops, "FLOP"),
    }


def _valleys(
    found: IsoFlop, size: Array, loss: Array, flops: Array, minima: Sequence[dict[str, Any]]
) -> Any:
    """Draw runs, curves and minima of all budgets."""
    # Runs far up the walls of a valley would squeeze the bottoms; they are left out of the axis.
    least = [item.loss for item in found.budgets]
    highest, lowest = max(least), min(least)
    top = min(highest + _HEADROOM * (highest - lowest), float(loss.max()))
    runs: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for item in minima:
        rows = np.flatnonzero(np.abs(np.log(flops / item["flops"])) < _SAME_BUDGET)
        rows = rows[np.argsort(size[rows], kind="stable")]
        own = {"color": item["color"], "text": item["text"]}
        runs += [
            {"size": float(size[row]), "loss": float(loss[row])} | own
            for row in rows
            if loss[row] <= top
        ]
        curves += [
            {"size": float(x), "loss": float(y)} | own
            for x, y in zip(*_smooth(size[rows], loss[rows]), strict=True)
        ]
    x_scale = Scale.over(
        [row["size"] for row in runs],
        "parameter",
        title="Parameters",
        kind="log",
        margin=0.05,
        most_ticks=6,
    )
    shown = [lowest - 0.06 * (top - lowest), top]
    y_scale = Scale.over(shown, title="Loss", kind="linear", margin=0.04, most_ticks=6)
    heading = "Loss at each budget, smallest to largest FLOP"
    layers = _valley_layers(runs, curves, minima, x_scale, y_scale)
    return alt.layer(*layers).properties(width=_PANEL, height=_HEIGHT, title=_panel_title(heading))


def _valley_layers(
    runs: Sequence[dict[str, Any]],
    curves: Sequence[dict[str, Any]],
    minima: Sequence[dict[str, Any]],
    x_scale: Scale,
    y_scale: Scale,
) -> list[Any]:
    """Return curves, runs and minima, the first and the last budget named."""
    x = x_of("size", x_scale)
    y = y_of("loss", y_scale)
    lines = alt.Chart(values(curves)).mark_line(strokeWidth=1.4, clip=True, opacity=0.8)
    dots = alt.Chart(values(runs)).mark_point(filled=True, size=20)
    bottoms = alt.Chart(values(minima)).mark_point(
        filled=True, size=110, stroke=LIGHT["card"], strokeWidth=1.2
    )
    layers = [
        lines.encode(x=x, y=y, color=COLOR, detail="text:N"),
        dots.encode(x=x, y=y, color=COLOR, tooltip=["text:N", "size:Q", "loss:Q"]),
        bottoms.encode(x=x, y=y, color=COLOR, shape=SHAPE),
    ]
    mine = [row for row in runs if row["color"] == minima[0]["color"]]
    first = max(mine, key=lambda row: row["size"])
    for named, place in (
        (first, {"align": "right", "dx": -9}),
        (minima[-1], {"baseline": "top", "dy": 11}),
    ):
        label = alt.Chart(values([named])).mark_text(fontSize=11, fontWeight=500, **place)
        layers.append(label.encode(x=x, y=y, color=COLOR, text="text:N"))
    return layers


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


def _best_sizes(found: IsoFlop, minima: Sequence[dict[str, Any]], until: float) -> Any:
    """Draw the best size of each budget, and the line through them with its band."""
    budgets = np.array([item["flops"] for item in minima])
    edge = float(budgets.max())
    grid = positions(float(budgets.min()), edge, until, is_log=True)
    said = [found.parameters(float(flops)) for flops in grid]
    ends = (np.array([getattr(item, end) for item in said]) for end in ("value", "low", "high"))
    line = curve_rows(grid, Prediction(*ends), SERIES[0][0], 0, edge)
    x_scale = Scale.over(
        grid, "FLOP", title="Training compute, FLOP", kind="log", margin=0.03, most_ticks=6
    ).ending(float(grid[-1]))
    shown = [row[end] for row in (*line, *minima) for end in ("low", "high")]
    y_scale = Scale.over(
        shown, "parameter", title="Best number of parameters", kind="log", margin=0.04, most_ticks=7
    )
    marked = alt.Chart(values(minima)).encode(x=x_of("flops", x_scale), color=COLOR)
    dots = marked.mark_point(filled=True, size=95, stroke=LIGHT["card"], strokeWidth=1.2)
    layers = [
        *shaded(edge, float(grid[-1]), "", x_scale, y_scale),
        *curve_layers(line, x_scale, y_scale, 0.16),
        marked.mark_rule(strokeWidth=1.6).encode(y=y_of("low", y_scale), y2="high:Q"),
        dots.encode(y=y_of("size", y_scale), shape=SHAPE, tooltip=["flops:Q", "size:Q", "state:N"]),
    ]
    title = _panel_title("Best size over compute")
    return alt.layer(*layers).properties(width=_PANEL, height=_HEIGHT, title=title)
