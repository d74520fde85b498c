"""A request for tokens: what was asked, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from steelyard.serve.kv.blocks import BlockTable
from steelyard.serve.scheduling.params import SamplingParams

if TYPE_CHECKING:
    from steelyard.serve.scheduling.family import Family

__all__ = ["Request", "RequestState"]

RequestState = Literal["waiting", "running", "swapping_out", "swapped", "swapping_in"]


@dataclass(kw_only=True, slots=True)
class Request:
    """One sequence on its way through the engine; the scheduler owns its state.

    Attributes:
        id: unique among the requests in flight.
        prompt: token ids, at least one.
        params: sampling parameters.
        arrival_s: when it came, on the driver's clock.
        priority: smaller runs first under the priority policy.
        client: who pays for it, for fair policies.
        expected_output: output tokens its sender or a predictor expects, 0 when unknown.
        order: rank of arrival, set by the scheduler; preemption does not change it.
        output: generated token ids.
        num_computed: leading tokens whose keys and values are in the pool.
        num_cached: prompt tokens taken from the prefix index when last admitted.
        num_preemptions: how often its blocks were taken away.
        table: its blocks.
        block_hashes: chain hashes of its leading full blocks, as far as known.
        first_token_s: time of the first output token, NaN before.
        last_token_s: time of the latest output token, NaN before.
        finish_reason: "stop", "length" or "abort" once it ended.
        state: where its keys and values are.
        family: the sequences that run side by side for one request, itself among them; None when it runs alone.
    """

    id: str
    prompt: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    arrival_s: float = 0.0
    priority: int = 0
    client: str = "default"
    expected_output: int = 0
    order: int = -1
    output: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_cached: int = 0
    num_preemptions: int = 0
    table: BlockTable = field(default_factory=BlockTable)
    block_hashes: list[bytes] = field(default_factory=list)
    first_token_s: float = float("nan")
    last_token_s: float = float("nan")
    finish_reason: Literal["stop", "length", "abort"] | None = None
    state: RequestState = "waiting"
    family: Family | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.prompt) + len(self.output)

    @property
    def num_pending(self) -> int:
        """Known tokens not yet run through the model; 1 while decoding."""
        return len(self.prompt) + len(self.output) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether only the latest output token is pending."""
        return bool(self.output) and self.num_pending == 1

    def tokens(self, start: int, stop: int) -> list[int]:
        """Give prompt and output tokens at positions [start, stop)."""
        size = len(self.prompt)
        if stop <= size:
            return self.prompt[start:stop]
        return self.prompt[start:size] + self.output[max(start - size, 0) : stop - size]

    def take(self, token: int, now_s: float) -> None:
        """Append a sampled token and decide whether the request has ended."""
        if not self.params.ignore_end and token in self.params.stop_tokens:
            self.finish_reason = "stop"
            if not self.output:
                self.first_token_s = now_s
            self.last_token_s = now_s
            return
        self.output.append(token)
        if len(self.output) == 1:
            self.first_token_s = now_s
        self.last_token_s = now_s
        if len(self.output) >= self.params.max_tokens:
            self.finish_reason = "length"
