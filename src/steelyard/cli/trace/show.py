"""`steelyard trace show`: what a trace of requests is like."""

from pathlib import Path
from typing import Any

from steelyard.cli.bench import read_fraction
from steelyard.cli.output import Switch, print_report
from steelyard.config import to_plain
from steelyard.errors import ConfigError
from steelyard.runs.report import Block, Cell, Chart, Column, Report, Section, Table, Text
from steelyard.serve.traces import read_rows, scale_lengths
from steelyard.serve.traces.columns import TraceColumns
from steelyard.serve.traces.statistics import TraceDescription, describe_trace
from steelyard.serve.traces.statistics.bursts import Burstiness
from steelyard.units import pretty

__all__ = ["show"]


def show(
    trace: Path,
    *,
    scale: str = "1",
    cache: tuple[int, ...] = (1_000_000, 10_000_000),
    json: Switch = False,
    report: Path | None = None,
    chart: Path | None = None,
) -> None:
    """Show rates, lengths, bursts, shared prefixes and clients of a trace.

    Example: steelyard trace show day.csv --report day.html

    Args:
        trace: requests in any format that `serve bench` reads; plain or .gz.
        scale: factor on the trace's lengths, such as 1/8.
        cache: tokens of the prefix caches to try; repeat it for several.
        json: print figures as JSON.
        report: HTML file for the page.
        chart: file for the picture of the rate alone, .html, .svg, .png or .json.
    """
    if any(size < 1 for size in cache):
        raise ConfigError(f"--cache is {min(cache)}, but must be at least 1 token")
    rows = scale_lengths(read_rows(trace), read_fraction(scale, "--scale"))
    found = describe_trace(TraceColumns.of(rows), cache)
    drawn = _drawn(found) if report is not None or chart is not None else None
    if chart is not None:
        from steelyard.runs.save import save_chart

        if drawn is None:
            raise ConfigError("--chart draws rates, but all requests arrive at once")
        save_chart(drawn, chart)
    print_report(_page(trace.name, found, drawn), json=json, html=report, values=to_plain(found))


def _drawn(found: TraceDescription) -> dict[str, Any] | None:
    """Draw the rate over time."""
    from steelyard.runs.charts import loss_curves

    if found.rates is None:
        return None
    unit_s, unit = next(
        (each, name)
        for each, name in ((86_400, "Days"), (3600, "Hours"), (60, "Minutes"), (1, "Seconds"))
        if found.span_s >= 3 * each or each == 1
    )
    return loss_curves(
        {"rate": ([at_s / unit_s for at_s in found.rates.at_s], found.rates.rate_per_s)},
        f"Arrivals per second, in steps of {pretty(found.rates.step_s, 's')}",
        x_title=f"{unit} since the first request",
        y_title="Requests per second",
    )


def _page(name: str, found: TraceDescription, drawn: dict[str, Any] | None) -> Report:
    """Lay the description out."""
    sections = [Section("Lengths, tokens", [_lengths(found), Text(_paired(found))])]
    said = f"{found.requests:,} requests without arrivals"
    if found.arrivals is not None:
        rate = pretty(found.arrivals.rate_per_s, "request/s")
        said = f"{found.requests:,} requests in {pretty(found.span_s, 's')}, {rate}"
        blocks = _arrivals(found.arrivals) + ([Chart(drawn)] if drawn else [])
        sections.insert(0, Section("Arrivals", blocks))
    sections.append(Section("Shared prefixes", _sharing(found)))
    if found.clients > 1:
        sections.append(Section("Clients", _clients(found)))
    return Report(f"Trace {name}", said, sections)


def _arrivals(found: Burstiness) -> list[Block]:
    """Say how uneven arrivals are."""
    heads = ("window", "variance over mean", "correlation of neighbours", "peak")
    rows: list[list[Cell]] = [
        [
            pretty(item.window_s, "s"),
            f"{item.dispersion:.2f}",
            f"{item.autocorrelation:.2f}",
            pretty(item.peak_per_s, "request/s"),
        ]
        for item in found.windows
    ]
    blocks: list[Block] = [
        Text(
            f"Gaps vary by {found.cv:.2f} of their mean (1 is Poisson); neighbouring gaps "
            f"correlate by {found.gap_correlation:.2f}."
        )
    ]
    if found.local is not None:
        blocks.append(
            Text(
                f"Inside windows of {pretty(found.local.window_s, 's')} they vary by "
                f"{found.local.variation:.2f}; the fullest has "
                f"{pretty(found.local.busiest_per_s, 'request/s')}."
            )
        )
    if found.resolution_s:
        blocks.append(
            Text(
                f"Arrivals come in steps of about {pretty(found.resolution_s, 's')}: gaps and "
                "shorter windows say how they were rounded or batched."
            )
        )
    if rows:
        blocks.append(Table([Column(head, align="right") for head in heads], rows))
    blocks.append(Text(_day(found)))
    return blocks


def _day(found: Burstiness) -> str:
    """Say what the rate over the day is like."""
    if found.day is None:
        return "The trace spans less than two days, so it shows no shape of a day."
    hourly = found.day.hourly
    high, low = (pick(range(24), key=lambda hour: hourly[hour]) for pick in (max, min))
    return (
        f"The hour of the day explains {found.day.explained:.0%} of how hourly counts vary: "
        f"{high}:00 has {hourly[high]:.2f} times the mean rate, {low}:00 {hourly[low]:.2f} times."
    )


def _lengths(found: TraceDescription) -> Table:
    """List quantiles of lengths."""
    names = list(found.lengths["input"])
    rows: list[list[Cell]] = [
        [kind, *(f"{values[name]:,.0f}" for name in names)]
        for kind, values in found.lengths.items()
    ]
    return Table([Column(""), *(Column(name, align="right") for name in names)], rows)


def _paired(found: TraceDescription) -> str:
    """Say how input and output go together."""
    return f"Rank correlation of input and output: {found.length_correlation:.2f}."


def _sharing(found: TraceDescription) -> list[Block]:
    """Say what a prefix cache would have."""
    if found.sharing is None:
        words = "Rows have neither prefix hashes nor sessions: what prompts share is not known."
        return [Text(words)]
    shares = {f"{size:,} tokens": share for size, share in found.sharing.bounded.items()}
    shares[f"all ({found.sharing.distinct_tokens:,} tokens)"] = found.sharing.unbounded
    rows: list[list[Cell]] = [[size, f"{share:.1%}"] for size, share in shares.items()]
    told = (
        f"{found.sharing.rows_sharing:.0%} of the requests share a beginning with an earlier one"
        f"{f'; {found.sessions:,} conversations' if found.sessions else ''}."
    )
    heads = [Column("prefix cache", align="right"), Column("prompt tokens that hit", align="right")]
    return [Table(heads, rows), Text(told)]


def _clients(found: TraceDescription) -> list[Block]:
    """List the most active clients."""
    rows: list[list[Cell]] = [
        [
            item.client,
            f"{item.share:.1%}",
            f"{item.cv:.2f}",
            f"{item.input_tokens:,.0f}",
            f"{item.output_tokens:,.0f}",
        ]
        for item in found.largest
    ]
    heads = ("requests", "variation of its gaps", "mean input", "mean output")
    columns = [Column("client"), *(Column(head, align="right") for head in heads)]
    words = (
        f"{found.clients:,} clients; the most active tenth sends {found.top_tenth:.0%} of the "
        "requests."
    )
    return [Table(columns, rows), Text(words)]
