"""What the engines of a race are asked, and the figures taken from their answers."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

__all__ = ["Load", "figure", "loads", "stream_load"]


@dataclass(frozen=True)
class Load:
    """Requests with forced output lengths.

    Attributes:
        prompts: token ids of each.
        lengths: output tokens of each.
        arrivals: seconds after the start.
        at_once: most in flight; the others wait, which counts as theirs.
    """

    prompts: list[list[int]]
    lengths: list[int]
    arrivals: list[float]
    at_once: int

    def work(self) -> dict[str, Any]:
        """Return the line that asks for it."""
        return asdict(self)


def loads(count: int, vocab_size: int, seed: int) -> dict[str, Load]:
    """Draw the loads of one round; new tokens each time, so that no cache knows them.

    Args:
        count: requests of the batch.
        vocab_size: size of the vocabulary.
        seed: of the draws.

    Returns:
        "batch": 64 to 512 tokens in and 16 to 128 out, 32 at once; "decode": one request of 64
        tokens in and 64 out; "prompt": 1,500 tokens in and one out; "prefix": 16 requests that
        share their first 400 tokens, 32 more in and 32 out.
    """
    draw = np.random.default_rng(seed)
    shared = _tokens(draw, 400, vocab_size)
    return {
        "batch": _drawn(draw, count, vocab_size, [0.0] * count, 32),
        "decode": _even([_tokens(draw, 64, vocab_size)], 64),
        "prompt": _even([_tokens(draw, 1500, vocab_size)], 1),
        "prefix": _even([shared + _tokens(draw, 32, vocab_size) for _ in range(16)], 32),
    }


def stream_load(streams: int, count: int, requests_per_s: float, vocab_size: int) -> Load:
    """Draw requests as those of the batch that arrive in a Poisson process.

    Args:
        streams: most in flight.
        count: requests.
        requests_per_s: mean rate of arrivals.
        vocab_size: size of the vocabulary.
    """
    draw = np.random.default_rng(streams)
    arrivals = draw.exponential(1 / requests_per_s, count).cumsum()
    return _drawn(draw, count, vocab_size, arrivals.tolist(), streams)


def figure(name: str, load: Load, answer: dict[str, list[float]]) -> float:
    """Take the figure of a load from the times of its first and last tokens.

    Args:
        name: of the load.
        load: the requests.
        answer: seconds of each, "first" and "last".

    Returns:
        Output tokens per second of "batch" and "prefix", seconds per output token of "decode",
        seconds to the first token of "prompt", and their 99th percentile of anything else.
    """
    first, last = np.array(answer["first"]), np.array(answer["last"])
    if name in ("batch", "prefix"):
        return sum(load.lengths) / float(last.max())
    if name == "decode":
        return float(last[0] - first[0]) / (load.lengths[0] - 1)
    return float(np.quantile(first - np.array(load.arrivals), 0.99))


def _drawn(
    draw: np.random.Generator, count: int, vocab_size: int, arrivals: list[float], at_once: int
) -> Load:
    """Draw lengths and prompts."""
    prompts = [_tokens(draw, size, vocab_size) for size in draw.integers(64, 513, count)]
    return Load(prompts, draw.integers(16, 129, count).tolist(), arrivals, at_once)


def _even(prompts: list[list[int]], length: int) -> Load:
    """Ask for outputs of one length, all at once."""
    count = len(prompts)
    return Load(prompts, [length] * count, [0.0] * count, count)


def _tokens(draw: np.random.Generator, size: int, vocab_size: int) -> list[int]:
    """Draw token ids beyond the special ones."""
    return draw.integers(3, vocab_size, size).tolist()
