"""`steelyard trace fit`: a model of a trace, each choice made on time that was held out."""

from pathlib import Path

from steelyard.cli.bench import read_fraction
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_report
from steelyard.config import to_plain
from steelyard.errors import ConfigError
from steelyard.runs.report import Block, Cell, Column, Report, Section, Table, Text
from steelyard.serve.traces import read_rows, scale_lengths
from steelyard.serve.traces.columns import TraceColumns
from steelyard.serve.traces.models.model import TraceModel, TracePart, fit_trace
from steelyard.units import pretty

__all__ = ["fit"]


def fit(
    trace: Path,
    *,
    out: Path = Path("trace-model.json"),
    scale: str = "1",
    held: float = 0.3,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Fit arrivals, lengths and sharing to a trace; what is chosen is tried on time held out.

    Example: steelyard trace fit day.csv --out model.json

    Clients with 200 requests and more are fitted one by one. The model is then fitted to all of the
    trace, in the form that was best on the held-out end.

    Args:
        trace: requests with arrivals, in any format that `serve bench` reads; plain or .gz.
        out: file for the model.
        scale: factor on the trace's lengths, such as 1/8.
        held: share of the time, at the end, that is held out; whole days where there are three.
        json: print what was tried as JSON.
        report: HTML file for the page.
    """
    if not 0 < held < 1:
        raise ConfigError(f"--held is {held}, but must lie between 0 and 1")
    rows = scale_lengths(read_rows(trace), read_fraction(scale, "--scale"))
    made = fit_trace(TraceColumns.of(rows), source=trace.name, held=held)
    made.save(out)
    values = {
        "out": str(out),
        "rate_per_s": made.rate_per_s,
        "parts": [
            {
                "client": part.client,
                "share": part.share,
                "arrivals": to_plain(part.arrivals) | {"words": part.arrivals.words},
                "tried": part.tried,
                "tried_lengths": part.tried_lengths,
            }
            for part in made.parts
        ],
    }
    print_report(_page(made), json=json, html=report, values=values)
    if not json:
        say_next("trace", "scale", str(out), "--duration", "'1 hour'", "--out", "drawn.csv")


def _page(made: TraceModel) -> Report:
    """Say of each part what was chosen and why."""
    said = f"{made.requests:,} requests, {pretty(made.rate_per_s, 'request/s')}"
    sections = [Section(_heading(made, part), _part(part)) for part in made.parts[:6]]
    return Report(f"Model of {made.source}", said, sections)


def _heading(made: TraceModel, part: TracePart) -> str:
    """Name a part."""
    return "Arrivals" if len(made.parts) == 1 else f"{part.client}: {part.share:.1%} of requests"


def _part(part: TracePart) -> list[Block]:
    """Say what was tried for a part."""
    if not part.tried:
        return [Text(f"{part.arrivals.words}: too few requests to choose by held-out time.")]
    ranked = sorted(part.tried, key=lambda item: -item["log_likelihood"])
    rows: list[list[Cell]] = [
        [
            item["model"],
            f"{item['log_likelihood']:.4f}",
            f"{item['gain']:+.4f} ± {item['error']:.4f}",
            f"{item['distance']:.3f}",
        ]
        for item in ranked
    ]
    heads = ("log-likelihood per request", "over Poisson", "distance of gaps")
    columns = [Column("on held-out time"), *(Column(head, align="right") for head in heads)]
    return [Table(columns, rows), Text(_why(part, ranked)), Text(_body(part))]


def _why(part: TracePart, ranked: list[dict]) -> str:
    """Say why the first was chosen."""
    first, *others = ranked
    lead = first["log_likelihood"] - others[0]["log_likelihood"] if others else 0.0
    sure = "" if lead > 2 * first["error"] else ", which its standard error may hide"
    return (
        f"Chosen: {first['model']}, {lead:.4f} nats per request above the next{sure}. Its gaps on "
        f"held-out time are at most {first['distance']:.1%} of the requests from those it says. "
        f"Fitted to all: {part.arrivals.words}."
    )


def _body(part: TracePart) -> str:
    """Say what requests carry."""
    if part.prefix:
        return f"Lengths with shared blocks of {len(part.prefix.known):,} requests, drawn together."
    if part.sessions:
        return f"{len(part.sessions.turns):,} conversations, drawn whole."
    best = max(part.tried_lengths[1:], key=lambda item: item["log_likelihood"])
    plain = part.tried_lengths[0]["log_likelihood"]
    return (
        f"Lengths: {best['model']} ({best['alone']:.0%} of the draws by themselves), "
        f"{best['log_likelihood'] - plain:+.2f} nats per request over a lognormal pair."
    )
