"""The chart of a fitted law: its points and curves with their bands.

Every chart of this folder is a function that returns a Vega-Lite spec with its data inside, for
`runs.report.Chart` or `runs.save.save_chart`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import ArrayLike

from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.points import check_inputs, named_column, positive_column
from steelyard.laws.fitting.refitting import Holdout
from steelyard.laws.fitting.terms import Array
from steelyard.laws.pictures.marks import (
    colours_of,
    curve_layers,
    curve_rows,
    point_layers,
    point_rows,
)
from steelyard.laws.pictures.series import (
    Split,
    axis_words,
    formula_words,
    split,
    unit_of,
    with_unseen,
)
from steelyard.runs.axes import Scale
from steelyard.runs.layers import PLOT_WIDTH, end_labels, finish, shaded

__all__ = ["fit_chart"]

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
        unseen = {**fit.inputs, "target": fit.measured}
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
    return [*lines, said]


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
        space = np.geomspace if first > 0 and last >= 2 * first else np.linspace
        parts = space(first, edge, _CURVE_POINTS), space(edge, last, _CURVE_POINTS)
        x = np.unique(np.concatenate(parts))
        held = {name: np.full(len(x), value) for name, value in series.held.items()}
        said = fit.predict({chosen.along: x, **held}, level, extrapolate=True)
        rows += curve_rows(x, said, colours[index], index, edge)
    return rows
