"""Traces made anew: arrivals drawn, and the rate or the lengths of a trace rescaled."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from steelyard.errors import ConfigError, TraceError
from steelyard.serve.traces.record import TraceRow

__all__ = ["draw_arrivals", "gamma_gaps", "rate_of", "rescale_rate", "scale_lengths"]


def gamma_gaps(
    generator: np.random.Generator, count: int, *, rate_per_s: float, burstiness: float = 1.0
) -> np.ndarray:
    """Draw the gaps between arrivals.

    Args:
        generator: source of randomness.
        count: gaps to draw.
        rate_per_s: mean arrivals per second, above 0; infinity gives gaps of 0.
        burstiness: shape of the Gamma distribution, 1 / (coefficient of variation)**2: 1 is
            Poisson, less comes in bursts, more is more even, infinity is a metronome.

    Returns:
        Seconds, [count].

    Raises:
        ConfigError: rate or burstiness is not positive.

    Source: ServeGen (arXiv 2505.09999), section 3: Gamma shape 1 / cv**2, scale cv**2 / rate.
    """
    if not rate_per_s > 0 or not burstiness > 0:
        raise ConfigError(
            f"cannot draw arrivals at {rate_per_s} per s with burstiness {burstiness}",
            hint="both are above 0",
        )
    if np.isinf(burstiness):
        return np.full(count, 1.0 / rate_per_s)
    return generator.gamma(burstiness, 1.0 / (rate_per_s * burstiness), count)


def draw_arrivals(
    rows: Sequence[TraceRow],
    generator: np.random.Generator,
    *,
    rate_per_s: float,
    burstiness: float = 1.0,
) -> list[TraceRow]:
    """Return rows with new arrival times, in their order; the first arrives at 0.

    Args:
        rows: rows of a trace; their arrivals are not read.
        generator: source of randomness.
        rate_per_s: mean arrivals per second.
        burstiness: shape of the gaps' distribution, as `gamma_gaps` takes it.

    Returns:
        The rows, otherwise unchanged.

    Raises:
        ConfigError: rate or burstiness is not positive.
    """
    gaps = gamma_gaps(generator, len(rows), rate_per_s=rate_per_s, burstiness=burstiness)
    arrivals = np.cumsum(gaps) - gaps[:1].sum()
    return [replace(row, arrival_s=float(at_s)) for row, at_s in zip(rows, arrivals, strict=True)]


def rate_of(rows: Sequence[TraceRow]) -> float:
    """Return the mean arrivals per second of a trace.

    Args:
        rows: rows with arrivals.

    Returns:
        Rows after the first over the time that all span; infinity when they span none.
    """
    times = [row.arrival_s for row in rows]
    span_s = max(times, default=0.0) - min(times, default=0.0)
    return (len(rows) - 1) / span_s if span_s > 0 else float("inf")


def rescale_rate(rows: Sequence[TraceRow], rate_per_s: float) -> list[TraceRow]:
    """Stretch or press the arrivals of a trace to a mean rate; bursts stay bursts.

    Args:
        rows: rows whose arrivals span some time.
        rate_per_s: mean arrivals per second, above 0.

    Returns:
        The rows; the first still arrives first, at 0.

    Raises:
        ConfigError: the rate is not positive.
        TraceError: all rows arrive at once.
    """
    if not 0 < rate_per_s < float("inf"):
        raise ConfigError(
            f"cannot rescale a trace to {rate_per_s} requests per s", hint="give a rate above 0"
        )
    now = rate_of(rows)
    if now == float("inf"):
        raise TraceError(
            "all requests of the trace arrive at once, so it has no rate to rescale",
            hint="draw arrivals with `draw_arrivals`",
        )
    start_s = min(row.arrival_s for row in rows)
    factor = now / rate_per_s
    return [
        replace(row, arrival_s=(row.arrival_s - start_s) * factor, think_s=row.think_s * factor)
        for row in rows
    ]


def scale_lengths(rows: Iterable[TraceRow], factor: float) -> Iterator[TraceRow]:
    """Multiply prompt and output lengths, row by row.

    Blocks of hashed prompts shrink alike, so that prompts share the same fraction of their tokens
    as before.

    Args:
        rows: rows of a trace.
        factor: above 0, such as 1/8.

    Yields:
        Rows with lengths rounded to whole tokens, at least 1.

    Raises:
        ConfigError: the factor is not positive.
    """
    if not 0 < factor < float("inf"):
        raise ConfigError(
            f"cannot scale lengths by {factor}", hint="give a factor above 0, such as 1/8"
        )
    for row in rows:
        if factor == 1.0:
            yield row
            continue
        block = max(1, round(row.block_tokens * factor))
        size = max(1, round(row.input_tokens * factor))
        size = min(size, block * len(row.hash_ids)) if row.hash_ids else size
        yield replace(
            row,
            input_tokens=size,
            output_tokens=max(1, round(row.output_tokens * factor)),
            block_tokens=block,
        )
