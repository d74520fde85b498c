"""Draws a network: nodes at given places, their ties as lines."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from steelyard.runs import layers
from steelyard.runs.layers import PLOT_WIDTH, finish, rows_of
from steelyard.runs.theme import LIGHT

__all__ = ["network"]


def network(
    nodes: dict[str, Sequence[Any]],
    ties: Sequence[tuple[int, int, float]],
    *,
    title: str,
    subtitle: str = "",
) -> dict[str, Any]:
    """Draw nodes and ties.

    Args:
        nodes: columns "x" and "y" (0 to 1), "name", "label" (written beside the node, may be
            empty), "group", "size" (of its area) and "shape" (of four kinds at most), one value
            per node.
        ties: numbers of two nodes and a weight from 0 to 1, which makes a line stronger.
        title: heading of the chart.
        subtitle: second line.

    Returns:
        Vega-Lite spec.

    Raises:
        DataError: a column is missing or has another length.
    """
    needed = ("x", "y", "name", "label", "group", "size", "shape")
    rows = rows_of(dict(nodes), needed, "network")
    lines = [
        {
            "x": rows[one]["x"],
            "y": rows[one]["y"],
            "x2": rows[other]["x"],
            "y2": rows[other]["y"],
            "weight": weight,
        }
        for one, other, weight in ties
    ]
    scale = alt.Scale(domain=[-0.03, 1.08], nice=False)
    x, y = (alt.X("x:Q", axis=None, scale=scale), alt.Y("y:Q", axis=None, scale=scale))
    base = alt.Chart(layers.values(rows)).encode(x=x, y=y)
    groups = sorted({row["group"] for row in rows})
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    forms = ["diamond", "circle", "square", "cross"][: len(shapes)]
    drawn = [
        alt.Chart(layers.values(lines))
        .mark_rule(color=LIGHT["ink"])
        .encode(
            x=x,
            y=y,
            x2="x2:Q",
            y2="y2:Q",
            opacity=alt.Opacity("weight:Q", legend=None, scale=alt.Scale(range=[0.03, 0.4])),
        ),
        base.mark_point(filled=True, opacity=1, stroke=LIGHT["card"], strokeWidth=1).encode(
            size=alt.Size("size:Q", legend=None, scale=alt.Scale(range=[50, 420])),
            color=alt.Color("group:N", title=None, sort=groups, scale=alt.Scale(domain=groups)),
            shape=alt.Shape(
                "shape:N", title=None, sort=shapes, scale=alt.Scale(domain=shapes, range=forms)
            ),
            tooltip=[alt.Tooltip("name:N"), alt.Tooltip("group:N")],
        ),
        base.mark_text(align="left", dx=9, fontSize=11).encode(text="label:N"),
    ]
    heading = alt.TitleParams(title, subtitle=subtitle) if subtitle else title
    return finish(alt.layer(*drawn).properties(width=PLOT_WIDTH, height=520, title=heading))
