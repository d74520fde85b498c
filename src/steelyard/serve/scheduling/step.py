"""One step of the engine: its tokens, their slots, and the sequences that get a token."""

from dataclasses import dataclass, field

import numpy as np

from steelyard.cost.step_time import step_features
from steelyard.data.tiers.transfers import Transfer
from steelyard.serve.scheduling.request import Request

__all__ = ["StepOutput", "StepPlan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutput:
    """Output of a step: one token for each of the plan's R sampled rows.

    Attributes:
        tokens: int64 [R].
        logprobs: float32 [R] natural logarithm of each chosen token's probability before
            temperature and cuts, or None when no request of the step asks for it.
        top_tokens: int64 [R, K] likeliest tokens, most likely first, K the most any request of the
            step asks for; or None.
        top_logprobs: float32 [R, K], or None; minus infinity, with token -1, where a row has fewer
            candidates or asks for none.
        errors: why a row could not be sampled, by row; its request has to end, its token means
            nothing.
    """

    tokens: np.ndarray
    logprobs: np.ndarray | None = None
    top_tokens: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None
    errors: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPlan:
    """T tokens of S sequences to run as one flattened batch; decoding sequences come first.

    A guessed token to check stands as a decoding sequence of its own behind the one it belongs to.

    Attributes:
        request_ids: [S] one per sequence.
        num_decodes: leading sequences that run only their latest output token, or a guess.
        token_ids: int64 [T].
        positions: int64 [T] position of each token in its sequence.
        slot_mapping: int64 [T] pool slot of each token's key and value.
        query_lengths: int64 [S] tokens of each sequence in this step.
        context_lengths: int64 [S] tokens in the pool after this step.
        block_tables: int64 [S, M] pool blocks, rows padded with 0.
        sample_rows: int64 [R] rows of the flattened batch whose logits yield an output token,
            rising; a row that several new sequences share is repeated.
        sampled: [R] request that gets each token, with its parameters and its tokens so far; one
            with guesses stands once for each and once more.
        output_positions: int64 [R] output tokens each of them will have before this one; with the
            seed it fixes the draw.
        feedback: int64 [F, 2] (row of this batch, index in the previous step's output) of tokens
            not known when the plan was made; their `token_ids` are 0.
        copies: int64 [C, 2] (from, to) blocks to copy first.
        transfers: copies between the tiers to start before this step.
    """

    request_ids: list[str]
    num_decodes: int
    token_ids: np.ndarray
    positions: np.ndarray
    slot_mapping: np.ndarray
    query_lengths: np.ndarray
    context_lengths: np.ndarray
    block_tables: np.ndarray
    sample_rows: np.ndarray
    sampled: list[Request]
    output_positions: np.ndarray
    feedback: np.ndarray = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    copies: np.ndarray = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    transfers: list[Transfer] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens the step runs."""
        return len(self.token_ids)

    @property
    def query_starts(self) -> np.ndarray:
        """First row of each sequence in the flattened batch and the end, int64 [S + 1]."""
        return np.concatenate([[0], np.cumsum(self.query_lengths)])

    @property
    def sampled_ids(self) -> list[str]:
        """Requests that get a token, [R]."""
        return [request.id for request in self.sampled]

    def blank_output(self) -> StepOutput:
        """Return an output of zeros, for a driver that only forces lengths."""
        return StepOutput(tokens=np.zeros(len(self.sampled), dtype=np.int64))

    def features(self) -> np.ndarray:
        """Return what the step's time depends on, `step_features` of its chunks, float64 [7]."""
        # Of a chunk of q tokens that ends at context c, the first attends c - q + 1 tokens and the
        # last c.
        queries = self.query_lengths[self.num_decodes :].astype(np.float64)
        contexts = self.context_lengths[self.num_decodes :]
        pairs = queries * (contexts - (queries - 1) / 2)
        return step_features(
            sequences=len(self.request_ids),
            prefill_tokens=queries.sum(),
            prefill_kv=pairs.sum(),
            decode_tokens=self.num_decodes,
            decode_kv=self.context_lengths[: self.num_decodes].sum(),
        )
