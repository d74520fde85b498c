"""A request on its way through a fleet, and what a fleet asks of its replicas."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["FleetJob", "FleetReplica", "Moved", "Route"]


@dataclass(slots=True, eq=False, kw_only=True)
class FleetJob:
    """A request and when its tokens came.

    Attributes:
        arrival_s: when it comes.
        input_tokens: prompt length, at least 1.
        output_tokens: tokens to generate, at least 1.
        prompt: token ids, empty where only the length counts.
        block_ids: what its leading full blocks hold, those of the prompt and then of the output, as
            far as it is known: equal ids stand for equal tokens behind equal beginnings. Blocks
            beyond are like no other's.
        client: who sends it, whom fair policies charge.
        user: person on whose behalf the client asks.
        priority: smaller runs first where replicas serve by priority.
        expected_output: output tokens that a predictor expects, 0 for none.
        first_token_s: time of its first token, NaN before.
        last_token_s: time of its latest token, NaN before.
        first: replica that ran its prompt, -1 before.
        second: replica that decoded it, -1 where that is the same.
        preempted: how often its keys and values were dropped.
        cached_tokens: prompt tokens that were found where its prompt ran, when it was last
            admitted there.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    prompt: list[int] = field(default_factory=list)
    block_ids: Sequence[int] = ()
    client: str = "default"
    user: str = ""
    priority: int = 0
    expected_output: int = 0
    first_token_s: float = math.nan
    last_token_s: float = math.nan
    first: int = -1
    second: int = -1
    preempted: int = 0
    cached_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class Moved:
    """What became of requests in one advance of a replica.

    Attributes:
        prefilled: prompts that ran; their keys and values are kept until `release`.
        pulled: requests whose keys and values have come from elsewhere.
        finished: requests that have all their tokens.
    """

    prefilled: list[FleetJob] = field(default_factory=list)
    pulled: list[FleetJob] = field(default_factory=list)
    finished: list[FleetJob] = field(default_factory=list)


class FleetReplica(Protocol):
    """One engine of a fleet in virtual time."""

    @property
    def load(self) -> int:
        """Requests it was sent and has not finished with."""
        ...

    def submit(self, job: FleetJob, now_s: float) -> None:
        """Take a request: from outside, or one whose prompt ran on another replica."""
        ...

    def release(self, job: FleetJob) -> None:
        """Free the keys and values of a prompt that ran here: another replica has them."""
        ...

    def next_event_s(self) -> float:
        """Return when something happens here by itself, infinity for never."""
        ...

    def advance(self, now_s: float) -> Moved:
        """Let happen what is due, and start what can start."""
        ...


Route = Callable[[Sequence[FleetReplica], FleetJob], int]
"""Chooses a replica for a request: returns its index. Policies are in `serve.routing`."""
