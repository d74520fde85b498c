"""Charts of loads: shares by latency, tokens over time, rates and latencies over a ramp."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from steelyard.runs.charts import bars
from steelyard.serve.client.record import RequestRecord
from steelyard.serve.client.summary import LoadSummary

__all__ = ["latency_shares", "ramp_latency", "ramp_throughput", "stage_bars", "token_rate"]

_WIDTH = 900
_POINTS = 200


def _spec(chart: Any) -> dict[str, Any]:
    """Return an Altair chart as a plain dict that the reports' theme dresses."""
    return {
        key: value for key, value in chart.to_dict().items() if key not in ("config", "$schema")
    }


def _seconds_axis(values: Sequence[float]) -> Any:
    """Return a logarithmic axis of times, with marks such as "20 ms" and "1.5 s"."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    steps = (1.0, 2.0, 5.0) if high < 1e3 * low else (1.0,)
    ticks = [step * 10.0**power for power in range(-7, 5) for step in steps]
    words = (
        "datum.value >= 1 ? format(datum.value, '~r') + ' s' : "
        "datum.value >= 0.001 ? format(datum.value * 1000, '~r') + ' ms' : format(datum.value * "
        "1e6, '~r') + ' µs'"
    )
    return alt.Axis(labelExpr=words, values=[tick for tick in ticks if low <= tick <= high])


def latency_shares(
    records: Sequence[RequestRecord], *, title: str = "How fast answers came"
) -> dict[str, Any]:
    """Draw the share of requests at or below each latency.

    First token, token interval of a request, last token.

    Args:
        records: records of a load; failed ones are left out.
        title: heading.

    Returns:
        Vega-Lite spec.
    """
    whole = [record for record in records if record.is_ok]
    series = {
        "first token": [record.ttft_s for record in whole],
        "per output token": [record.tpot_s for record in whole],
        "last token": [record.e2e_s for record in whole],
    }
    rows: list[dict[str, Any]] = []
    # Quantiles at fixed shares, not one point per request: a page of a long load stays small.
    levels = np.linspace(0.0, 1.0, _POINTS)
    for name, values in series.items():
        known = [value for value in values if value > 0]
        points = np.quantile(known, levels) if known else []
        rows += [
            {"latency": float(at), "share": float(level), "kind": name}
            for at, level in zip(points, levels, strict=False)
        ]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_line(strokeWidth=1.8)
        .encode(
            x=alt.X(
                "latency:Q",
                title="Latency",
                scale=alt.Scale(type="log", nice=False),
                axis=_seconds_axis([row["latency"] for row in rows]),
            ),
            y=alt.Y(
                "share:Q",
                title="Share of requests at or below",
                axis=alt.Axis(format="%", tickCount=5),
            ),
            color=alt.Color(
                "kind:N", title=None, sort=list(series), scale=alt.Scale(domain=list(series))
            ),
            tooltip=[
                alt.Tooltip("kind:N"),
                alt.Tooltip("latency:Q", format=".3s"),
                alt.Tooltip("share:Q", format=".0%"),
            ],
        )
    )
    return _spec(chart.properties(width=_WIDTH, height=300, title=title))


def token_rate(
    records: Sequence[RequestRecord], *, title: str = "Output tokens over time"
) -> dict[str, Any]:
    """Draw output tokens per second over the load.

    A request's tokens are spread evenly over its pieces of text.

    Args:
        records: records of a load.
        title: heading.

    Returns:
        Vega-Lite spec.
    """
    times = [at_s for record in records for at_s in record.chunk_s]
    weights = [
        record.output_tokens / len(record.chunk_s) for record in records for _ in record.chunk_s
    ]
    end_s = max(times, default=1.0)
    counts, edges = np.histogram(
        times, bins=min(120, max(10, len(times) // 50)), range=(0.0, end_s), weights=weights
    )
    width_s = edges[1] - edges[0]
    middles = ((edges[:-1] + edges[1:]) / 2).tolist()
    rows = [
        {"time": at, "rate": float(count / width_s)}
        for at, count in zip(middles, counts, strict=True)
    ]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_area(opacity=0.25, line={"strokeWidth": 1.6}, interpolate="monotone")
        .encode(
            x=alt.X(
                "time:Q",
                title="Seconds from the start",
                scale=alt.Scale(nice=False),
                axis=alt.Axis(tickCount=8),
            ),
            y=alt.Y(
                "rate:Q",
                title="Output tokens per second",
                axis=alt.Axis(format=",.0f", tickCount=5),
            ),
            tooltip=[alt.Tooltip("time:Q", format=".1f"), alt.Tooltip("rate:Q", format=".3s")],
        )
    )
    return _spec(chart.properties(width=_WIDTH, height=220, title=title))


def ramp_throughput(levels: Mapping[int, LoadSummary]) -> dict[str, Any]:
    """Draw output tokens per second over the number of concurrent requests.

    Args:
        levels: summaries by concurrency.

    Returns:
        Vega-Lite spec.
    """
    rows = [
        {
            "concurrency": level,
            "rate": item.output_tokens_per_s,
            "words": f"{item.output_tokens_per_s:,.0f}",
        }
        for level, item in levels.items()
    ]
    y = alt.Y(
        "rate:Q",
        title="Output tokens per second",
        axis=alt.Axis(format=",.0f", tickCount=5),
        scale=alt.Scale(zero=True),
    )
    base = alt.Chart(alt.Data(values=rows)).encode(x=_level_axis(list(levels)), y=y)
    layers = [base.mark_line(strokeWidth=1.8), base.mark_point(filled=True, size=60)]
    layers.append(base.mark_text(dy=-12, fontSize=11.5).encode(text="words:N"))
    return _spec(
        alt.layer(*layers).properties(width=_WIDTH, height=260, title="Throughput over concurrency")
    )


def ramp_latency(levels: Mapping[int, LoadSummary]) -> dict[str, Any]:
    """Draw median and 95th percentile of latencies over the number of concurrent requests.

    Args:
        levels: summaries by concurrency.

    Returns:
        Vega-Lite spec.
    """
    rows: list[dict[str, Any]] = []
    names = {"first token": "ttft", "per output token": "tpot", "last token": "e2e"}
    for level, item in levels.items():
        for name, field in names.items():
            spread = getattr(item, field)
            if math.isfinite(spread.p50) and spread.p50 > 0:
                rows.append(
                    {"concurrency": level, "kind": name, "p50": spread.p50, "p95": spread.p95}
                )
    axis = _seconds_axis([row[point] for row in rows for point in ("p50", "p95")])
    y = alt.Y(
        "p50:Q", title="Latency", scale=alt.Scale(type="log", nice=False, padding=12), axis=axis
    )
    color = alt.Color("kind:N", title=None, sort=list(names), scale=alt.Scale(domain=list(names)))
    base = alt.Chart(alt.Data(values=rows)).encode(x=_level_axis(list(levels)), color=color)
    tooltip = [
        alt.Tooltip("kind:N"),
        alt.Tooltip("p50:Q", format=".3s"),
        alt.Tooltip("p95:Q", format=".3s"),
    ]
    layers = [
        base.mark_area(opacity=0.14).encode(y=y, y2="p95:Q"),
        base.mark_line(strokeWidth=1.8).encode(y=y),
        base.mark_point(filled=True, size=55).encode(y=y, tooltip=tooltip),
    ]
    heading = alt.TitleParams(
        "Latency over concurrency", subtitle="Lines are medians, bands reach the 95th percentile"
    )
    return _spec(alt.layer(*layers).properties(width=_WIDTH, height=300, title=heading))


def _level_axis(levels: list[int]) -> Any:
    """Return the axis of concurrency, a mark at each level."""
    scale = alt.Scale(type="log", base=2, nice=False, padding=14)
    return alt.X(
        "concurrency:Q",
        title="Concurrent requests",
        scale=scale,
        axis=alt.Axis(values=levels, format="d", grid=False),
    )


def stage_bars(summary: LoadSummary) -> dict[str, Any]:
    """Draw the mean time of each stage that the server reports, in its order.

    Args:
        summary: summary with at least one stage.

    Returns:
        Vega-Lite spec.
    """
    stages = {name.replace("_", " "): item.mean for name, item in summary.stages.items()}
    return bars(
        list(stages),
        list(stages.values()),
        title="Where the time of a request goes, mean",
        unit="s",
    )
