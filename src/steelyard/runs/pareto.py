"""A chart of candidates by two costs, with those that no other beats in both."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from steelyard.runs import layers
from steelyard.runs.charts import si_labels
from steelyard.runs.layers import PLOT_WIDTH, finish, rows_of
from steelyard.runs.theme import SERIES
from steelyard.units import pretty

__all__ = ["pareto"]

_MOST_POINTS = 400


def pareto(
    names: Sequence[str],
    across: Sequence[float],
    up: Sequence[float],
    *,
    titles: tuple[str, str],
    units: tuple[str, str],
    title: str,
) -> dict[str, Any]:
    """Draw candidates by two costs, and the front of those that none beats in both.

    Args:
        names: words for each candidate, shown where the pointer is.
        across: first cost of each, in the first unit; less is better.
        up: second cost of each, in the second unit; less is better.
        titles: names of the two costs.
        units: base units of the two costs.
        title: heading of the chart.

    Returns:
        Vega-Lite spec of the front and of at most 400 candidates, those nearest to the front.

    Raises:
        DataError: the columns differ in length.
    """
    columns = {"name": names, "across": across, "up": up}
    rows = rows_of(columns, tuple(columns), "pareto")
    front = _front(np.asarray(across, dtype=float), np.asarray(up, dtype=float))
    beaten = np.argsort(_distance(across, up, front), kind="stable")
    for place, row in enumerate(rows):
        row["kind"] = "on the front" if front[place] else "beaten in both"
        row["words"] = f"{pretty(row['across'], units[0])}, {pretty(row['up'], units[1])}"
    kept = [place for place in beaten.tolist() if not front[place]][:_MOST_POINTS]
    best = sorted(np.flatnonzero(front).tolist(), key=lambda place: rows[place]["across"])
    x, y = (
        _axis(field, name, unit)
        for field, name, unit in zip(("across", "up"), titles, units, strict=True)
    )
    base = {"x": alt.X(**x), "y": alt.Y(**y)}
    kinds = ["on the front", "beaten in both"]
    color = alt.Color(
        "kind:N",
        title=None,
        sort=kinds,
        scale=alt.Scale(domain=kinds, range=[SERIES[0][0], "#b6b9c0"]),
    )
    tooltip = [alt.Tooltip("name:N", title="layout"), alt.Tooltip("words:N", title="costs")]
    shown = alt.Chart(layers.values([rows[place] for place in kept + best]))
    line = alt.Chart(layers.values([rows[place] for place in best]))
    drawn = alt.layer(
        line.mark_line(interpolate="step-after", color=SERIES[0][0], opacity=0.5).encode(**base),
        shown.mark_circle(size=46, opacity=0.85).encode(**base, color=color, tooltip=tooltip),
    )
    return finish(drawn.properties(width=PLOT_WIDTH, height=320, title=title))


def _axis(field: str, name: str, unit: str) -> dict[str, Any]:
    """Return an axis that begins near its smallest value."""
    return {
        "shorthand": f"{field}:Q",
        "title": name,
        "scale": alt.Scale(zero=False, nice=True),
        "axis": alt.Axis(labelExpr=si_labels(unit), tickCount=6),
    }


def _front(across: np.ndarray[Any, Any], up: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return which candidates no other one beats: [candidates] of bools."""
    order = np.lexsort((up, across))
    lowest = np.minimum.accumulate(up[order])
    before = np.concatenate([[np.inf], lowest[:-1]])
    front = np.zeros(len(up), dtype=bool)
    front[order] = up[order] < before
    return front


def _distance(
    across: Sequence[float], up: Sequence[float], front: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return how far each candidate is from the nearest of the front, in shares of its costs."""
    points = np.log(np.maximum(np.stack([across, up], axis=1), 1e-300))
    best = points[front]
    found = np.full(len(points), np.inf)
    for one in best:
        found = np.minimum(found, np.abs(points - one).max(axis=1))
    return found
