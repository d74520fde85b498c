"""A picture of a choice: recall and queries a second of every candidate, forecast and measured."""

from typing import Any

from steelyard.retrieve.choosing import Chosen, IndexCandidate

__all__ = ["choice_chart"]

_HEIGHT = 340
_FORECAST, _MEASURED = "forecast", "measured"


def choice_chart(chosen: Chosen, goal: float) -> dict[str, Any]:
    """Draw queries a second over recall.

    Args:
        chosen: the choice and what it was chosen from.
        goal: the recall that was asked for; a line stands there.

    Returns:
        Vega-Lite spec: a hollow point for each forecast, a filled one for each measurement, a line
        between both of one candidate, a circle around the chosen one.
    """
    import altair as alt

    from steelyard.runs import layers

    rows = [row for item in chosen.candidates for row in _rows(item, item is chosen.best)]
    if not any(row["chosen"] for row in rows):
        rows += _rows(chosen.best, True)
    lowest = min([goal, *(row["recall"] for row in rows)])
    seen = alt.Scale(domain=[max(lowest - max(0.02, 0.1 * (1 - lowest)), 0.0), 1.0], nice=False)
    shown = alt.Chart(layers.values(rows)).encode(
        x=alt.X(
            "recall:Q",
            title="share of the true neighbours that is found",
            axis=alt.Axis(format=".1%"),
            scale=seen,
        ),
        y=alt.Y("rate:Q", title="queries a second, one thread", scale=alt.Scale(zero=True)),
        color=alt.Color("index:N", title="index", sort=None),
        detail="setting:N",
        tooltip=["setting:N", "way:N", "recall:Q", "rate:Q"],
    )
    lines = shown.mark_line(strokeWidth=1, opacity=0.6)
    told = shown.mark_point(size=60, filled=False).transform_filter(f"datum.way == '{_FORECAST}'")
    came = shown.mark_point(size=70, filled=True, opacity=1).transform_filter(
        f"datum.way == '{_MEASURED}'"
    )
    best = shown.mark_point(size=300, strokeWidth=2.5, color="#b0235f", filled=False)
    best = best.encode(color=alt.value("#b0235f")).transform_filter(
        f"datum.chosen && datum.way == '{_MEASURED}'"
    )
    wanted = (
        alt.Chart(layers.values([{"recall": goal}]))
        .mark_rule(strokeDash=[4, 4], opacity=0.7)
        .encode(x=alt.X("recall:Q", scale=seen))
    )
    title = alt.TitleParams(
        "What each index finds, and how fast",
        subtitle="hollow: forecast before it was tried; filled: measured; the circle is the choice",
    )
    drawn = (wanted + lines + told + came + best).properties(
        width=layers.PLOT_WIDTH, height=_HEIGHT, title=title
    )
    return layers.finish(drawn)


def _rows(item: IndexCandidate, is_chosen: bool) -> list[dict[str, Any]]:
    """Return the points of a candidate."""
    setting = f"{item.index}, {item.nprobe} cells, {item.rerank} candidates"
    common = {"index": item.index, "setting": setting, "chosen": is_chosen}
    said = item.expected_recall or item.recall
    rows = [common | {"way": _FORECAST, "recall": said, "rate": 1 / item.forecast_s}]
    if item.measured_s:
        rows.append(common | {"way": _MEASURED, "recall": item.recall, "rate": 1 / item.measured_s})
    return rows
