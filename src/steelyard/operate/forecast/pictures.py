"""The fan chart: what was seen, what is expected, and what an earlier forecast said of it."""

from typing import Any

import altair as alt
import numpy as np

from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet
from steelyard.runs import layers
from steelyard.runs.layers import PLOT_WIDTH, finish
from steelyard.runs.theme import SERIES

__all__ = ["fan_chart"]

_DATED_S = 1e8
"""Times before 1973 are counts of seconds from a start, not dates."""
_FANS = ((0.8, 0.16), (0.5, 0.22))


def fan_chart(
    history: SeriesSet,
    forecast: SampleForecast,
    *,
    earlier: SampleForecast | None = None,
    title: str = "",
    shown: int = 0,
) -> dict[str, Any]:
    """Draw the end of one series, the fan of its forecast, and an earlier forecast over it.

    Args:
        history: a set of one series.
        forecast: forecast of the steps behind its end.
        earlier: forecast of its last steps, made before them; drawn beside the actual line.
        title: heading; empty for the series' name.
        shown: steps of history drawn; 0 for four horizons.

    Returns:
        Vega-Lite spec.
    """
    count = int(history.lengths[0])
    first = max(count - (shown or 4 * forecast.horizon), 0)
    seen = history.row(0)[first:]
    rows = [
        {"t": _time(history, first + step), "y": float(value) if np.isfinite(value) else None}
        for step, value in enumerate(seen)
    ]
    is_dated = float(history.start_s[0]) > _DATED_S
    parts: list[Any] = []
    if earlier is not None:
        parts += _fan(history, count - earlier.horizon, earlier, 2, is_dated)
    parts += _fan(history, count, forecast, 0, is_dated)
    line = alt.Chart(layers.values(rows)).mark_line(strokeWidth=1.5, color=SERIES[1][0])
    parts.append(line.encode(x=_x("t", is_dated), y=_y("y")))
    words = "Bands hold 50 % and 80 %; the line was observed"
    if earlier is not None:
        words += "; the band behind it was forecast before"
    heading = alt.TitleParams(title or history.ids[0], subtitle=words)
    return finish(alt.layer(*parts).properties(width=PLOT_WIDTH, height=300, title=heading))


def _time(history: SeriesSet, step: int) -> float:
    """Return the time of a step: milliseconds since 1970 of a date, else the step's number."""
    start_s = float(history.start_s[0])
    if start_s > _DATED_S:
        return 1000 * (start_s + step * float(history.step_s[0]))
    return float(step)


def _fan(
    history: SeriesSet, first: int, forecast: SampleForecast, colour: int, is_dated: bool
) -> list[Any]:
    """Draw the bands and the median of a forecast that begins at step `first`."""
    low, inner_low, median, inner_high, high = forecast.quantile([0.1, 0.25, 0.5, 0.75, 0.9])
    rows = [
        {
            "t": _time(history, first + step),
            "low 80": float(low[step]),
            "high 80": float(high[step]),
            "low 50": float(inner_low[step]),
            "high 50": float(inner_high[step]),
            "median": float(median[step]),
        }
        for step in range(forecast.horizon)
    ]
    shade = SERIES[colour][0]
    base = alt.Chart(layers.values(rows)).encode(x=_x("t", is_dated))
    bands = [
        base.mark_area(opacity=opacity, color=shade).encode(
            y=_y(f"low {100 * share:.0f}"), y2=f"high {100 * share:.0f}:Q"
        )
        for share, opacity in _FANS
    ]
    middle = base.mark_line(strokeWidth=1.6, strokeDash=[5, 3], color=shade)
    return [*bands, middle.encode(y=_y("median"))]


def _x(field: str, is_dated: bool) -> Any:
    """Return the x channel: a date in UTC, or a number of steps."""
    if is_dated:
        return alt.X(f"{field}:T", title="UTC", scale=alt.Scale(type="utc", nice=False))
    return alt.X(f"{field}:Q", title="Step", scale=alt.Scale(zero=False, nice=False))


def _y(field: str) -> Any:
    """Return the y channel."""
    axis = alt.Axis(format="~s", tickCount=6, grid=True)
    return alt.Y(f"{field}:Q", title=None, scale=alt.Scale(zero=False), axis=axis)
