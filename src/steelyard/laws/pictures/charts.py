"""Charts of fitted laws: points and curves with their band, and residuals.

Each function returns a Vega-Lite spec with its data inside, for `runs.report.Chart` or
`runs.save.save_chart`. Charts of decisions (isoFLOP valleys, growth over the years, comparisons of
laws) stand in `steelyard.laws.pictures.decision_charts`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.holdout import Holdout
from steelyard.laws.fitting.points import check_inputs
from steelyard.laws.fitting.terms import Array
from steelyard.laws.pictures.series import Series, Split, axis_words, formula_words, split, unit_of
from steelyard.runs.axes import Scale
from steelyard.runs.layers import PLOT_WIDTH, end_labels, finish, shaded, values, x_of, y_of
from steelyard.runs.theme import LIGHT, SERIES, ordered_colours

__all__ = ["fit_chart", "residual_chart"]

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
    import altair as alt

    if isinstance(fit, Holdout):
        unseen = {**fit.inputs, "target": fit.measured}
        fit = fit.fit
    chosen = split(fit, along, by)
    colours = _colours(chosen)
    points = _points(fit, chosen, colours)
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
    layers += _curve_layers(curves, x_scale, y_scale)
    layers += _point_layers(points, fresh, x_scale, y_scale)
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


def _colours(chosen: Split) -> list[str]:
    """Return the colour of each series."""
    count = len(chosen.series)
    if count == 1:
        return [SERIES[0][0]]
    return (
        ordered_colours(count)
        if chosen.is_ordered or count > len(SERIES)
        else [light for light, _ in SERIES[:count]]
    )


def _points(fit: Fit, chosen: Split, colours: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row per fitted point, on its curve's inputs."""
    rows = []
    for index, series in enumerate(chosen.series):
        inputs = {name: column[series.rows] for name, column in fit.inputs.items()}
        moved = chosen.on_curve(fit, inputs, fit.target[series.rows], series)
        for place, row in enumerate(series.rows.tolist()):
            rows.append(_point(fit, chosen, row, float(moved[place]), colours[index]))
    return rows


def _point(fit: Fit, chosen: Split, row: int, value: float, colour: str) -> dict[str, Any]:
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


def _unseen(
    fit: Fit, chosen: Split, colours: Sequence[str], columns: Mapping[str, ArrayLike] | None
) -> list[dict[str, Any]]:
    """Return one row per point that the fit did not see, moved to the nearest curve."""
    if columns is None:
        return []
    inputs = check_inputs(fit.law, columns)
    target = np.atleast_1d(np.asarray(columns.get("target", ()), dtype=np.float64))
    if len(target) != len(inputs[chosen.along]) or not (np.isfinite(target) & (target > 0)).all():
        raise FitError(
            f"unseen points need a positive column target, {len(inputs[chosen.along])} values",
            hint=f"given: {', '.join(columns)}",
        )
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
        column = chosen.x[series.rows]
        first, edge = float(column.min()), float(column.max())
        is_log = first > 0 and last >= 2 * first
        space = np.geomspace if is_log else np.linspace
        inside = space(first, edge, _CURVE_POINTS) if edge > first else np.array([first])
        beyond = space(edge, last, _CURVE_POINTS) if last > edge else np.zeros(0)
        x = np.concatenate([inside, beyond])
        said = fit.predict({chosen.along: x, **_full(series, len(x))}, level, extrapolate=True)
        for place in range(len(x)):
            rows.append(
                {
                    "x": float(x[place]),
                    "y": float(said.value[place]),
                    "low": float(said.low[place]),
                    "high": float(said.high[place]),
                    "color": colours[index],
                    "series": index,
                    "is_inside": place < len(inside),
                    "part": f"{index}{'a' if place < len(inside) else 'b'}",
                }
            )
    return rows


def _full(series: Series, count: int) -> dict[str, Array]:
    """Return the inputs a curve holds as columns."""
    return {name: np.full(count, value) for name, value in series.held.items()}


def _curve_layers(curves: Sequence[Mapping[str, Any]], x_scale: Scale, y_scale: Scale) -> list[Any]:
    """Return bands and curves, dashed beyond the points of their series."""
    import altair as alt

    color = alt.Color("color:N", scale=None, legend=None)
    clipped = [
        {**row, "low": y_scale.clip(row["low"]), "high": y_scale.clip(row["high"])}
        for row in curves
    ]
    base = alt.Chart(values(clipped)).encode(x=x_of("x", x_scale), color=color)
    fewer = 0.16 if len({row["series"] for row in curves}) < 6 else 0.1
    lines = base.encode(y=y_of("y", y_scale), detail="part:N")
    return [
        base.mark_area(opacity=fewer).encode(
            y=y_of("low", y_scale), y2="high:Q", detail="series:N"
        ),
        lines.mark_line(strokeWidth=1.9).transform_filter("datum.is_inside"),
        lines.mark_line(strokeWidth=1.6, strokeDash=[5, 4], strokeCap="butt").transform_filter(
            "!datum.is_inside"
        ),
    ]


def _point_layers(
    points: Sequence[Mapping[str, Any]],
    fresh: Sequence[Mapping[str, Any]],
    x_scale: Scale,
    y_scale: Scale,
) -> list[Any]:
    """Return fitted points as dots and unseen ones as open diamonds."""
    import altair as alt

    x, y = x_of("x", x_scale), y_of("y", y_scale)
    color = alt.Color("color:N", scale=None, legend=None)
    size = 52 if len(points) <= 120 else 30 if len(points) <= 400 else 16
    dots = alt.Chart(values(points)).mark_point(
        filled=True, size=size, stroke=LIGHT["card"], strokeWidth=0.7
    )
    layers: list[Any] = [dots.encode(x=x, y=y, color=color, tooltip=_tooltip(points))]
    if fresh:
        mark = {
            "filled": True,
            "shape": "diamond",
            "size": 130,
            "fill": LIGHT["card"],
            "strokeWidth": 2.0,
        }
        stroke = alt.Stroke("color:N", scale=None, legend=None)
        layers.append(
            alt.Chart(values(fresh))
            .mark_point(**mark)
            .encode(x=x, y=y, stroke=stroke, tooltip=_tooltip(fresh))
        )
    return layers


def _tooltip(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Show all words of a point."""
    import altair as alt

    names = [name for name in rows[0] if name not in ("x", "y", "color")] if rows else []
    return [alt.Tooltip(f"{name}:N") for name in names]


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
    import altair as alt

    chosen = split(fit, along, by)
    rows = [
        row | {"y": float(np.expm1(fit.residuals[row["row"] - 1]))}
        for row in _points(fit, chosen, _colours(chosen))
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
    ground = {
        "first": x_scale.low,
        "last": x_scale.high,
        "low": band[0],
        "high": band[1],
        "zero": 0.0,
    }
    base = alt.Chart(values([ground])).encode(x=x_of("first", x_scale), x2="last:Q")
    layers = [
        base.mark_rect(color=LIGHT["wash"], opacity=0.8).encode(
            y=y_of("low", y_scale), y2="high:Q"
        ),
        base.mark_rule(strokeWidth=1.3).encode(y=y_of("zero", y_scale)),
        *_point_layers(rows, [], x_scale, y_scale),
        *_named(ringed, x_scale, y_scale),
    ]
    words = f"Standard deviation {100 * fit.noise:.2g} %; the band holds two of them either way"
    words += (
        f"; ringed: more than four robust standard deviations, {len(far)} of {len(rows)}"
        if far
        else ""
    )
    return finish(
        alt.layer(*layers).properties(
            width=PLOT_WIDTH, height=240, title=alt.TitleParams(title, subtitle=words)
        )
    )


def _named(rows: Sequence[Mapping[str, Any]], x_scale: Scale, y_scale: Scale) -> list[Any]:
    """Ring points and write their names beside them, unless they are many."""
    import altair as alt

    if not rows:
        return []
    base = alt.Chart(values(rows)).encode(x=x_of("x", x_scale), y=y_of("y", y_scale))
    ring = base.mark_point(filled=False, size=150, color=LIGHT["bad"], strokeWidth=1.5)
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
    return across > 52 or abs(y_scale.place(row["y"]) - y_scale.place(other["y"])) * 240 > 14
