"""The chart of growth over the years: values, trends with bands, and crossings."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fitted import Fit, Prediction
from steelyard.laws.forms.growth_line import crossing_year, forecast_growth, growth_in, line_of
from steelyard.laws.pictures.charts import COLOR, curve_layers, curve_rows, positions
from steelyard.runs.axes import Scale
from steelyard.runs.layers import PLOT_WIDTH, end_labels, finish, shaded, values, x_of, y_of
from steelyard.runs.theme import LIGHT, SERIES

__all__ = ["growth_chart"]

_HEIGHT = 380
_AHEAD = 0.25


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
    if not 0 < len(trends) <= len(SERIES):
        raise FitError(f"a chart of {len(trends)} trends", hint=f"give one to {len(SERIES)}")
    lines = [line_of(trend) for trend in trends.values()]
    first, last = min(line.first for line in lines), max(line.last for line in lines)
    end = until if until is not None else last + _AHEAD * (last - first)
    points, curves = _growth_rows(trends, end, normalized, level)
    shown = [row["y"] for row in (*points, *curves)] + [
        row[key] for row in curves if row["is_inside"] for key in ("low", "high")
    ]
    shown += [] if threshold is None else [threshold]
    x_scale = Scale.over(
        [first, end], "year", title="Year", kind="linear", margin=0.02, most_ticks=9
    ).ending(end)
    y_scale = Scale.over(shown, unit, title=target, kind="log", margin=0.04, most_ticks=8)
    crossings = (
        []
        if threshold is None
        else _crossing_layers(_crossings(trends, threshold, level, end), x_scale, y_scale)
    )
    dots = alt.Chart(values(points)).mark_point(
        filled=True, size=46, stroke=LIGHT["card"], strokeWidth=0.7
    )
    layers = [
        *shaded(last, end, "beyond the points", x_scale, y_scale),
        *curve_layers(curves, x_scale, y_scale, 0.13),
        dots.encode(
            x=x_of("x", x_scale),
            y=y_of("y", y_scale),
            color=COLOR,
            tooltip=["name:N", "x:Q", "y:Q"],
        ),
        *crossings,
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
        line = line_of(trend)
        colour = SERIES[index][0]
        unit = float(forecast_growth(trend, line.first, level).value[0]) if normalized else 1.0
        points += [
            {"x": float(year), "y": float(value) / unit, "color": colour, "name": name}
            for year, value in zip(trend.inputs["year"], trend.target, strict=True)
        ]
        years = positions(line.first, line.last, end, is_log=False)
        said = forecast_growth(trend, years, level)
        said = Prediction(said.value / unit, said.low / unit, said.high / unit)
        curves += curve_rows(years, said, colour, index, line.last)
    return points, curves


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
    growth = {name: growth_in(trend, 1.0) for name, trend in trends.items()}
    said = [
        f"{name} {found.value:.2f}× a year (95 %: {found.low:.2f} to {found.high:.2f}, n "
        f"{trends[name].num_points})"
        for name, found in growth.items()
    ]
    drawn = f"Bands hold a new value with {100 * level:.0f} %"
    if threshold is not None:
        drawn += f"; bars on the dashed line are when the trend crosses it, {100 * level:.0f} %"
    return ["; ".join(said[start : start + 2]) for start in range(0, len(said), 2)] + [drawn]


def _crossings(
    trends: Mapping[str, Fit], threshold: float, level: float, end: float
) -> list[dict[str, Any]]:
    """Return the crossings that lie on the chart."""
    rows = []
    for index, (name, trend) in enumerate(trends.items()):
        with warnings.catch_warnings():
            # It would warn of a far crossing, which is not drawn anyhow.
            warnings.simplefilter("ignore", SteelyardWarning)
            found: Estimate = crossing_year(trend, threshold, level)
        if found.low < end:
            rows.append(_crossing_row(name, found, threshold, end, SERIES[index][0]))
    # Without any the threshold is drawn all the same, with a bar of no length at its end.
    nowhere = Estimate(np.inf, end, end)
    return rows or [_crossing_row("", nowhere, threshold, end, LIGHT["faint"])]


def _crossing_row(
    name: str, found: Estimate, threshold: float, end: float, colour: str
) -> dict[str, Any]:
    """Return a crossing, cut at the end of the chart."""
    return {
        "name": name,
        "x": min(found.value, end),
        "low": found.low,
        "high": min(found.high, end),
        "y": threshold,
        "color": colour,
        "is_inside": found.value <= end,
    }


def _crossing_layers(
    rows: Sequence[Mapping[str, Any]], x_scale: Scale, y_scale: Scale
) -> list[Any]:
    """Draw the threshold and when the trends cross it."""
    base = alt.Chart(values(rows)).encode(y=y_of("y", y_scale), color=COLOR)
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
