"""The charts that judge a fit: profiles of its parameters, residuals, laws compared."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from steelyard.laws.decisions.compare import Comparison
from steelyard.laws.fitting.estimate import NOT_DETERMINED
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.profile import Profile
from steelyard.laws.pictures.charts import COLOR, colours_of, point_layers, point_rows
from steelyard.laws.pictures.series import axis_words, greek, split, unit_of
from steelyard.runs.axes import Scale, tick_text
from steelyard.runs.layers import PLOT_WIDTH, finish, values, x_of, y_of
from steelyard.runs.theme import LIGHT, SERIES, ordered_colours

__all__ = ["compare_chart", "profile_chart", "residual_chart"]

_RESIDUAL_HEIGHT = 240
_CEILING = 2.4
"""Excess at which a curve is cut, above the top of the axis, so that it leaves the panel."""


def profile_chart(*profiles: Profile, title: str = "") -> dict[str, Any]:
    """Draw profiles: how much worse the best fit gets when one parameter is held.

    A flat valley stays below the line.

    Args:
        *profiles: one panel each, three or four to a row.
        title: heading; empty for a plain one.

    Returns:
        Vega-Lite spec; 1 on y is where the interval ends.
    """
    alone = len(profiles) == 1
    # Three panels to a row, or four where that leaves fewer alone.
    across = {1: 1, 2: 2, 4: 4, 7: 4, 8: 4}.get(len(profiles), 3)
    width = PLOT_WIDTH if alone else (PLOT_WIDTH - 48 * across) // across
    panels = [_profile_panel(item, width, 300 if alone else 200, not alone) for item in profiles]
    heading = title or ("Profile of the objective" if alone else "Profiles of the objective")
    words = (
        f"All other parameters at their best; the {100 * profiles[0].level:.0f} % interval is "
        f"where the curve stays below the line"
    )
    head = alt.TitleParams(heading, subtitle=words)
    if alone:
        return finish(
            panels[0].properties(title=alt.TitleParams(heading, subtitle=[words, str(profiles[0])]))
        )
    chart = finish(alt.concat(*panels, columns=across, spacing=26).properties(title=head))
    return chart | {"autosize": {"type": "pad"}}


def _profile_panel(item: Profile, width: float, height: float, many: bool) -> Any:
    """Draw one profile."""
    name = greek(item.name)
    x_scale, y_scale = _scales(item, "" if many else name, width, many)
    rows = [
        {"x": float(x), "y": min(float(y), _CEILING)}
        for x, y in zip(item.values, item.excess, strict=True)
        if x_scale.low <= x <= x_scale.high
    ]
    # An end that the valley does not have is drawn at the edge of the axis.
    low, high = (
        x_scale.clip(end) if np.isfinite(end) else x_scale.low if end < 0 else x_scale.high
        for end in (item.low, item.high)
    )
    optimum = {"low": low, "high": high, "line": 1.0, "x": x_scale.clip(item.value), "y": 0.0}
    colour = LIGHT["bad"] if item.is_flat else SERIES[0][0]
    x, y = x_of("x", x_scale), y_of("y", y_scale)
    ends = alt.Chart(values([optimum]))
    dot = ends.mark_point(filled=True, size=70, color=colour, stroke=LIGHT["card"], strokeWidth=1)
    line = ends.mark_rule(strokeDash=[4, 3], strokeWidth=1.2, color=LIGHT["faint"])
    curve = alt.Chart(values(rows)).mark_line(strokeWidth=2, clip=True, color=colour)
    layers = [
        ends.mark_rect(color=LIGHT["wash"]).encode(x=x_of("low", x_scale), x2="high:Q"),
        line.encode(y=y_of("line", y_scale)),
        curve.encode(x=x, y=y),
        dot.encode(x=x, y=y),
    ]
    heading = f"{name}: flat" if item.is_flat else name
    title = alt.TitleParams(heading, subtitle=_ends(item), fontSize=12.5, offset=8)
    return alt.layer(*layers).properties(width=width, height=height, title=title)


def _scales(item: Profile, title: str, width: float, many: bool) -> tuple[Scale, Scale]:
    """Return the axes of one profile."""
    # Worth drawing are values of small excess, and on a side without an end those within a
    # thousandfold of the optimum: a flat valley would squeeze its bottom to nothing.
    shown = item.excess < 4.0
    if (item.values > 0).all():
        shown &= (item.values < 1e3 * item.value) & (item.values > 1e-3 * item.value)
    drawn = item.values[shown]
    x_scale = Scale.over(
        drawn,
        title=title,
        kind="log" if (drawn > 0).all() and drawn.max() > 4 * drawn.min() else "linear",
        margin=0.02,
        most_ticks=max(int(width) // 50, 3),
    )
    words = "" if many else "Objective above its least"
    return x_scale, Scale(-0.1, 2.0, False, (0.0, 0.5, 1.0, 1.5, 2.0), "1", words)


def _ends(item: Profile) -> str:
    """Write the interval, open where the valley does not end."""
    if not item.is_determined:
        return NOT_DETERMINED
    value, low, high = (
        tick_text(float(f"{end:.3g}")) if np.isfinite(end) else "∞" if end > 0 else "−∞"
        for end in (item.value, item.low, item.high)
    )
    return f"{value}, {100 * item.level:.0f} % {low} to {high}"


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
    residuals = fit.residuals
    rows = [
        row | {"y": float(np.expm1(residuals[row["row"] - 1]))}
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
        words += (
            f"; ringed: more than four robust standard deviations, {len(far)} of {len(fit.target)}"
        )
    lines = [words, *chosen.drawn_words]
    return finish(
        alt.layer(*layers).properties(
            width=PLOT_WIDTH, height=_RESIDUAL_HEIGHT, title=alt.TitleParams(title, subtitle=lines)
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
    return (
        across > 52
        or abs(y_scale.place(row["y"]) - y_scale.place(other["y"])) * _RESIDUAL_HEIGHT > 14
    )


def compare_chart(
    comparison: Comparison, *, title: str = "Which law foretells larger runs"
) -> dict[str, Any]:
    """Draw how far each law erred on runs larger than it was fitted on.

    Bars the mean over the cuts, dots the cuts.

    Args:
        comparison: comparison made by `compare`.
        title: heading.

    Returns:
        Vega-Lite spec, the best law first.
    """
    shades = ordered_colours(len(comparison.sizes))
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
    means = [form.extrapolation_error for form in comparison.forms]
    scale = Scale.over(
        [0.0, *means, *(row["x"] for row in dots)],
        "fraction",
        title="Error on larger runs",
        kind="linear",
        margin=0.0,
    )
    scale = scale.ending(1.12 * scale.high)  # room for the numbers at the right end
    bars = [
        {
            "law": form.law.name,
            "x": mean,
            "zero": 0.0,
            "words": f"{100 * mean:.2f} %",
            "best": not index,
            "end": scale.high,
        }
        for index, (form, mean) in enumerate(zip(comparison.forms, means, strict=True))
    ]
    words = (
        "Bars: mean absolute log error over the cuts; dots: single cuts, dark where more runs "
        "were fitted"
    )
    heading = alt.TitleParams(title, subtitle=words)
    chart = alt.layer(*_compare_layers(bars, dots, scale))
    return finish(chart.properties(width=PLOT_WIDTH, height=alt.Step(44), title=heading))


def _compare_layers(
    bars: Sequence[Mapping[str, Any]], dots: Sequence[Mapping[str, Any]], scale: Scale
) -> list[Any]:
    """Return the bars with their numbers, the best one in colour, and the dots of the cuts."""
    axis = alt.Axis(labelColor=LIGHT["ink"], labelFontSize=12, labelLimit=260, grid=False)
    y = alt.Y("law:N", title=None, sort=[row["law"] for row in bars], axis=axis)
    base = alt.Chart(values(bars)).encode(y=y)
    colour = alt.condition("datum.best", alt.value(SERIES[0][0]), alt.value(LIGHT["axis"]))
    bar = base.mark_bar(height={"band": 0.56}, cornerRadiusEnd=3, opacity=0.55)
    number = base.mark_text(align="right", dx=-2, fontSize=11.5, fontWeight=500)
    dot = alt.Chart(values(dots)).mark_point(
        filled=True, size=42, stroke=LIGHT["card"], strokeWidth=0.8
    )
    return [
        bar.encode(x=x_of("zero", scale), x2="x:Q", color=colour),
        number.encode(x=x_of("end", scale), text="words:N"),
        dot.encode(y=y, x=x_of("x", scale), color=COLOR, tooltip=["law:N", "cut:N", "x:Q"]),
    ]
