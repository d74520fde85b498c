"""Completions from bounded caches.

Requests come and go, prompts are fed in chunks beside decoding ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from steelyard.errors import ConfigError
from steelyard.serve.running.sampling import Sampler
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepPlan
from steelyard.serve.sparse.engine import SparseDecoder
from steelyard.serve.sparse.slots import SlotTable

__all__ = ["decode_plan", "generate"]


def generate(
    decoder: SparseDecoder, prompts: list[list[int]], params: SamplingParams | list[SamplingParams]
) -> list[list[int]]:
    """Complete prompts, in their order.

    Args:
        decoder: its requests are freed first.
        prompts: token ids of each, at least one.
        params: one for all, or one per prompt; a single output each (n = 1).

    Returns:
        Output tokens per prompt.

    Raises:
        ConfigError: a prompt could never finish or asks for several outputs; nothing was run.
    """
    each = params if isinstance(params, list) else [params] * len(prompts)
    requests = [
        Request(id=str(row), prompt=prompt, params=item)
        for row, (prompt, item) in enumerate(zip(prompts, each, strict=True))
    ]
    _check(decoder, requests)
    waiting, running, sampler = deque(requests), _Rows(decoder), Sampler()
    while waiting or running.requests:
        running.admit(waiting)
        running.step(sampler)
    return [request.output for request in requests]


@dataclass
class _Rows:
    """Requests in their rows of the decoder."""

    decoder: SparseDecoder

    def __post_init__(self) -> None:
        """Free every row."""
        self.requests: dict[int, Request] = {}
        for row in range(len(self.decoder.tokens)):
            self.decoder.free(row)

    def admit(self, waiting: deque[Request]) -> None:
        """Give free rows to the first requests that wait."""
        for row in range(len(self.decoder.tokens)):
            if row not in self.requests and waiting:
                self.requests[row] = waiting.popleft()

    def step(self, sampler: Sampler) -> None:
        """Feed a chunk of every prompt and the latest token of every other request; sample where a prompt is through."""
        decoder, rows = self.decoder, np.array(sorted(self.requests))
        chunks = [self._next(int(row)) for row in rows]
        logits = decoder.feed(rows, chunks)
        done = [
            index
            for index, row in enumerate(rows)
            if decoder.table.lengths[row] == self.requests[int(row)].num_tokens
        ]
        if not done:
            return
        plan = decode_plan(
            decoder.table,
            rows[done],
            [self.requests[int(row)] for row in rows[done]],
            decoder.tokens,
        )
        output = sampler.sample(logits[torch.tensor(done, device=logits.device)], plan)
        for row, token in zip(rows[done].tolist(), output.tokens.tolist(), strict=True):
            self.requests[row].take(int(token), 0.0)
            if self.requests[row].finish_reason:
                del self.requests[row]
                decoder.free(row)

    def _next(self, row: int) -> np.ndarray:
        """Return the tokens to feed next."""
        request, start = self.requests[row], int(self.decoder.table.lengths[row])
        return np.array(request.tokens(start, min(start + self.decoder.chunk, request.num_tokens)))


def decode_plan(
    table: SlotTable, rows: np.ndarray, requests: list[Request], tokens: np.ndarray
) -> StepPlan:
    """Describe the latest token of some requests as a step of the engine.

    Where the live slots are the first of each slab, as they are while one token at a time takes the
    place of another, the engine's own runner executes the plan with slabs as block tables.

    Args:
        table: after the tokens got their slots.
        rows: int64 [F].
        requests: [F] what is sampled for.
        tokens: int64 [B, T] tokens by position.

    Returns:
        A plan of F decoding sequences.
    """
    last = table.lengths[rows] - 1
    slots = (table.positions[rows] == last[:, None]).argmax(1)
    return StepPlan(
        request_ids=[request.id for request in requests],
        num_decodes=len(rows),
        token_ids=tokens[rows, last],
        positions=last,
        slot_mapping=table.slot_mapping(rows, slots),
        query_lengths=np.ones(len(rows), dtype=np.int64),
        context_lengths=table.live[rows],
        block_tables=table.block_tables(rows),
        sample_rows=np.arange(len(rows)),
        sampled=requests,
        output_positions=np.array([len(request.output) for request in requests]),
    )


def _check(decoder: SparseDecoder, requests: list[Request]) -> None:
    """Refuse what could never finish."""
    longest, size = decoder.tokens.shape[1], decoder.model.architecture.vocab_size
    for request in requests:
        needed = len(request.prompt) + request.params.max_tokens
        if not request.prompt or needed > longest:
            message = (
                f"a prompt of {len(request.prompt)} tokens with max_tokens "
                f"{request.params.max_tokens} does not fit"
            )
            raise ConfigError(
                message,
                hint=f"prompts have at least 1 token, and prompt and output together at most "
                f"{longest}",
            )
        if not (min(request.prompt) >= 0 and max(request.prompt) < size):
            raise ConfigError(
                f"token ids must be in [0, {size})",
                hint="encode the prompt with this model's tokenizer",
            )
        if request.params.num_sequences > 1:
            raise ConfigError(
                "bounded caches give one output per request", hint="use n = 1 and no beams"
            )
