"""The chart of residuals: how far each point lies from the law."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.pictures.marks import colours_of, point_layers, point_rows
from steelyard.laws.pictures.series import axis_words, split, unit_of
from steelyard.runs.axes import Scale
from steelyard.runs.layers import PLOT_WIDTH, finish, values, x_of, y_of
from steelyard.runs.theme import LIGHT

__all__ = ["residual_chart"]

_HEIGHT = 240


def residual_chart(
    fit: Fit, *, title: str = "Residuals", along: str = "", by: str = ""
) -> dict[str, Any]:
    """Draw how far each point lies from the law, in per cent, over one input.

    Far ones are ringed and named by their row.

    Args:
        fit: fit with its points.
        title: heading.
        along: input along x; empty as for `fit_chart`.
        by: input that colours tell apart; empty as for `fit_chart`.

    Returns:
        Vega-Lite spec; the band holds two standard deviations of the residuals either way.

    Raises:
        FitError: a fit without points, or no such input.
    """
    chosen = split(fit, along, by)
    rows = [
        row | {"y": float(np.expm1(fit.residuals[row["row"] - 1]))}
        for row in point_rows(fit, chosen, colours_of(chosen))
    ]
    far = {item.row + 1 for item in fit.outliers()}
    x_scale = Scale.over(
        [row["x"] for row in rows],
        unit_of(chosen.along),
        title=axis_words(chosen.along),
        margin=0.03,
        most_ticks=8,
    )
    x_scale = x_scale.ending(x_scale.high, chosen.zero)
    band = [float(np.expm1(sign * 2 * fit.noise)) for sign in (-1, 1)]
    y_scale = Scale.over(
        [row["y"] for row in rows] + band,
        "fraction",
        title="Measured over law, minus 1",
        kind="linear",
        margin=0.08,
        most_ticks=6,
    )
    ringed = [row | {"name": f"row {row['row']}"} for row in rows if row["row"] in far]
    layers = [
        *_ground(band, x_scale, y_scale),
        *point_layers(rows, [], x_scale, y_scale),
        *_named(ringed, x_scale, y_scale),
    ]
    words = f"Standard deviation {100 * fit.noise:.2g} %; the band holds two of them either way"
    if far:
        words += f"; ringed: more than four robust standard deviations, {len(far)} of {len(rows)}"
    return finish(
        alt.layer(*layers).properties(
            width=PLOT_WIDTH, height=_HEIGHT, title=alt.TitleParams(title, subtitle=words)
        )
    )


def _ground(band: Sequence[float], x_scale: Scale, y_scale: Scale) -> list[Any]:
    """Return the band of two standard deviations and the line of no residual."""
    ends = {"first": x_scale.low, "last": x_scale.high, "low": band[0], "high": band[1]}
    base = alt.Chart(values([ends | {"zero": 0.0}])).encode(x=x_of("first", x_scale), x2="last:Q")
    wash = base.mark_rect(color=LIGHT["wash"], opacity=0.8)
    return [
        wash.encode(y=y_of("low", y_scale), y2="high:Q"),
        base.mark_rule(strokeWidth=1.3).encode(y=y_of("zero", y_scale)),
    ]


def _named(rows: Sequence[Mapping[str, Any]], x_scale: Scale, y_scale: Scale) -> list[Any]:
    """Ring points and write their names beside them, unless they are many."""
    if not rows:
        return []
    base = alt.Chart(values(rows)).encode(x=x_of("x", x_scale), y=y_of("y", y_scale))
    ring = base.mark_point(filled=False, size=150, color=LIGHT["bad"], strokeWidth=1.5)
    # The farthest outlier is named first, so that it keeps its name where several lie together.
    apart: list[Mapping[str, Any]] = []
    for row in sorted(rows, key=lambda item: -abs(item["y"])):
        if all(_is_apart(row, other, x_scale, y_scale) for other in apart):
            apart.append(row)
    name = alt.Chart(values(apart)).mark_text(dy=-14, fontSize=10.5, color=LIGHT["soft"])
    return [ring, name.encode(x=x_of("x", x_scale), y=y_of("y", y_scale), text="name:N")]


def _is_apart(
    row: Mapping[str, Any], other: Mapping[str, Any], x_scale: Scale, y_scale: Scale
) -> bool:
    """Say whether two names would not overlap."""
    across = abs(x_scale.place(row["x"]) - x_scale.place(other["x"])) * PLOT_WIDTH
    return across > 52 or abs(y_scale.place(row["y"]) - y_scale.place(other["y"])) * _HEIGHT > 14
