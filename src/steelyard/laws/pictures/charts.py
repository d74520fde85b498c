"""The chart of a fitted law, and the marks that others share with it: curves with bands, points.

Every chart of this folder is a function that returns a Vega-Lite spec with its data inside, for
`runs.report.Chart` or `runs.save.save_chart`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import ArrayLike

from steelyard.laws.fitting.fit import Holdout
from steelyard.laws.fitting.fitted import Fit, Prediction
from steelyard.laws.fitting.points import check_inputs, named_column, positive_column
from steelyard.laws.fitting.terms import Array
from steelyard.laws.pictures.series import (
    MOST_DRAWN,
    Split,
    axis_words,
    drawn_rows,
    formula_words,
    split,
    unit_of,
    with_unseen,
)
from steelyard.runs.axes import Scale
from steelyard.runs.layers import PLOT_WIDTH, end_labels, finish, shaded, values, x_of, y_of
from steelyard.runs.theme import LIGHT, SERIES, ordered_colours

__all__ = [
    "COLOR",
    "SHAPE",
    "colours_of",
    "curve_layers",
    "curve_rows",
    "fit_chart",
    "point_layers",
    "point_rows",
    "positions",
]

COLOR = alt.Color("color:N", scale=None, legend=None)
SHAPE = alt.Shape("shape:N", scale=None, legend=None)

_HEIGHT = 380
_CURVE_POINTS = 60
_AHEAD = 0.2
_MOST_LABELS = 12
_EACH = {
    "parameters": "number of parameters",
    "tokens": "number of training tokens",
    "unique_tokens": "number of unique tokens",
}


def fit_chart(
    fit: Fit | Holdout,
    *,
    title: str = "",
    target: str = "Loss",
    along: str = "",
    by: str = "",
    unseen: Mapping[str, ArrayLike] | None = None,
    until: float | None = None,
    level: float = 0.8,
) -> dict[str, Any]:
    """Draw a fitted law.

    Points, curves with their band, the region beyond the points, and points the fit did not see.

    Args:
        fit: fit with its points; a holdout is drawn as the fit of the smaller points with the held
            ones as open diamonds.
        title: heading; empty for the name of the law.
        target: title of the y axis.
        along: input along x; empty for training tokens, samples or examples, else the one with the
            most different values.
        by: input that colours tell apart; empty for groups, else the input that moves the law most.
        unseen: columns of the inputs and "target" of measured runs that the fit did not see, drawn
            as open diamonds.
        until: how far along x the curves are drawn; None for a fifth of the points' range beyond
            them.
        level: probability inside the bands.

    Returns:
        Vega-Lite spec.

    Raises:
        FitError: a fit without points, no such input, or unseen points without a target.
    """
    if isinstance(fit, Holdout):
        rows = drawn_rows(np.arange(len(fit.measured)), MOST_DRAWN)
        unseen = {name: column[rows] for name, column in fit.inputs.items()}
        unseen["target"] = fit.measured[rows]
        fit = fit.fit
    chosen = split(fit, along, by)
    if unseen is not None:
        chosen = with_unseen(chosen, check_inputs(fit.law, unseen))
    colours = colours_of(chosen)
    points = point_rows(fit, chosen, colours)
    fresh = _unseen(fit, chosen, colours, unseen)
    x_scale, last = _x_scale(fit, chosen, fresh, until)
    curves = _curves(fit, chosen, colours, last, level)
    y_scale = Scale.over(
        [row["y"] for row in (*points, *fresh, *curves)]
        + [row[end] for row in curves if row["is_inside"] for end in ("low", "high")],
        title=target,
        margin=0.05,
        most_ticks=6,
    )
    layers = shaded(float(chosen.x.max()), x_scale.high, "beyond the points", x_scale, y_scale)
    layers += curve_layers(curves, x_scale, y_scale, 0.16 if len(chosen.series) < 6 else 0.1)
    layers += point_layers(points, fresh, x_scale, y_scale)
    layers += _labels(chosen, curves, colours, x_scale, y_scale)
    heading = alt.TitleParams(
        title or f"Law {fit.law.name}", subtitle=_subtitle(fit, chosen, bool(fresh), level)
    )
    return finish(alt.layer(*layers).properties(width=PLOT_WIDTH, height=_HEIGHT, title=heading))


def _labels(
    chosen: Split,
    curves: Sequence[Mapping[str, Any]],
    colours: Sequence[str],
    x_scale: Scale,
    y_scale: Scale,
) -> list[Any]:
    """Write at the end of each curve what it holds, unless there are too many."""
    ends = {row["series"]: row for row in curves}
    labels = [
        (item.label, ends[index]["y"], colours[index])
        for index, item in enumerate(chosen.series)
        if item.label
    ]
    return (
        end_labels(labels, x_scale.high, x_scale, y_scale, _HEIGHT)
        if len(labels) <= _MOST_LABELS
        else []
    )


def _subtitle(fit: Fit, chosen: Split, has_unseen: bool, level: float) -> list[str]:
    """Say the formula, and what is drawn."""
    lines = [formula_words(fit.law.formula)] if fit.law.formula else []
    said = "Points measured, lines fitted" + (
        f", bands {100 * level:.0f} %" if len(fit.samples) or fit.noise else ""
    )
    if chosen.by and chosen.by != "group":
        said += f"; one curve per {_EACH.get(chosen.by, 'value of ' + chosen.by.replace('_', ' '))}"
    said += "; open diamonds were not fitted" if has_unseen else ""
    said += "; points are moved along the law to their curve" if chosen.is_moved else ""
    return [*lines, said, *chosen.drawn_words]


def _unseen(
    fit: Fit, chosen: Split, colours: Sequence[str], columns: Mapping[str, ArrayLike] | None
) -> list[dict[str, Any]]:
    """Return one row per point that the fit did not see, moved to the nearest curve."""
    if columns is None:
        return []
    inputs = check_inputs(fit.law, columns)
    measured = named_column(columns, "target", "of unseen points")
    target = positive_column("target", measured, len(inputs[chosen.along]))
    rows = []
    for row in range(len(target)):
        own = {name: column[row : row + 1] for name, column in inputs.items()}
        nearest = _nearest(chosen, own)
        value = float(chosen.on_curve(fit, own, target[row : row + 1], chosen.series[nearest])[0])
        said = {name: f"{column[0]:.4g}" for name, column in own.items()}
        rows.append(
            {
                "x": float(own[chosen.along][0]),
                "y": value,
                "color": colours[nearest],
                "measured": f"{target[row]:.4g}",
                **said,
            }
        )
    return rows


def _nearest(chosen: Split, inputs: Mapping[str, Array]) -> int:
    """Return the series whose curve is nearest in the input that colours tell apart."""
    if not chosen.by:
        return 0
    value = float(inputs[chosen.by][0])
    return int(np.argmin([abs(np.log(series.held[chosen.by] / value)) for series in chosen.series]))


def _x_scale(
    fit: Fit, chosen: Split, fresh: Sequence[Mapping[str, Any]], until: float | None
) -> tuple[Scale, float]:
    """Return the x axis, and where the curves end on it."""
    column = chosen.x
    unit = unit_of(chosen.along)
    inside = Scale.over(column, unit, margin=0.0)
    ends = [float(column.max()), *(row["x"] for row in fresh)]
    last = max(inside.value(1 + _AHEAD) if until is None else until, *ends)
    kind = "log" if inside.is_log else "linear"
    shown = [float(column.min()), *ends, last]
    return Scale.over(
        shown, unit, title=axis_words(chosen.along), kind=kind, margin=0.03, most_ticks=8
    ).ending(last, chosen.zero), last


def _curves(
    fit: Fit, chosen: Split, colours: Sequence[str], last: float, level: float
) -> list[dict[str, Any]]:
    """Return the rows of all curves, each from its first point to the end of the axis."""
    rows = []
    for index, series in enumerate(chosen.series):
        # A series of unseen runs has no points: all of its curve lies beyond.
        column = chosen.x[series.rows] if len(series.rows) else chosen.x.min(keepdims=True)
        first, edge = float(column.min()), float(column.max())
        x = positions(first, edge, last, first > 0 and last >= 2 * first)
        held = {name: np.full(len(x), value) for name, value in series.held.items()}
        said = fit.predict({chosen.along: x, **held}, level, extrapolate=True)
        rows += curve_rows(x, said, colours[index], index, edge)
    return rows


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


def positions(first: float, edge: float, last: float, is_log: bool) -> Array:
    """Return where a curve is drawn: from its first point to its last, and on to the axis' end."""
    space = np.geomspace if is_log else np.linspace
    parts = (space(first, edge, _CURVE_POINTS), space(edge, max(last, edge), _CURVE_POINTS))
    return np.unique(np.concatenate(parts))


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
    residuals = fit.residuals
    for index, series in enumerate(chosen.series):
        inputs = {name: column[series.rows] for name, column in fit.inputs.items()}
        moved = chosen.on_curve(fit, inputs, fit.target[series.rows], series)
        for place, row in enumerate(series.rows.tolist()):
            value, residual = float(moved[place]), float(residuals[row])
            rows.append(_point_row(fit, chosen, row, value, residual, colours[index]))
    return rows


def _point_row(
    fit: Fit, chosen: Split, row: int, value: float, residual: float, colour: str
) -> dict[str, Any]:
    """Return the row of one fitted point with what its tooltip shows."""
    return {
        "x": float(chosen.x[row]),
        "y": value,
        "color": colour,
        "row": row + 1,
        "measured": f"{fit.target[row]:.4g}",
        "residual": f"{100 * float(np.expm1(residual)):+.2f} %",
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
