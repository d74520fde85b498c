"""Marks that several charts share: curves with their bands, and points."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from steelyard.laws.fitting.fitted import Fit, Prediction
from steelyard.laws.fitting.terms import Array
from steelyard.laws.pictures.series import Split
from steelyard.runs.axes import Scale
from steelyard.runs.layers import values, x_of, y_of
from steelyard.runs.theme import LIGHT, SERIES, ordered_colours

__all__ = [
    "COLOR",
    "SHAPE",
    "colours_of",
    "curve_layers",
    "curve_rows",
    "point_layers",
    "point_rows",
]

COLOR = alt.Color("color:N", scale=None, legend=None)
SHAPE = alt.Shape("shape:N", scale=None, legend=None)


def curve_layers(
    curves: Sequence[Mapping[str, Any]], x_scale: Scale, y_scale: Scale, opacity: float
) -> list[Any]:
    """Return bands and curves, dashed beyond the points of their series.

    Args:
        curves: rows with "x", "y", "low", "high", "color", "series", "is_inside", "is_beyond".
        x_scale: the chart's x axis.
        y_scale: the chart's y axis.
        opacity: opacity of the bands.

    Returns:
        Layers of an Altair chart.
    """
    # A band that leaves the axis would stretch the plot, so its ends are cut at the axis.
    clipped = [
        {**row, "low": y_scale.clip(row["low"]), "high": y_scale.clip(row["high"])}
        for row in curves
    ]
    base = alt.Chart(values(clipped)).encode(x=x_of("x", x_scale), color=COLOR, detail="series:N")
    lines = base.encode(y=y_of("y", y_scale))
    dashed = lines.mark_line(strokeWidth=1.6, strokeDash=[5, 4], strokeCap="butt")
    return [
        base.mark_area(opacity=opacity).encode(y=y_of("low", y_scale), y2="high:Q"),
        lines.mark_line(strokeWidth=1.9).transform_filter("datum.is_inside"),
        dashed.transform_filter("datum.is_beyond"),
    ]


def curve_rows(
    x: Array,
    said: Prediction,
    colour: str,
    series: int,
    edge: float,
) -> list[dict[str, Any]]:
    """Return the rows of one curve for `curve_layers`.

    Args:
        x: positions along x, rising, [n].
        said: values with the ends of the band, [n].
        colour: colour of the curve.
        series: number of the curve.
        edge: position up to which the curve is solid; from there on it is dashed.

    Returns:
        One row per position.
    """
    columns = {"x": x, "y": said.value, "low": said.low, "high": said.high}
    return [
        {name: float(column[place]) for name, column in columns.items()}
        | {"color": colour, "series": series}
        | {"is_inside": bool(x[place] <= edge), "is_beyond": bool(x[place] >= edge)}
        for place in range(len(x))
    ]


def colours_of(chosen: Split) -> list[str]:
    """Return the colour of each series."""
    count = len(chosen.series)
    if count == 1:
        return [SERIES[0][0]]
    return (
        ordered_colours(count)
        if chosen.is_ordered or count > len(SERIES)
        else [light for light, _ in SERIES[:count]]
    )


def point_rows(fit: Fit, chosen: Split, colours: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row per fitted point, on its curve's inputs."""
    rows = []
    for index, series in enumerate(chosen.series):
        inputs = {name: column[series.rows] for name, column in fit.inputs.items()}
        moved = chosen.on_curve(fit, inputs, fit.target[series.rows], series)
        for place, row in enumerate(series.rows.tolist()):
            rows.append(_point_row(fit, chosen, row, float(moved[place]), colours[index]))
    return rows


def _point_row(fit: Fit, chosen: Split, row: int, value: float, colour: str) -> dict[str, Any]:
    """Return the row of one fitted point with what its tooltip shows."""
    return {
        "x": float(chosen.x[row]),
        "y": value,
        "color": colour,
        "row": row + 1,
        "measured": f"{fit.target[row]:.4g}",
        "residual": f"{100 * float(np.expm1(fit.residuals[row])):+.2f} %",
        **{name: f"{column[row]:.4g}" for name, column in fit.inputs.items()},
    }


def point_layers(
    points: Sequence[Mapping[str, Any]],
    fresh: Sequence[Mapping[str, Any]],
    x_scale: Scale,
    y_scale: Scale,
) -> list[Any]:
    """Return fitted points as dots and unseen ones as open diamonds."""
    x, y = x_of("x", x_scale), y_of("y", y_scale)
    size = 52 if len(points) <= 120 else 30 if len(points) <= 400 else 16
    dots = alt.Chart(values(points)).mark_point(
        filled=True, size=size, stroke=LIGHT["card"], strokeWidth=0.7
    )
    layers: list[Any] = [dots.encode(x=x, y=y, color=COLOR, tooltip=_tooltip(points))]
    if fresh:
        # Open marks take their colour from the stroke; the fill is that of the page, so that a
        # curve below does not cross them out.
        diamonds = alt.Chart(values(fresh)).mark_point(
            filled=True, shape="diamond", size=130, fill=LIGHT["card"], strokeWidth=2.0
        )
        stroke = alt.Stroke("color:N", scale=None, legend=None)
        layers.append(diamonds.encode(x=x, y=y, stroke=stroke, tooltip=_tooltip(fresh)))
    return layers


def _tooltip(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Show all words of a point."""
    hidden = ("x", "y", "color")
    return [alt.Tooltip(f"{name}:N") for name in (rows[0] if rows else ()) if name not in hidden]
