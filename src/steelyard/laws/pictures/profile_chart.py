"""The chart of profiles: how much worse the best fit gets when one parameter is held."""

from typing import Any

import altair as alt
import numpy as np

from steelyard.laws.fitting.profile import Profile
from steelyard.laws.pictures.series import greek
from steelyard.runs.axes import Scale, tick_text
from steelyard.runs.layers import PLOT_WIDTH, finish, values, x_of, y_of
from steelyard.runs.theme import LIGHT, SERIES

__all__ = ["profile_chart"]

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
    across = _across(len(profiles))
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


def _across(count: int) -> int:
    """Return the panels per row: three, or four where that leaves fewer alone."""
    return count if count <= 3 else 4 if count in (4, 7, 8) else 3


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
    value, low, high = (
        tick_text(float(f"{end:.3g}")) if np.isfinite(end) else "∞" if end > 0 else "−∞"
        for end in (item.value, item.low, item.high)
    )
    return f"{value}, {100 * item.level:.0f} % {low} to {high}"
