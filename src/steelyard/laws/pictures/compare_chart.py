"""The chart of laws compared by their errors on larger runs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt

from steelyard.laws.pictures.marks import COLOR
from steelyard.runs.axes import Scale
from steelyard.runs.layers import PLOT_WIDTH, finish, values, x_of
from steelyard.runs.theme import LIGHT, SERIES, ordered_colours

if TYPE_CHECKING:
    from steelyard.laws.decisions.compare import Comparison

__all__ = ["compare_chart"]


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
    chart = alt.layer(*_layers(bars, dots, scale))
    return finish(chart.properties(width=PLOT_WIDTH, height=alt.Step(44), title=heading))


def _layers(
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
