"""Charts that Steelyard's reports share, as Vega-Lite specs with their data inside.

Each function takes plain columns and gives a dict for `report.Chart`; the theme is laid over when
the chart is drawn.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from steelyard.errors import DataError
from steelyard.quantity import Check
from steelyard.runs.theme import LIGHT, SERIES
from steelyard.runs.wording import error_words, interval_words
from steelyard.units import pretty

__all__ = ["bars", "law_fit", "loss_curves", "matmul_rates", "predicted_measured"]

_WIDTH = 900
_MAX_POINTS = 400


def _rows(
    columns: Mapping[str, Sequence[Any]], needed: Sequence[str], what: str
) -> list[dict[str, Any]]:
    """Turn named columns into rows of plain numbers and text, checking names and lengths."""
    missing = [name for name in needed if name not in columns]
    if missing:
        raise DataError(
            f"{what}: column {missing[0]!r} is missing, given were {', '.join(columns) or 'none'}",
            hint=f"give {', '.join(needed)}",
        )
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise DataError(
            f"{what}: columns have different lengths {sorted(lengths)}",
            hint="give one value per row in every column",
        )
    plain = {name: [_plain(value) for value in values] for name, values in columns.items()}
    return [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]


def _plain(value: Any) -> Any:
    """Turn a numpy scalar into Python's own; numbers that are not finite become None."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _spec(chart: Any) -> dict[str, Any]:
    """Return an Altair chart as a plain dict without the defaults that the theme sets."""
    spec = chart.to_dict()
    return {key: value for key, value in spec.items() if key not in ("config", "$schema")}


def _si_labels(unit: str) -> str:
    """Return the Vega expression of axis labels such as "20 GB/s"; the unit is left off where prefixes would not fit it."""
    suffix = {
        "byte": "B",
        "byte/s": "B/s",
        "FLOP/s": "FLOP/s",
        "FLOP": "FLOP",
        "s": "s",
        "W": "W",
        "J": "J",
    }.get(unit, "")
    return (
        f"datum.value === 0 ? '0' : replace(format(datum.value, '~s'), /([a-zA-Zµ]?)$/, ' $1') "
        f"+ '{suffix}'"
    )


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
    import altair as alt

    seen = _rows(points, ("parameters", "tokens", "loss"), "points")
    lines = _rows(curve, ("parameters", "tokens", "loss", "low", "high"), "curve")
    unseen = _rows(target, ("parameters", "tokens", "loss"), "target") if target else []
    subtitle = "Curves per number of parameters: points measured, lines fitted, bands 80 %"
    subtitle += "; diamonds were forecast, then measured" if unseen else ""
    layers = _law_layers(seen, lines, unseen)
    return _spec(
        alt.layer(*layers).properties(
            width=_WIDTH, height=360, title=alt.TitleParams(title, subtitle=subtitle)
        )
    )


def _law_layers(
    seen: list[dict[str, Any]], lines: list[dict[str, Any]], unseen: list[dict[str, Any]]
) -> list[Any]:
    """Return the layers of `law_fit`: bands, curves, points, the curves' sizes written at their ends, open diamonds."""
    import altair as alt

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
    label = alt.Chart(alt.Data(values=ends)).mark_text(
        align="left", dx=9, fontSize=11.5, fontWeight=500
    )
    base = alt.Chart(alt.Data(values=lines)).encode(x=x, color=color)
    layers: list[Any] = [
        base.mark_area(opacity=0.16).encode(
            y=alt.Y("low:Q", title="Held-out loss, nats per token"), y2="high:Q"
        ),
        base.mark_line(strokeWidth=1.8).encode(y=y),
        alt.Chart(alt.Data(values=seen))
        .mark_point(filled=True, size=58)
        .encode(x=x, y=y, color=color, tooltip=tooltip),
        label.encode(x=x, y=y, text="size:N", color=color),
    ]
    if unseen:
        mark = {
            "filled": True,
            "shape": "diamond",
            "size": 170,
            "fill": LIGHT["card"],
            "strokeWidth": 2.2,
        }
        layers.append(
            alt.Chart(alt.Data(values=unseen))
            .mark_point(**mark)
            .encode(x=x, y=y, stroke=stroke, tooltip=tooltip)
        )
    return layers


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
    import altair as alt

    rows = [_ratio_row(check) for check in checks if check.forecast.value != 0]
    order = [row["quantity"] for row in rows]
    spread = [
        value for row in rows for value in (row["low"], row["high"], row["ratio"]) if value > 0
    ] or [1.0]
    edge = max(1.05, *spread, *(1 / value for value in spread))
    scale = alt.Scale(
        type="log", domain=[max(1 / edge**1.08, 0.02), min(edge**1.08, 50)], nice=False, clamp=True
    )
    x = alt.X(
        "low:Q",
        title="Measured over forecast",
        scale=scale,
        axis=alt.Axis(format="~r", tickCount=7, grid=True),
    )
    y = alt.Y(
        "quantity:N",
        title=None,
        sort=order,
        axis=alt.Axis(labelFontSize=12, labelLimit=260, labelColor=LIGHT["ink"], grid=False),
    )
    verdict = alt.Color(
        "verdict:N",
        title=None,
        scale=alt.Scale(domain=["inside", "outside"], range=[LIGHT["good"], LIGHT["bad"]]),
    )
    tooltip = [
        alt.Tooltip(f"{name}:N")
        for name in ("quantity", "forecast", "interval", "measured", "error", "verdict")
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(y=y)
    bars_ = base.mark_bar(height=9, cornerRadius=4.5, opacity=0.2).encode(
        x=x, x2="high:Q", color=verdict, tooltip=tooltip
    )
    dots = base.mark_point(filled=True, size=105, stroke=LIGHT["card"], strokeWidth=1.4).encode(
        x="ratio:Q", color=verdict, tooltip=tooltip
    )
    rule = (
        alt.Chart(alt.Data(values=[{"one": 1}]))
        .mark_rule(strokeDash=[3, 3], strokeWidth=1.2)
        .encode(x="one:Q")
    )
    heading = alt.TitleParams(
        title, subtitle="Bars are 80 % intervals, dots were measured; 1 is a perfect forecast"
    )
    return _spec(
        alt.layer(rule, bars_, dots).properties(width=_WIDTH, height=alt.Step(30), title=heading)
    )


def _ratio_row(check: Check) -> dict[str, Any]:
    """Return one row of `predicted_measured`."""
    forecast, unit = check.forecast, check.forecast.unit
    low, high = sorted((forecast.low / forecast.value, forecast.high / forecast.value))
    return {
        "quantity": forecast.quantity,
        "low": max(low, 1e-3),
        "high": high,
        "ratio": check.measurement.value / forecast.value,
        "verdict": "inside" if check.covered else "outside",
        "forecast": pretty(forecast.value, unit),
        "interval": interval_words(forecast.low, forecast.high, unit),
        "measured": pretty(check.measurement.value, unit),
        "error": error_words(check),
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
    import altair as alt

    rows: list[dict[str, Any]] = []
    for label, (xs, ys) in curves.items():
        points = _rows({"x": xs, "y": ys}, ("x", "y"), f"curve {label!r}")
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
        alt.Chart(alt.Data(values=rows))
        .mark_line(strokeWidth=1.6, strokeJoin="round")
        .encode(
            x=alt.X(
                "x:Q",
                title=x_title,
                scale=alt.Scale(type="log" if log_x else "linear", nice=False),
                axis=alt.Axis(format="~s", tickCount=7),
            ),
            y=alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=False)),
            color=alt.Color("run:N", title=None, sort=names, scale=alt.Scale(domain=names))
            if len(names) > 1
            else alt.value(SERIES[0][0]),
            tooltip=tooltip,
        )
    )
    return _spec(chart.properties(width=_WIDTH, height=320, title=title))


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
    import altair as alt

    rows = _rows(
        {"label": labels, "value": values, "group": groups or [""] * len(labels)},
        ("label", "value"),
        "bars",
    )
    for index, row in enumerate(rows):
        row["index"] = index
        row["words"] = "–" if row["value"] is None else pretty(row["value"], unit or "1")
    order, kinds = list(dict.fromkeys(labels)), list(dict.fromkeys(groups or []))
    y = alt.Y(
        "label:N",
        title=None,
        sort=order,
        axis=alt.Axis(labelColor=LIGHT["ink"], labelFontSize=12, labelLimit=260, grid=False),
    )
    x = alt.X(
        "value:Q",
        title=None,
        axis=alt.Axis(
            labelExpr=_si_labels(unit), tickCount=5, domain=False, ticks=False, grid=True
        ),
    )
    color = (
        alt.Color("group:N", title=None, sort=kinds, scale=alt.Scale(domain=kinds))
        if groups
        else alt.value(SERIES[0][0])
    )
    tooltip = [
        alt.Tooltip("label:N"),
        alt.Tooltip("words:N", title="value"),
        *([alt.Tooltip("group:N")] if groups else []),
    ]
    base = alt.Chart(alt.Data(values=rows))
    layers: list[Any] = [
        base.mark_bar(height={"band": 0.62}, cornerRadiusEnd=3).encode(
            y=y, x=x, color=color, order="index:Q", tooltip=tooltip
        )
    ]
    if len(order) == len(rows):
        layers.append(
            base.mark_text(align="left", dx=6, fontSize=11.5).encode(y=y, x=x, text="words:N")
        )
    return _spec(alt.layer(*layers).properties(width=_WIDTH, height=alt.Step(30), title=title))


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
    import altair as alt

    rows = _rows(points, ("dtype", "size", "flops_per_s"), "points")
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
        axis=alt.Axis(labelExpr=_si_labels("FLOP/s")),
        scale=alt.Scale(zero=True),
    )
    color = alt.Color("dtype:N", title=None, sort=kinds, scale=alt.Scale(domain=kinds))
    tooltip = [alt.Tooltip("dtype:N"), alt.Tooltip("size:Q", format="d"), alt.Tooltip("rate:N")]
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, color=color)
    band = base.mark_area(opacity=0.14).encode(y=alt.Y("low:Q", title=None), y2="high:Q")
    return _spec(
        alt.layer(band, base.mark_line(), base.mark_point(filled=True).encode(y=y, tooltip=tooltip))
        .encode(y=y)
        .properties(width=_WIDTH, height=280, title=title)
    )
