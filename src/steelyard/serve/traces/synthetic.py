"""Synthetic traces: Poisson arrivals and lognormal lengths."""

import math

import numpy as np

from steelyard.errors import ConfigError
from steelyard.serve.traces.record import TraceRow

__all__ = ["synthetic_rows"]


def _lognormal(
    generator: np.random.Generator, mean: float, sigma: float, count: int, low: int, high: int
) -> np.ndarray:
    """Draw whole lengths with a given mean before clipping to [low, high]."""
    values = generator.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
    return np.clip(np.rint(values), low, high).astype(int)


def synthetic_rows(
    generator: np.random.Generator,
    *,
    num_requests: int,
    rate_per_s: float,
    mean_prompt: float = 160.0,
    mean_output: float = 60.0,
    sigma: float = 0.8,
    max_prompt: int = 1024,
    max_output: int = 512,
) -> list[TraceRow]:
    """Draw arrivals (Poisson) and lengths (lognormal); `with_prompts` makes requests of them.

    Args:
        generator: source of randomness.
        num_requests: rows, at least 1.
        rate_per_s: mean arrivals per second; infinity puts all at time 0.
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
    if (
        num_requests < 1
        or not rate_per_s > 0
        or min(mean_prompt, mean_output, max_prompt, max_output) < 1
        or sigma < 0
    ):
        raise ConfigError(
            f"cannot draw {num_requests} requests at {rate_per_s} per s with mean lengths "
            f"{mean_prompt} and {mean_output}",
            hint="num_requests and lengths are at least 1, the rate above 0, sigma at least 0",
        )
    gaps = generator.exponential(1.0 / rate_per_s, num_requests)
    arrivals = np.cumsum(gaps) - gaps[0]
    prompts = _lognormal(generator, mean_prompt, sigma, num_requests, 1, max_prompt)
    outputs = _lognormal(generator, mean_output, sigma, num_requests, 1, max_output)
    return [
        TraceRow(arrival_s=at_s, input_tokens=size, output_tokens=output)
        for at_s, size, output in zip(
            arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True
        )
    ]
