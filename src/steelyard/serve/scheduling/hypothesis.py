"""A finished beam of a search."""

from dataclasses import dataclass

__all__ = ["Hypothesis"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """A finished beam.

    Attributes:
        tokens: output token ids, without the end token.
        logprobs: log probability of each.
        cumulative_logprob: log probability of the output and its end token.
        score: cumulative log probability over the number of tokens, with the end token, to the
            power of the length penalty.
        finish_reason: "stop" or "length".
    """

    tokens: list[int]
    logprobs: list[float]
    cumulative_logprob: float
    score: float
    finish_reason: str
