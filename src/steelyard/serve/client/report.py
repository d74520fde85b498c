"""The report of a load: first numbers, latencies, rates, stages, errors, doubts, charts."""

from collections.abc import Mapping
from typing import Any

from steelyard.runs.report import Block, Cell, Chart, Column, Facts, Report, Section, Table, Text
from steelyard.serve.client import charts
from steelyard.serve.client.load import LoadResult
from steelyard.serve.client.summary import LoadSummary
from steelyard.units import pretty_duration

__all__ = ["load_report", "ramp_report"]

_PARTS = (
    ("TTFT", "ttft", "sending to first token"),
    ("TPOT", "tpot", "per request, (last - first token) / (output tokens - 1)"),
    ("ITL", "itl", "gap between two pieces of text of a request"),
    ("E2E", "e2e", "sending to last token"),
)
_RAMP_HEADS = (
    "at once",
    "tokens/s",
    "req/s",
    "good/s",
    "TTFT p50",
    "TTFT p95",
    "TPOT p50",
    "E2E p50",
    "failed",
)
_POINTS = (
    ("mean", "mean"),
    ("p50", "p50"),
    ("p90", "p90"),
    ("p95", "p95"),
    ("p99", "p99"),
    ("p99.9", "p99_9"),
)


def load_report(summary: LoadSummary, result: LoadResult, *, title: str, subtitle: str) -> Report:
    """Tell one load.

    Args:
        summary: summary of the result.
        result: its records, for the charts.
        title: heading.
        subtitle: what was sent, to whom.

    Returns:
        The report.
    """
    blocks: list[Block] = [Facts(_facts(summary)), _latencies(summary), *_doubts(summary)]
    sections = [Section("Measured by the client", blocks), *_stages(summary), *_errors(summary)]
    if summary.requests:
        drawn: list[Block] = [
            Chart(charts.latency_shares(result.records)),
            Chart(charts.token_rate(result.records)),
        ]
        sections.append(Section("Charts", drawn))
    return Report(title, subtitle, sections)


def ramp_report(
    levels: Mapping[int, tuple[LoadSummary, LoadResult]], *, title: str, subtitle: str
) -> Report:
    """Tell a ramp of concurrencies.

    Args:
        levels: summary and result by concurrency; with one level it is the report of one load.
        title: heading.
        subtitle: what was sent, to whom.

    Returns:
        The report.
    """
    if len(levels) == 1:
        summary, result = next(iter(levels.values()))
        return load_report(summary, result, title=title, subtitle=subtitle)
    summaries = {level: summary for level, (summary, _) in levels.items()}
    blocks: list[Block] = [_ramp_table(summaries)]
    blocks += [
        Text(f"At {level} concurrent requests {words}")
        for level, item in summaries.items()
        for words in item.warnings()
    ]
    drawn: list[Block] = [
        Chart(charts.ramp_throughput(summaries)),
        Chart(charts.ramp_latency(summaries)),
    ]
    top_level, (top, top_result) = max(levels.items())
    detail = load_report(top, top_result, title="", subtitle="").sections
    titled = [
        Section(f"{section.title}, {top_level} concurrent", section.blocks) for section in detail
    ]
    return Report(
        title, subtitle, [Section("Ramp", blocks), Section("Over concurrency", drawn), *titled]
    )


def _facts(summary: LoadSummary) -> list[tuple[str, str, str]]:
    """Return the cards."""
    facts = [
        ("output tokens per s", f"{summary.output_tokens_per_s:,.1f}"),
        ("all tokens per s", f"{summary.total_tokens_per_s:,.1f}"),
        ("requests per s", f"{summary.requests_per_s:.3g}"),
        ("goodput, requests per s", f"{summary.goodput_per_s:.3g} ({summary.good_fraction:.0%})"),
        ("median TTFT", pretty_duration(summary.ttft.p50)),
        ("median TPOT", pretty_duration(summary.tpot.p50)),
        ("requests", f"{summary.requests} in {pretty_duration(summary.duration_s)}"),
        ("in flight, mean", f"{summary.mean_in_flight:.1f}"),
        ("client processor share", f"{summary.client_cpu:.0%}"),
    ]
    return [(name, value, "measured") for name, value in facts]


def _latencies(summary: LoadSummary) -> Table:
    """Return the table of latencies."""
    columns = [Column("latency"), *(Column(head, align="right") for head, _ in _POINTS)]
    rows: list[list[Cell]] = [
        [name, *(pretty_duration(getattr(getattr(summary, field), point)) for _, point in _POINTS)]
        for name, field, _ in _PARTS
    ]
    return Table(columns, rows, caption="; ".join(f"{name}: {words}" for name, _, words in _PARTS))


def _doubts(summary: LoadSummary) -> list[Block]:
    """Return the warnings."""
    return [Text("**Note:** " + words) for words in summary.warnings()]


def _stages(summary: LoadSummary) -> list[Section]:
    """Return the breakdown by stage, when the server sent one."""
    if not summary.stages:
        return []
    whole = summary.e2e.mean or float("nan")
    columns = [
        Column("stage"),
        *(Column(head, align="right") for head in ("mean", "p50", "p95", "p99", "share of E2E")),
    ]
    rows: list[list[Cell]] = [
        [
            name,
            *(pretty_duration(value) for value in (item.mean, item.p50, item.p95, item.p99)),
            f"{item.mean / whole:.1%}",
        ]
        for name, item in summary.stages.items()
    ]
    total = sum(item.mean for item in summary.stages.values())
    caption = (
        f"stages as the server reports them; together {total / whole:.1%} of the client's "
        f"mean E2E latency"
    )
    return [
        Section(
            "Stages", [Table(columns, rows, caption=caption), Chart(charts.stage_bars(summary))]
        )
    ]


def _errors(summary: LoadSummary) -> list[Section]:
    """Return the counts of errors, when there were any."""
    if not summary.errors and not summary.retries:
        return []
    rows: list[list[Cell]] = [
        [kind, count] for kind, count in sorted(summary.errors.items(), key=lambda item: -item[1])
    ]
    rows += [["sent again after 429", summary.retries]] if summary.retries else []
    return [Section("Errors", [Table([Column("kind"), Column("requests")], rows)])]


def _ramp_table(levels: Mapping[int, LoadSummary]) -> Table:
    """Return one row per level."""
    rows = [_ramp_row(level, item) for level, item in levels.items()]
    return Table(
        [Column(head, align="right") for head in _RAMP_HEADS],
        rows,
        caption="at once: concurrent requests; tokens/s: output tokens; good/s: requests that "
        "kept the objective",
    )


def _ramp_row(level: int, item: LoadSummary) -> list[Any]:
    """Return the cells of one level."""
    times = (item.ttft.p50, item.ttft.p95, item.tpot.p50, item.e2e.p50)
    rates = (
        f"{item.output_tokens_per_s:,.1f}",
        f"{item.requests_per_s:.3g}",
        f"{item.goodput_per_s:.3g}",
    )
    return [level, *rates, *(pretty_duration(value) for value in times), item.failed]
