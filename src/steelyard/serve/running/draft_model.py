"""Drafts of a small model that runs beside the large one, over the same block tables."""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError
from steelyard.nn.transformer import Transformer
from steelyard.serve.running.runner import TorchRunner
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.planner import lay_out
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.speculation.drafter import Drafter
from steelyard.serve.scheduling.speculation.ngram import NgramDrafter
from steelyard.serve.scheduling.states import RequestStates, common_length

__all__ = ["DraftModel", "make_drafter"]

_LONGEST = 8
_ROUNDS = 5
"""Rounds whose median time counts."""
_FORGOTTEN = 0.9
"""What is left of a round's known time when none was timed: one that was slow is tried again."""


@dataclass(slots=True)
class _Twin:
    """A request as the small model has it.

    Attributes:
        request: its prompt, its output and the guesses behind; `num_computed` counts what the small
            model has computed.
        preemptions: what the large model's request had seen then.
        blocks: its blocks then.
    """

    request: Request
    preemptions: int = 0
    blocks: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))


class DraftModel:
    """Guesses what a small model of the same vocabulary would say.

    Its pool has as many blocks as the large model's, and a sequence's table says where both keep
    its keys and values. It computes what it lacks of a sequence when it is first asked for it, at
    most one step's tokens at a time, and after that one token per guess. It draws with the seed and
    the output positions of the request, so where both models agree on the probabilities they agree
    on the token.

    Attributes:
        kind: "model".
        longest: most tokens it guesses for a sequence at once.
        round_s: seconds that one more token for all sequences takes, as measured lately.
        spent_s: seconds that the latest call of `draft` took.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), section 2.1; Chen et al. 2023 (arXiv
        2302.01318), section 3.
    """

    kind = "model"

    def __init__(self, model: Transformer, large: Architecture, config: SchedulerConfig) -> None:
        """Allocate a pool and compile what is needed.

        Args:
            model: the small model.
            large: architecture of the model that checks its guesses.
            config: limits of the engine.

        Raises:
            ConfigError: the vocabularies differ in size, or the small model has fewer positions
                than the engine's longest sequence.
            CapacityError: there is no memory for its pool.
        """
        size = model.architecture.vocab_size
        if size != large.vocab_size:
            raise ConfigError(
                f"the model that guesses has {size} tokens, but {large.name} has "
                f"{large.vocab_size}",
                hint="speculate with a model of the same tokenizer",
            )
        self.longest = _LONGEST
        self.spent_s = 0.0
        self._block_size = config.block_size
        self._budget = config.token_budget
        self._runner = TorchRunner(model, config)
        self._runner.warm_up()
        self.round_s = 1e-6  # not known yet, so that it is tried
        self._rounds: deque[float] = deque(maxlen=_ROUNDS)
        self._twins = RequestStates(_twin)

    def draft(self, requests: list[Request], lengths: list[int]) -> list[list[int]]:
        """Guess tokens, as `Drafter.draft` describes."""
        begin_s = time.perf_counter()
        asked = [
            (self._follow(request), length)
            for request, length in zip(requests, lengths, strict=True)
            if length
        ]
        known = {twin.id: len(twin.output) for twin, _ in asked}
        # The first round computes what twins lack, which may be whole prompts.
        is_timed = all(twin.num_pending <= 2 for twin, _ in asked)
        self._run([twin for twin, _ in asked])
        if is_timed:
            self._rounds.append(time.perf_counter() - begin_s)
        for depth in range(1, max(lengths, default=0)):
            # One whose prompt is not all computed yet has no guess to go on from.
            going = [
                twin
                for twin, length in asked
                if length > depth and len(twin.output) == known[twin.id] + depth
            ]
            if not going:
                break
            round_begin_s = time.perf_counter()
            self._run(going)
            self._rounds.append(time.perf_counter() - round_begin_s)
            is_timed = True
        self.round_s = float(np.median(self._rounds)) if is_timed else _FORGOTTEN * self.round_s
        self.spent_s = time.perf_counter() - begin_s
        found = {twin.id: twin.output[known[twin.id] :] for twin, _ in asked}
        return [found.get(request.id, []) for request in requests]

    def _follow(self, request: Request) -> Request:
        """Bring a request's twin to its output; what was computed of other tokens is dropped."""
        twin = self._twins.get(request)
        copy = twin.request
        same = len(copy.prompt) + common_length(copy.output, request.output)
        copy.output = list(request.output)
        copy.num_computed = min(copy.num_computed, same)
        # What the small model wrote is where it was as long as the blocks are the sequence's own.
        blocks = request.table.blocks
        held = min(len(twin.blocks), len(blocks))
        moved = np.flatnonzero(twin.blocks[:held] != blocks[:held])
        kept = int(moved[0]) if len(moved) else held
        copy.num_computed = min(copy.num_computed, kept * self._block_size)
        if twin.preemptions != request.num_preemptions:
            copy.num_computed = 0
        twin.preemptions, twin.blocks = request.num_preemptions, blocks.copy()
        copy.table = request.table
        return copy

    def _run(self, twins: list[Request]) -> None:
        """Run what twins lack, within one step's tokens; those that lack nothing get a token."""
        chunks, prompts, room = [], [], self._budget
        for twin in sorted(twins, key=lambda item: item.num_pending):
            length = min(twin.num_pending, room)
            room -= length
            if length:
                (chunks if twin.num_pending == 1 and twin.output else prompts).append(
                    (twin, length)
                )
        no_copies = np.empty((0, 2), dtype=np.int64)
        plan = lay_out([*chunks, *prompts], len(chunks), self._block_size, no_copies, [])
        output = self._runner.execute(plan)
        for twin, length in (*chunks, *prompts):
            twin.num_computed += length
        for twin, token in zip(plan.sampled, output.tokens.tolist(), strict=True):
            twin.output.append(token)


def make_drafter(
    kind: Transformer | Literal["off", "ngram"],
    large: Architecture,
    config: SchedulerConfig,
    *,
    asynchronous: bool = False,
) -> Drafter | None:
    """Make what guesses tokens for an engine.

    Args:
        kind: "off" for nothing, "ngram" for what followed the same tokens before, or a small model.
        large: architecture of the model that checks the guesses.
        config: limits of the engine.
        asynchronous: whether the engine plans ahead.

    Returns:
        The drafter, or None for "off".

    Raises:
        ConfigError: the engine plans ahead, or the small model does not fit.
        CapacityError: there is no memory for the small model's pool.
    """
    if kind == "off":
        return None
    if asynchronous:
        raise ConfigError(
            "an asynchronous engine plans a step before it knows which guesses of the one before "
            "were right",
            hint="leave speculation or asynchronous scheduling out",
        )
    return NgramDrafter() if isinstance(kind, str) else DraftModel(kind, large, config)


def _twin(request: Request) -> _Twin:
    """Return the twin of a request of which nothing is computed."""
    params = request.params
    # What edits logits by the output's history stays with the large model: a guess may be wrong.
    drawn = SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        logit_bias=params.logit_bias,
        seed=params.seed,
    )
    return _Twin(Request(id=request.id, prompt=request.prompt, params=drawn))
