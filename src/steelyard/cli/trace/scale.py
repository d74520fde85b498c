"""`steelyard trace scale`: a trace at another rate, or drawn from a model for as long as asked."""

import sys
from pathlib import Path

import numpy as np

from steelyard.cli.bench import read_fraction
from steelyard.cli.output import Switch, print_json
from steelyard.errors import ConfigError
from steelyard.serve.traces import (
    TraceRow,
    draw_arrivals,
    rate_of,
    read_rows,
    scale_lengths,
    write_rows,
)
from steelyard.serve.traces.columns import TraceColumns
from steelyard.serve.traces.models.model import TraceModel, is_model
from steelyard.serve.traces.read import has_arrivals
from steelyard.serve.traces.resample import resample_rate
from steelyard.units import parse, pretty

__all__ = ["scale"]

_MOST_ROWS = 20_000_000


def scale(
    trace: Path,
    *,
    out: Path,
    rate: str = "",
    duration: str = "",
    scale: str = "1",
    seed: int = 0,
    json: Switch = False,
) -> None:
    """Write a trace at another rate, or as long as asked from a fitted model.

    Example: steelyard trace scale day.csv --rate '20 request/s' --out busy.csv

    A trace keeps its shape over the day: conversations are left out for a lower rate, and copies
    with conversations of their own are laid over it for a higher one. Requests then come more
    evenly, as those of more senders do; a model keeps the variation of its gaps.

    Args:
        trace: requests in any format that `serve bench` reads, or a model that `trace fit` wrote.
        out: file for the trace: CSV, or JSON lines where prompts have hashes.
        rate: mean requests per second; its own when left out.
        duration: length, such as '2 h'; its own when left out. Only a model makes it longer.
        scale: factor on the lengths, such as 1/8.
        seed: seed of what is drawn.
        json: print what was written as JSON.
    """
    wanted = parse(rate, "request/s", where="--rate") if rate else None
    if wanted is not None and not 0 < wanted < np.inf:
        raise ConfigError(f"--rate is {rate}, but must be above 0")
    span_s = parse(duration, "s", where="--duration") if duration else None
    if span_s is not None and not 0 < span_s < np.inf:
        raise ConfigError(f"--duration is {duration}, but must be above 0")
    generator = np.random.default_rng(seed)
    made = (_of_model if is_model(trace) else _of_trace)(trace, wanted, span_s, generator)
    rows = list(scale_lengths(made, read_fraction(scale, "--scale")))
    if not rows:
        raise ConfigError("no request falls into the time", hint="raise --rate or --duration")
    write_rows(out, rows)
    told = {"out": str(out), "requests": len(rows), "rate_per_s": rate_of(rows), "seed": seed}
    if json:
        print_json(told)
    else:
        now = pretty(rate_of(rows), "request/s") if len(rows) > 1 else "one request"
        sys.stdout.write(f"{len(rows):,} requests at {now} in {out}, seed {seed}\n")


def _of_model(
    path: Path, rate_per_s: float | None, span_s: float | None, generator: np.random.Generator
) -> list[TraceRow]:
    """Draw from a model."""
    model = TraceModel.load(path)
    length_s = span_s or model.span_s
    count = length_s * (rate_per_s or model.rate_per_s)
    if count > _MOST_ROWS:
        raise ConfigError(
            f"{count:,.0f} requests are asked for, more than {_MOST_ROWS:,}",
            hint="lower --rate or --duration",
        )
    return model.draw(generator, duration_s=length_s, rate_per_s=rate_per_s)


def _of_trace(
    path: Path, rate_per_s: float | None, span_s: float | None, generator: np.random.Generator
) -> list[TraceRow]:
    """Resample a trace."""
    if not has_arrivals(path):
        if rate_per_s is None or span_s is not None:
            raise ConfigError(
                f"{path} has lengths without arrivals", hint="give --rate, and no --duration"
            )
        return draw_arrivals(list(read_rows(path)), generator, rate_per_s=rate_per_s)
    columns = TraceColumns.of(read_rows(path))
    if span_s is not None and span_s > columns.span_s:
        raise ConfigError(
            f"--duration is {span_s:g} s, but {path} spans {columns.span_s:g} s",
            hint="`trace fit` makes a model, from which any length can be drawn",
        )
    rows = columns.rows()
    if rate_per_s is not None:
        rows = resample_rate(columns, generator, rate_per_s=rate_per_s)
    return rows if span_s is None else [row for row in rows if row.arrival_s < span_s]
