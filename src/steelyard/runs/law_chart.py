"""The chart of a fitted scaling law: measured points, fitted curves, and forecast runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from steelyard.runs.layers import PLOT_WIDTH, finish, rows_of, values
from steelyard.runs.theme import LIGHT
from steelyard.units import pretty

__all__ = ["law_fit"]

# Filled with the card's own white: no curve shows through, and the mark reads as open.
_DIAMOND: dict[str, Any] = {
    "filled": True,
    "shape": "diamond",
    "size": 170,
    "fill": LIGHT["card"],
    "strokeWidth": 2.2,
}


def law_fit(
    points: Mapping[str, Sequence[float]],
    curve: Mapping[str, Sequence[float]],
    title: str,
    *,
    target: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, Any]:
    """Draw a fitted scaling law.

    Measured points and one curve with its 80 % band per model size, over tokens.

    Args:
        points: columns "parameters", "tokens", "loss" that the fit saw.
        curve: columns "parameters", "tokens", "loss", "low", "high" of the law, several tokens per
            size.
        title: heading of the chart.
        target: columns like `points` of runs the fit did not see, drawn as open diamonds; None for
            none.

    Returns:
        Vega-Lite spec.

    Raises:
        DataError: a column is missing or has another length.
    """
    seen = rows_of(points, ("parameters", "tokens", "loss"), "points")
    lines = rows_of(curve, ("parameters", "tokens", "loss", "low", "high"), "curve")
    unseen = rows_of(target, ("parameters", "tokens", "loss"), "target") if target else []
    subtitle = "Curves per number of parameters: points measured, lines fitted, bands 80 %"
    subtitle += "; diamonds were forecast, then measured" if unseen else ""
    layers = _law_layers(seen, lines, unseen)
    return finish(
        alt.layer(*layers).properties(
            width=PLOT_WIDTH, height=360, title=alt.TitleParams(title, subtitle=subtitle)
        )
    )


def _law_layers(
    seen: list[dict[str, Any]], lines: list[dict[str, Any]], unseen: list[dict[str, Any]]
) -> list[Any]:
    """Return the layers of `law_fit`: bands, curves, points, sizes at the ends, open diamonds."""
    for row in (*seen, *lines, *unseen):
        row["size"] = pretty(row["parameters"], "parameter").removesuffix("parameters").strip()
    names = list(
        dict.fromkeys(
            row["size"]
            for row in sorted((*seen, *lines, *unseen), key=lambda row: row["parameters"])
        )
    )
    scale = alt.Scale(domain=names)
    color = alt.Color("size:O", sort=names, scale=scale, legend=None)
    stroke = alt.Stroke("size:O", sort=names, scale=scale, legend=None)
    log = alt.Scale(type="log", nice=False, padding=12)
    x = alt.X(
        "tokens:Q", title="Training tokens", scale=log, axis=alt.Axis(format="~s", tickCount=6)
    )
    y = alt.Y("loss:Q", title="Held-out loss, nats per token", scale=alt.Scale(zero=False))
    tooltip = [
        alt.Tooltip("size:N", title="parameters"),
        alt.Tooltip("tokens:Q", format=".3s"),
        alt.Tooltip("loss:Q", format=".4f"),
    ]
    ends = [
        row
        for row in lines
        if row["tokens"] == max(other["tokens"] for other in lines if other["size"] == row["size"])
    ]
    label = alt.Chart(values(ends)).mark_text(align="left", dx=9, fontSize=11.5, fontWeight=500)
    base = alt.Chart(values(lines)).encode(x=x, color=color)
    layers: list[Any] = [
        base.mark_area(opacity=0.16).encode(
            y=alt.Y("low:Q", title="Held-out loss, nats per token"), y2="high:Q"
        ),
        base.mark_line(strokeWidth=1.8).encode(y=y),
        alt.Chart(values(seen))
        .mark_point(filled=True, size=58)
        .encode(x=x, y=y, color=color, tooltip=tooltip),
        label.encode(x=x, y=y, text="size:N", color=color),
    ]
    if unseen:
        diamonds = alt.Chart(values(unseen)).mark_point(**_DIAMOND)
        layers.append(diamonds.encode(x=x, y=y, stroke=stroke, tooltip=tooltip))
    return layers
