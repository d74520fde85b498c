"""Request traces: arrival times and lengths, made from distributions or read from CSV."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steelyard.errors import ConfigError, TraceError
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request

__all__ = ["TraceRequest", "load_trace", "make_request", "synthetic_trace"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRequest:
    """One row of a trace.

    Attributes:
        arrival_s: seconds from the trace's start.
        prompt: token ids.
        output_tokens: tokens to generate, whatever they are.
    """

    arrival_s: float
    prompt: list[int]
    output_tokens: int


def make_request(item: TraceRequest, row: int) -> Request:
    """Turn a row into a request whose output length is forced."""
    params = SamplingParams(max_tokens=item.output_tokens, ignore_end=True)
    return Request(id=f"trace-{row}", prompt=item.prompt, params=params, arrival_s=item.arrival_s)


def _lognormal(generator: np.random.Generator, mean: float, sigma: float, count: int, low: int, high: int) -> np.ndarray:
    """Draw whole lengths with a given mean before clipping to [low, high]."""
    values = generator.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
    return np.clip(np.rint(values), low, high).astype(int)


def synthetic_trace(
    generator: np.random.Generator,
    *,
    num_requests: int,
    rate_per_s: float,
    vocab_size: int,
    mean_prompt: float = 160.0,
    mean_output: float = 60.0,
    sigma: float = 0.8,
    max_prompt: int = 1024,
    max_output: int = 512,
) -> list[TraceRequest]:
    """Draw a trace with Poisson arrivals and lognormal lengths.

    Args:
        generator: source of randomness.
        num_requests: rows, at least 1.
        rate_per_s: mean arrivals per second; infinity puts all at time 0.
        vocab_size: prompt tokens are uniform in [0, vocab_size).
        mean_prompt: mean prompt tokens before clipping.
        mean_output: mean output tokens before clipping.
        sigma: standard deviation of the logarithm of lengths, 0 for equal ones.
        max_prompt: longest prompt.
        max_output: longest output.

    Returns:
        Rows by arrival; the first arrives at 0.

    Raises:
        ConfigError: a count, rate or mean is not positive.
    """
    if num_requests < 1 or not rate_per_s > 0 or vocab_size < 1 or min(mean_prompt, mean_output, max_prompt, max_output) < 1 or sigma < 0:
        raise ConfigError(
            f"cannot draw {num_requests} requests at {rate_per_s} per s with mean lengths {mean_prompt} and {mean_output}",
            hint="num_requests, vocab_size and lengths are at least 1, the rate above 0, sigma at least 0",
        )
    gaps = generator.exponential(1.0 / rate_per_s, num_requests)
    arrivals = np.cumsum(gaps) - gaps[0]
    prompts = _lognormal(generator, mean_prompt, sigma, num_requests, 1, max_prompt)
    outputs = _lognormal(generator, mean_output, sigma, num_requests, 1, max_output)
    return [
        TraceRequest(arrival_s=float(arrival), prompt=generator.integers(0, vocab_size, size).tolist(), output_tokens=int(output))
        for arrival, size, output in zip(arrivals, prompts, outputs, strict=True)
    ]


def load_trace(path: Path, generator: np.random.Generator, *, vocab_size: int) -> list[TraceRequest]:
    """Read a CSV with columns `arrival_s`, `prompt_tokens`, `output_tokens`; other columns are ignored.

    Args:
        path: the file, with a header row.
        generator: draws the prompts' tokens, which the file does not hold.
        vocab_size: tokens are uniform in [0, vocab_size).

    Returns:
        Rows sorted by arrival.

    Raises:
        TraceError: the file is missing, a column is, or a row has a bad value; the message names file, row and field.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            missing = {"arrival_s", "prompt_tokens", "output_tokens"} - set(reader.fieldnames or ())
            if missing:
                raise TraceError(f"{path}: no column {sorted(missing)[0]!r}", hint="the header is arrival_s,prompt_tokens,output_tokens")
            rows = [_parse_row(row, f"{path}, line {reader.line_num}") for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"cannot read {path}: {error}", hint="give a CSV file in UTF-8") from error
    if not rows:
        raise TraceError(f"{path} has no rows", hint="give at least one request")
    return [
        TraceRequest(arrival_s=arrival, prompt=generator.integers(0, vocab_size, prompt).tolist(), output_tokens=output)
        for arrival, prompt, output in sorted(rows)
    ]


def _parse_row(row: dict[str, str], where: str) -> tuple[float, int, int]:
    """Check one CSV row."""
    try:
        arrival = float(row["arrival_s"])
        prompt, output = int(row["prompt_tokens"]), int(row["output_tokens"])
    except (TypeError, ValueError) as error:
        raise TraceError(f"{where}: {error}", hint="arrival_s is a number, the lengths are whole numbers") from error
    for name, value, good in (
        ("arrival_s", arrival, math.isfinite(arrival) and arrival >= 0),
        ("prompt_tokens", prompt, prompt >= 1),
        ("output_tokens", output, output >= 1),
    ):
        if not good:
            raise TraceError(f"{where}: {name} is {value}", hint="arrival_s is finite and at least 0, lengths are at least 1")
    return arrival, prompt, output
