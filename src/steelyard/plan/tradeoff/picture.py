"""A picture of the trade-off: accuracy and performance over context, with the noise."""

import math
from typing import Any

from steelyard.plan.tradeoff.table import TradeoffTable

__all__ = ["tradeoff_chart"]

_HEIGHT = 240
_BESIDE = 240
"""Pixels of axis and legend beside a panel."""


def tradeoff_chart(table: TradeoffTable) -> dict[str, Any]:
    """Draw recall and rate of each configuration over its context, and recall over length.

    Bars are the noise bands of differences to the baseline.

    Args:
        table: the measurement.

    Returns:
        Vega-Lite spec.
    """
    import altair as alt

    from steelyard.runs import layers

    rows = [_row(table, number) for number in range(len(table.points))]
    shown = alt.Chart(layers.values(rows))
    goals = (("recall", "right answers"), ("rate", "tokens per second"))
    upper = [_panel(alt, shown, field, title) for field, title in goals]
    lines = (
        alt.Chart(layers.values(_curves(table)))
        .mark_line(point=True)
        .encode(
            x=alt.X("length:Q", title="length of the question, tokens", scale=_log(alt)),
            color=alt.Color("name:N", title=None, legend=alt.Legend(columns=3, labelLimit=300)),
        )
    )
    names = {"recall": "right answers", "loss": "loss on text, nats per token"}
    lower = [
        lines.encode(y=alt.Y("value:Q", title=words, scale=alt.Scale(zero=False)))
        .transform_filter(f"datum.kind == '{kind}'")
        .properties(width=layers.PLOT_WIDTH - _BESIDE, height=_HEIGHT - 40)
        for kind, words in names.items()
    ]
    title = alt.TitleParams(
        "Accuracy and performance over context at equal memory",
        subtitle=_legend([f"{row['number']} {row['name']}" for row in rows]),
    )
    drawn = alt.vconcat(*upper, *lower, spacing=14).properties(title=title)
    return layers.finish(drawn.resolve_scale(color="independent"))


def _panel(alt: Any, shown: Any, field: str, title: str) -> Any:
    """Draw one goal over context."""
    from steelyard.runs import layers

    kinds = alt.Color("type:N", title="better in")
    across = alt.X("context:Q", title="context that fits and is recalled, tokens", scale=_log(alt))
    # Rates differ by factors, and their bands are factors too.
    scale = alt.Scale(type="log", nice=False) if field == "rate" else alt.Scale(zero=False)
    up = alt.Y(f"{field}:Q", title=title, scale=scale)
    bars = shown.mark_rule(opacity=0.45).encode(
        x=across, y=alt.Y(f"{field}_low:Q", scale=scale), y2=alt.Y2(f"{field}_high:Q"), color=kinds
    )
    dots = shown.mark_circle(size=60).encode(
        x=across, y=up, color=kinds, tooltip=[alt.Tooltip("name:N", title="configuration")]
    )
    labels = shown.mark_text(dx=6, dy=-6, align="left", fontSize=10).encode(
        x=across, y=up, text="number:N"
    )
    return alt.layer(bars, dots, labels).properties(
        width=layers.PLOT_WIDTH - _BESIDE, height=_HEIGHT
    )


def _legend(words: list[str]) -> list[str]:
    """Return numbered names in lines of five."""
    return [", ".join(words[start : start + 5]) for start in range(0, len(words), 5)]


def _log(alt: Any) -> Any:
    """Return a logarithmic scale in powers of two."""
    return alt.Scale(type="log", base=2, nice=False, padding=20)


def _row(table: TradeoffTable, number: int) -> dict[str, Any]:
    """Return one configuration with its bands."""
    item = table.points[number]
    # The baseline's band is what it differs from itself.
    factor = item.move.performance.band
    factor = math.exp(table.noise if math.isinf(factor) else factor)
    return {
        "number": str(number + 1),
        "name": item.configuration.name,
        "type": item.move.type or "nothing",
        # A logarithm has no place for what recalls nothing: it stands left of the shortest length.
        "context": max(item.context_tokens, table.measured.plan.lengths[0] / 2),
        "recall": item.recall,
        "recall_low": item.recall - item.move.recall.band,
        "recall_high": item.recall + item.move.recall.band,
        "rate": item.tokens_per_s,
        "rate_low": item.tokens_per_s / factor,
        "rate_high": item.tokens_per_s * factor,
    }


def _curves(table: TradeoffTable) -> list[dict[str, Any]]:
    """Return recall and loss by length of the baseline and of those that differ most from it."""
    base = table.points[0]

    def apart(place: int) -> float:
        item = table.points[place]
        return max(abs(one - two) for one, two in zip(item.recall_at, base.recall_at, strict=True))

    order = sorted(range(1, len(table.points)), key=apart, reverse=True)[:5]
    rows = []
    for place in (0, *order):
        item = table.points[place]
        for kind, column in (("recall", item.recall_at), ("loss", item.loss_at)):
            rows += [
                {"name": item.configuration.name, "kind": kind, "length": length, "value": value}
                for length, value in zip(table.measured.plan.lengths, column, strict=True)
            ]
    return rows
