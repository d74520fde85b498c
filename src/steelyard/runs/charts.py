"""Charts that Steelyard's reports share, as Vega-Lite specs with their data inside.

Each function takes plain columns and returns a dict for `report.Chart`; the theme is laid over when
the chart is drawn.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from steelyard.quantity import Check
from steelyard.runs import layers
from steelyard.runs.layers import PLOT_WIDTH, finish, rows_of
from steelyard.runs.theme import LIGHT, PHONE_WIDTH, SERIES
from steelyard.runs.wording import check_words
from steelyard.units import pretty

__all__ = ["bars", "lanes", "loss_curves", "matmul_rates", "predicted_measured", "si_labels"]

_MAX_POINTS = 400

# The units to which metric prefixes are put, and how they are written behind one.
_PREFIXED = {
    "byte": "B",
    "byte/s": "B/s",
    "FLOP/s": "FLOP/s",
    "FLOP": "FLOP",
    "s": "s",
    "W": "W",
    "J": "J",
}


def si_labels(unit: str) -> str:
    """Return the Vega expression of axis labels such as "20 GB/s".

    Args:
        unit: base unit of the values.

    Returns:
        An expression for `alt.Axis(labelExpr=...)`.
    """
    # d3 writes the prefix against the number ("20G"): a space is put before the prefix, or at the
    # end where there is none, and the unit follows it. 0 has no prefix.
    return (
        f"datum.value === 0 ? '0' : replace(format(datum.value, '~s'), /([a-zA-Zµ]?)$/, ' $1') "
        f"+ '{_PREFIXED.get(unit, '')}'"
    )


def _series(field: str, names: Sequence[str]) -> Any:
    """Return the colour channel of named series, in the order of the names."""
    return alt.Color(f"{field}:N", title=None, sort=names, scale=alt.Scale(domain=names))


def predicted_measured(
    checks: Sequence[Check], title: str = "Forecast against measured"
) -> dict[str, Any]:
    """Draw measured over forecast per quantity.

    1 is a perfect forecast, the bar its 80 % interval, the dot the measured value.

    Args:
        checks: pairs; those with a forecast of 0 are left out, as they have no ratio.
        title: heading of the chart.

    Returns:
        Vega-Lite spec.
    """
    rows = [_ratio_row(check) for check in checks if check.forecast.value != 0]
    x = alt.X(
        "low:Q",
        title="Measured over forecast",
        scale=_ratio_scale(rows),
        axis=alt.Axis(format="~r", tickCount=7, grid=True),
    )
    y = _names("quantity", [row["quantity"] for row in rows])
    verdict = alt.Color(
        "verdict:N",
        title=None,
        scale=alt.Scale(domain=["inside", "outside"], range=[LIGHT["good"], LIGHT["bad"]]),
    )
    tooltip = [
        alt.Tooltip(f"{name}:N")
        for name in ("quantity", "forecast", "interval", "measured", "error", "verdict")
    ]
    base = alt.Chart(layers.values(rows)).encode(y=y)
    bars_ = base.mark_bar(height=9, cornerRadius=4.5, opacity=0.2).encode(
        x=x, x2="high:Q", color=verdict, tooltip=tooltip
    )
    dots = base.mark_point(filled=True, size=105, stroke=LIGHT["card"], strokeWidth=1.4).encode(
        x="ratio:Q", color=verdict, tooltip=tooltip
    )
    rule = (
        alt.Chart(layers.values([{"one": 1}]))
        .mark_rule(strokeDash=[3, 3], strokeWidth=1.2)
        .encode(x="one:Q")
    )
    heading = alt.TitleParams(
        title, subtitle="Bars are 80 % intervals, dots were measured; 1 is a perfect forecast"
    )
    return finish(
        alt.layer(rule, bars_, dots).properties(
            width=PLOT_WIDTH, height=alt.Step(30), title=heading
        )
    )


def _ratio_scale(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the scale of the ratios of `predicted_measured`."""
    spread = [
        value for row in rows for value in (row["low"], row["high"], row["ratio"]) if value > 0
    ] or [1.0]
    # The axis is symmetric about 1 on its logarithm, so that twice and half look equally wrong;
    # beyond a factor 50 the marks stop at the edge instead of squeezing all others together.
    edge = max(1.05, *spread, *(1 / value for value in spread))
    domain = [max(1 / edge**1.08, 0.02), min(edge**1.08, 50)]
    return alt.Scale(type="log", domain=domain, nice=False, clamp=True)


def _names(field: str, order: Sequence[str]) -> Any:
    """Return the y channel of named rows, in the order of the names."""
    axis = alt.Axis(labelColor=LIGHT["ink"], labelFontSize=12, labelLimit=260, grid=False)
    return alt.Y(f"{field}:N", title=None, sort=order, axis=axis)


def _ratio_row(check: Check) -> dict[str, Any]:
    """Return one row of `predicted_measured`."""
    forecast = check.forecast
    said, interval, measured, error, _ = check_words(check)
    # A forecast below 0 turns its interval around when both ends are divided by it.
    low, high = sorted((forecast.low / forecast.value, forecast.high / forecast.value))
    return {
        "quantity": forecast.quantity,
        "low": max(low, 1e-3),
        "high": high,
        "ratio": check.measurement.value / forecast.value,
        "verdict": "inside" if check.covered else "outside",
        "forecast": said,
        "interval": interval,
        "measured": measured,
        "error": error,
    }


def loss_curves(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    title: str = "Loss while training",
    *,
    x_title: str = "Training tokens",
    y_title: str = "Loss, nats per token",
    log_x: bool = False,
) -> dict[str, Any]:
    """Draw lines, one per run.

    Args:
        curves: label to (x, y); longer curves than 400 points are drawn as means of neighbours.
        title: heading of the chart.
        x_title: words along x.
        y_title: words along y.
        log_x: whether x is logarithmic; points at or below 0 are then left out.

    Returns:
        Vega-Lite spec.

    Raises:
        DataError: a curve's x and y differ in length.
    """
    rows: list[dict[str, Any]] = []
    for label, (xs, ys) in curves.items():
        points = rows_of({"x": xs, "y": ys}, ("x", "y"), f"curve {label!r}")
        rows += [
            {**point, "run": label}
            for point in _thinned(points)
            if point["y"] is not None and (not log_x or point["x"] > 0)
        ]
    names = list(curves)
    tooltip = [
        alt.Tooltip("run:N"),
        alt.Tooltip("x:Q", title=x_title, format=".3s"),
        alt.Tooltip("y:Q", title=y_title, format=".4f"),
    ]
    chart = (
        alt.Chart(layers.values(rows))
        .mark_line(strokeWidth=1.6, strokeJoin="round")
        .encode(
            x=alt.X(
                "x:Q",
                title=x_title,
                scale=alt.Scale(type="log" if log_x else "linear", nice=False),
                axis=alt.Axis(format="~s", tickCount=7),
            ),
            y=alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=False)),
            color=_series("run", names) if len(names) > 1 else alt.value(SERIES[0][0]),
            tooltip=tooltip,
        )
    )
    return finish(chart.properties(width=PLOT_WIDTH, height=320, title=title))


def _thinned(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average neighbours until at most 400 points are left."""
    width = math.ceil(len(points) / _MAX_POINTS)
    if width <= 1:
        return points
    groups = [
        [point for point in points[start : start + width] if point["y"] is not None]
        for start in range(0, len(points), width)
    ]
    return [
        {key: sum(point[key] for point in group) / len(group) for key in ("x", "y")}
        for group in groups
        if group
    ]


def bars(
    labels: Sequence[str],
    values: Sequence[float],
    *,
    title: str,
    unit: str = "",
    groups: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Draw horizontal bars with their values written at the end.

    Args:
        labels: one per bar; a label used more than once stacks its groups.
        values: one per bar, in `unit`.
        title: heading of the chart.
        unit: base unit of the values, for the words at the ends and the axis; empty for plain
            numbers.
        groups: colour group of each bar, None for one colour.

    Returns:
        Vega-Lite spec.

    Raises:
        DataError: the columns differ in length.
    """
    rows = rows_of(
        {"label": labels, "value": values, "group": groups or [""] * len(labels)},
        ("label", "value"),
        "bars",
    )
    for index, row in enumerate(rows):
        row["index"] = index
        row["words"] = "–" if row["value"] is None else pretty(row["value"], unit or "1")
    order = list(dict.fromkeys(labels))
    has_ends = len(order) == len(rows)  # stacked bars have no free end to write a value at
    kinds = list(dict.fromkeys(groups or []))
    y = _names("label", order)
    x = alt.X(
        "value:Q",
        title=None,
        scale=_bar_scale(rows, order) if has_ends else alt.Undefined,
        axis=alt.Axis(labelExpr=si_labels(unit), tickCount=5, domain=False, ticks=False, grid=True),
    )
    color = _series("group", kinds) if groups else alt.value(SERIES[0][0])
    tooltip = [
        alt.Tooltip("label:N"),
        alt.Tooltip("words:N", title="value"),
        *([alt.Tooltip("group:N")] if groups else []),
    ]
    base = alt.Chart(layers.values(rows))
    drawn: list[Any] = [
        base.mark_bar(height={"band": 0.62}, cornerRadiusEnd=3).encode(
            y=y, x=x, color=color, order="index:Q", tooltip=tooltip
        )
    ]
    if has_ends:
        drawn.append(
            base.mark_text(align="left", dx=6, fontSize=11.5).encode(y=y, x=x, text="words:N")
        )
    return finish(alt.layer(*drawn).properties(width=PLOT_WIDTH, height=alt.Step(30), title=title))


def _bar_scale(rows: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> Any:
    """Return a scale that leaves room for the value behind the longest bar, on a phone too."""
    # 6.2 pixels is a character's mean width in this type.
    words = max((len(row["words"]) for row in rows), default=0)
    label = max(map(len, labels), default=0)
    share = min((6.2 * words + 12) / max(PHONE_WIDTH - 24 - 6.2 * label, 1), 0.4)
    longest = max((row["value"] or 0.0 for row in rows), default=0.0)
    return alt.Scale(domainMax=longest / (1 - share)) if longest > 0 else alt.Undefined


def lanes(
    names: Sequence[str],
    starts_s: Sequence[float],
    ends_s: Sequence[float],
    *,
    groups: Sequence[str],
    title: str,
) -> dict[str, Any]:
    """Draw what happens in each lane over time, a bar from each start to its end.

    Args:
        names: lane of each bar; lanes stand in the order they first come.
        starts_s: seconds at which each bar begins.
        ends_s: seconds at which it ends.
        groups: colour group of each bar.
        title: heading of the chart.

    Returns:
        Vega-Lite spec.

    Raises:
        DataError: the columns differ in length.
    """
    columns = {"lane": names, "start": starts_s, "end": ends_s, "group": groups}
    rows = rows_of(columns, tuple(columns), "lanes")
    for row in rows:
        row["words"] = pretty(row["end"] - row["start"], "s")
    x = alt.X("start:Q", title=None, axis=alt.Axis(labelExpr=si_labels("s"), tickCount=8))
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("lane", "group", "words")]
    chart = (
        alt.Chart(layers.values(rows))
        .mark_bar(height={"band": 0.8}, stroke=LIGHT["card"], strokeWidth=0.4)
        .encode(
            x=x,
            x2="end:Q",
            y=_names("lane", list(dict.fromkeys(names))),
            color=_series("group", list(dict.fromkeys(groups))),
            tooltip=tooltip,
        )
    )
    return finish(chart.properties(width=PLOT_WIDTH, height=alt.Step(26), title=title))


def matmul_rates(
    points: Mapping[str, Sequence[Any]], title: str = "Matrix product rate of this machine"
) -> dict[str, Any]:
    """Draw measured FLOP/s over matrix size, one line per dtype, with the spread as a band.

    Args:
        points: columns "dtype", "size" (side of the square product), "flops_per_s", and optionally
            "spread" (interquartile range over median).
        title: heading of the chart.

    Returns:
        Vega-Lite spec.

    Raises:
        DataError: a column is missing or has another length.
    """
    rows = rows_of(points, ("dtype", "size", "flops_per_s"), "points")
    for row in rows:
        half = (row.get("spread") or 0.0) / 2
        row |= {
            "low": row["flops_per_s"] * max(1 - half, 0.0),
            "high": row["flops_per_s"] * (1 + half),
            "rate": pretty(row["flops_per_s"], "FLOP/s"),
        }
    kinds = list(dict.fromkeys(row["dtype"] for row in rows))
    x = alt.X(
        "size:Q",
        title="Matrix side",
        scale=alt.Scale(type="log", base=2, nice=False, padding=12),
        axis=alt.Axis(format="d", tickCount=8),
    )
    y = alt.Y(
        "flops_per_s:Q",
        title=None,
        axis=alt.Axis(labelExpr=si_labels("FLOP/s")),
        scale=alt.Scale(zero=True),
    )
    color = _series("dtype", kinds)
    tooltip = [alt.Tooltip("dtype:N"), alt.Tooltip("size:Q", format="d"), alt.Tooltip("rate:N")]
    base = alt.Chart(layers.values(rows)).encode(x=x, color=color)
    band = base.mark_area(opacity=0.14).encode(y=alt.Y("low:Q", title=None), y2="high:Q")
    return finish(
        alt.layer(band, base.mark_line(), base.mark_point(filled=True).encode(y=y, tooltip=tooltip))
        .encode(y=y)
        .properties(width=PLOT_WIDTH, height=280, title=title)
    )
