"""One request of a trace: its arrival and lengths, and the same with tokens."""

from dataclasses import dataclass

from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request

__all__ = ["TraceRequest", "TraceRow", "make_request"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRow:
    """Arrival and lengths of a request; its tokens are made when they are needed.

    Attributes:
        arrival_s: seconds from the trace's start.
        input_tokens: prompt length, at least 1.
        output_tokens: tokens to generate, at least 1.
        client: who sends it.
        session: conversation it is a turn of; empty for a request of its own. Its prompt begins
            with the prompts of earlier turns.
        think_s: seconds its sender waits after the session's previous answer.
        hash_ids: one id per block of the prompt; equal ids stand for equal tokens. Empty for a
            prompt of its own.
        block_tokens: tokens per block of `hash_ids`.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    client: str = "default"
    session: str = ""
    think_s: float = 0.0
    hash_ids: tuple[int, ...] = ()
    block_tokens: int = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRequest:
    """One request of a trace with its prompt.

    Attributes:
        arrival_s: seconds from the trace's start.
        prompt: token ids.
        output_tokens: tokens to generate, whatever they are.
        client: who sends it.
        session: conversation it is a turn of, or empty.
    """

    arrival_s: float
    prompt: list[int]
    output_tokens: int
    client: str = "default"
    session: str = ""


def make_request(item: TraceRequest, row: int) -> Request:
    """Turn a trace's request into one whose output length is forced."""
    params = SamplingParams(max_tokens=item.output_tokens, ignore_end=True)
    return Request(
        id=f"trace-{row}",
        prompt=item.prompt,
        params=params,
        arrival_s=item.arrival_s,
        client=item.client,
    )
