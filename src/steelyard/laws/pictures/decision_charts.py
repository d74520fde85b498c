"""Charts of decisions.

IsoFLOP valleys with the line of best sizes, growth over the years, and laws compared.

Each function returns a Vega-Lite spec with its data inside, as those of
`steelyard.laws.pictures.charts` do.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.growth import crossing_year, forecast_growth, growth_in, line_of
from steelyard.runs.axes import Scale, tick_text
from steelyard.runs.layers import PLOT_WIDTH, end_labels, finish, shaded, values, x_of, y_of
from steelyard.runs.theme import LIGHT, SERIES, ordered_colours

if TYPE_CHECKING:
    from steelyard.laws.decisions.compare import Comparison
    from steelyard.laws.decisions.optima.isoflop import IsoFlop

__all__ = ["compare_chart", "growth_chart", "isoflop_chart"]

_HEIGHT = 380
_PANEL = 385
_SAME_BUDGET = 0.05
_CURVE_POINTS = 60
_AHEAD = 0.25
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
    import altair as alt

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
    import altair as alt

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
        alt.Color("color:N", scale=None, legend=None),
    )
    marks = {"filled": True, "size": 110, "stroke": LIGHT["card"], "strokeWidth": 1.2}
    layers = [
        alt.Chart(values(curves))
        .mark_line(strokeWidth=1.4, clip=True, opacity=0.8)
        .encode(x=x, y=y, color=color, detail="budget:N"),
        alt.Chart(values(runs))
        .mark_point(filled=True, size=20)
        .encode(x=x, y=y, color=color, tooltip=["FLOP:N", "x:Q", "y:Q"]),
        alt.Chart(values(bottoms))
        .mark_point(**marks)
        .encode(x=x, y=y, color=color, shape=alt.Shape("shape:N", scale=None, legend=None)),
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
    import altair as alt

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
    import altair as alt

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
        alt.Color("color:N", scale=None, legend=None),
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
            shape=alt.Shape("shape:N", scale=None, legend=None),
            tooltip=["x:Q", "y:Q", "state:N"],
        ),
    ]
    return alt.layer(*layers).properties(
        width=_PANEL, height=_HEIGHT, title=_panel_title("Best size over compute")
    )


def growth_chart(
    trends: Mapping[str, Fit],
    *,
    title: str = "Growth over the years",
    target: str = "Value",
    unit: str = "1",
    until: float | None = None,
    threshold: float | None = None,
    normalized: bool = False,
    level: float = 0.8,
) -> dict[str, Any]:
    """Draw growth trends.

    Values over years, lines, bands for a new value, dashed beyond the points.

    Args:
        trends: fits of `growth` by the name written at their line, at most six.
        title: heading.
        target: words along y.
        unit: unit of the values at the marks of y: "USD", "FLOP", "parameter", or "1" for plain
            numbers.
        until: last year shown; None for a quarter of the years beyond the points.
        threshold: a value whose crossing is marked with its interval; None for none.
        normalized: divide each series by its trend in its first year, so that different units share
            the chart.
        level: probability inside bands and crossings.

    Returns:
        Vega-Lite spec.

    Raises:
        FitError: no trends, more than six, or a fit of another law.
    """
    import altair as alt

    if not 0 < len(trends) <= len(SERIES):
        raise FitError(f"a chart of {len(trends)} trends", hint=f"give one to {len(SERIES)}")
    lines = [line_of(trend) for trend in trends.values()]
    first, last = min(line.first for line in lines), max(line.last for line in lines)
    end = until if until is not None else last + _AHEAD * (last - first)
    points, curves = _growth_rows(trends, end, normalized, level)
    crossings = [] if threshold is None else _crossings(trends, threshold, level, end)
    shown = [row["y"] for row in (*points, *curves)] + [
        row[key] for row in curves if row["is_inside"] for key in ("low", "high")
    ]
    shown += [] if threshold is None else [threshold]
    x_scale = Scale.over(
        [first, end], "year", title="Year", kind="linear", margin=0.02, most_ticks=9
    ).ending(end)
    y_scale = Scale.over(shown, unit, title=target, kind="log", margin=0.04, most_ticks=8)
    layers = [
        *shaded(last, end, "beyond the points", x_scale, y_scale),
        *_growth_layers(points, curves, x_scale, y_scale),
        *_crossing_layers(crossings, x_scale, y_scale),
        *end_labels(_growth_labels(trends, curves), end, x_scale, y_scale, _HEIGHT),
    ]
    heading = alt.TitleParams(title, subtitle=_growth_words(trends, level, threshold))
    return finish(alt.layer(*layers).properties(width=PLOT_WIDTH, height=_HEIGHT, title=heading))


def _growth_rows(
    trends: Mapping[str, Fit], end: float, normalized: bool, level: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of the points and of the curves."""
    points: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for index, (name, trend) in enumerate(trends.items()):
        line, colour = line_of(trend), SERIES[index][0]
        unit = float(forecast_growth(trend, line.first, level).value[0]) if normalized else 1.0
        points += [
            {"x": float(year), "y": float(value) / unit, "color": colour, "name": name}
            for year, value in zip(trend.inputs["year"], trend.target, strict=True)
        ]
        years = np.unique(
            np.concatenate(
                [
                    np.linspace(line.first, line.last, 40),
                    np.linspace(line.last, max(end, line.last), 30),
                ]
            )
        )
        said = forecast_growth(trend, years, level)
        for year, *ends in zip(years, said.value, said.low, said.high, strict=True):
            value, low, high = (float(item) / unit for item in ends)
            row = {
                "x": float(year),
                "y": value,
                "low": low,
                "high": high,
                "color": colour,
                "series": index,
            }
            curves.append(
                row | {"is_inside": bool(year <= line.last), "is_beyond": bool(year >= line.last)}
            )
    return points, curves


def _growth_layers(
    points: Sequence[Mapping[str, Any]],
    curves: Sequence[Mapping[str, Any]],
    x_scale: Scale,
    y_scale: Scale,
) -> list[Any]:
    """Return bands, lines, dashed beyond the points of their series, and dots."""
    import altair as alt

    color = alt.Color("color:N", scale=None, legend=None)
    x, y = x_of("x", x_scale), y_of("y", y_scale)
    clipped = [
        {**row, "low": y_scale.clip(row["low"]), "high": y_scale.clip(row["high"])}
        for row in curves
    ]
    base = alt.Chart(values(clipped)).encode(x=x, color=color, detail="series:N")
    dots = alt.Chart(values(points)).mark_point(
        filled=True, size=46, stroke=LIGHT["card"], strokeWidth=0.7
    )
    return [
        base.mark_area(opacity=0.13).encode(y=y_of("low", y_scale), y2="high:Q"),
        base.mark_line(strokeWidth=1.9).transform_filter("datum.is_inside").encode(y=y),
        base.mark_line(strokeWidth=1.7, strokeDash=[5, 4], strokeCap="butt")
        .transform_filter("datum.is_beyond")
        .encode(y=y),
        dots.encode(x=x, y=y, color=color, tooltip=["name:N", "x:Q", "y:Q"]),
    ]


def _growth_labels(
    trends: Mapping[str, Fit], curves: Sequence[Mapping[str, Any]]
) -> list[tuple[str, float, str]]:
    """Write name and growth at the end of each line."""
    labels = []
    for index, (name, trend) in enumerate(trends.items()):
        last = [row for row in curves if row["series"] == index][-1]
        period = trend.law.term.period_years  # pyright: ignore[reportAttributeAccessIssue]
        words = "year" if period == 1 else f"{period:g} years"
        labels.append(
            (f"{name} {growth_in(trend, period).value:.3g}× / {words}", last["y"], SERIES[index][0])
        )
    return labels


def _growth_words(trends: Mapping[str, Fit], level: float, threshold: float | None) -> list[str]:
    """Say the growth of each series with its interval, and what is drawn."""
    said = []
    for name, trend in trends.items():
        found = growth_in(trend, 1.0)
        said.append(
            f"{name} {found.value:.2f}× a year (95 %: {found.low:.2f} to {found.high:.2f}, n "
            f"{trend.num_points})"
        )
    drawn = f"Bands hold a new value with {100 * level:.0f} %"
    drawn += (
        ""
        if threshold is None
        else f"; bars on the dashed line are when the trend crosses it, {100 * level:.0f} %"
    )
    return ["; ".join(said[start : start + 2]) for start in range(0, len(said), 2)] + [drawn]


def _crossings(
    trends: Mapping[str, Fit], threshold: float, level: float, end: float
) -> list[dict[str, Any]]:
    """Return the crossings that lie on the chart."""
    rows = []
    for index, (name, trend) in enumerate(trends.items()):
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", SteelyardWarning
            )  # a crossing beyond the chart is not drawn
            found: Estimate = crossing_year(trend, threshold, level)
        if found.low < end:
            row = {
                "name": name,
                "x": min(found.value, end),
                "low": found.low,
                "high": min(found.high, end),
                "y": threshold,
            }
            rows.append(row | {"color": SERIES[index][0], "is_inside": found.value <= end})
    return rows or [
        {
            "name": "",
            "x": end,
            "low": end,
            "high": end,
            "y": threshold,
            "color": LIGHT["faint"],
            "is_inside": False,
        }
    ]


def _crossing_layers(
    rows: Sequence[Mapping[str, Any]], x_scale: Scale, y_scale: Scale
) -> list[Any]:
    """Draw the threshold and when the trends cross it."""
    import altair as alt

    if not rows:
        return []
    base = alt.Chart(values(rows)).encode(
        y=y_of("y", y_scale), color=alt.Color("color:N", scale=None, legend=None)
    )
    rule = alt.Chart(values(rows[:1])).mark_rule(
        strokeDash=[3, 3], strokeWidth=1.2, color=LIGHT["faint"]
    )
    return [
        rule.encode(y=y_of("y", y_scale)),
        base.mark_rule(strokeWidth=5, opacity=0.45).encode(x=x_of("low", x_scale), x2="high:Q"),
        base.mark_point(filled=True, size=80, stroke=LIGHT["card"], strokeWidth=1.2)
        .transform_filter("datum.is_inside")
        .encode(x=x_of("x", x_scale), tooltip=["name:N", "x:Q", "low:Q", "high:Q"]),
    ]


def compare_chart(
    comparison: "Comparison", *, title: str = "Which law foretells larger runs"
) -> dict[str, Any]:
    """Draw how far each law erred on runs larger than it was fitted on.

    Bars the mean over the cuts, dots the cuts.

    Args:
        comparison: comparison made by `compare`.
        title: heading.

    Returns:
        Vega-Lite spec, the best law first.
    """
    import altair as alt

    shades = ordered_colours(len(comparison.sizes))
    names = [form.law.name for form in comparison.forms]
    bars = [
        {
            "law": form.law.name,
            "x": form.extrapolation_error,
            "zero": 0.0,
            "words": f"{100 * form.extrapolation_error:.2f} %",
            "best": not index,
        }
        for index, form in enumerate(comparison.forms)
    ]
    dots = [
        {
            "law": form.law.name,
            "x": float(error),
            "color": shade,
            "cut": f"fitted up to size {size:.3g}",
        }
        for form in comparison.forms
        for error, shade, size in zip(form.errors, shades, comparison.sizes, strict=True)
    ]
    scale = Scale.over(
        [0.0, *(row["x"] for row in (*bars, *dots))],
        "fraction",
        title="Error on larger runs",
        kind="linear",
        margin=0.0,
    )
    scale = scale.ending(1.12 * scale.high)
    bars = [row | {"end": scale.high} for row in bars]
    y = alt.Y(
        "law:N",
        title=None,
        sort=names,
        axis=alt.Axis(labelColor=LIGHT["ink"], labelFontSize=12, labelLimit=260, grid=False),
    )
    base = alt.Chart(values(bars)).encode(y=y)
    colour = alt.condition("datum.best", alt.value(SERIES[0][0]), alt.value(LIGHT["axis"]))
    layers = [
        base.mark_bar(height={"band": 0.56}, cornerRadiusEnd=3, opacity=0.55).encode(
            x=x_of("zero", scale), x2="x:Q", color=colour
        ),
        base.mark_text(align="right", dx=-2, fontSize=11.5, fontWeight=500).encode(
            x=x_of("end", scale), text="words:N"
        ),
        alt.Chart(values(dots))
        .mark_point(filled=True, size=42, stroke=LIGHT["card"], strokeWidth=0.8)
        .encode(
            y=y,
            x=x_of("x", scale),
            color=alt.Color("color:N", scale=None, legend=None),
            tooltip=["law:N", "cut:N", "x:Q"],
        ),
    ]
    words = (
        "Bars: mean absolute log error over the cuts; dots: single cuts, dark where more runs "
        "were fitted"
    )
    return finish(
        alt.layer(*layers).properties(
            width=PLOT_WIDTH, height=alt.Step(44), title=alt.TitleParams(title, subtitle=words)
        )
    )
