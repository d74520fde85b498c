"""A step between its plan and its results."""

import math
from dataclasses import dataclass

from steelyard.serve.scheduling.beam import advance_beams, best_hypotheses
from steelyard.serve.scheduling.memory import KVMemory
from steelyard.serve.scheduling.planner import Chunk
from steelyard.serve.scheduling.request import Family, Request
from steelyard.serve.scheduling.step import StepOutput, StepPlan

__all__ = ["Flight", "take_tokens"]


@dataclass(frozen=True, slots=True)
class Flight:
    """A planned step whose results have not come.

    Attributes:
        plan: the step.
        chunks: per sequence (request, first position, end position, preemptions it had seen).
    """

    plan: StepPlan
    chunks: list[tuple[Request, int, int, int]]

    @classmethod
    def of(cls, plan: StepPlan, chunks: list[Chunk]) -> "Flight":
        """Count what a plan runs as done, its tokens as unknown."""
        record = []
        for request, length in chunks:
            start = request.num_computed
            request.num_computed = start + length
            request.steps_in_flight += 1
            record.append((request, start, start + length, request.num_preemptions))
        for index, request in enumerate(plan.sampled):
            request.num_unknown += 1
            request.output_index = index
        return cls(plan, record)


def take_tokens(
    plan: StepPlan, output: StepOutput, now_s: float, memory: KVMemory
) -> list[Request]:
    """Hand a step's tokens out; families fork at their first, beams move.

    Args:
        plan: the step.
        output: one row per sampled request; rows of requests that ended since are dropped.
        now_s: time at the step's end.
        memory: memory in which forks share blocks.

    Returns:
        Sequences that ended, the root for a beam search.
    """
    ended: list[Request] = []
    beams: dict[Family, dict[str, int]] = {}
    for index, (request, token) in enumerate(
        zip(plan.sampled, output.tokens.tolist(), strict=True)
    ):
        if request.finish_reason:
            continue
        request.num_unknown -= 1
        family = request.family
        if request.drafts and not _follows(request, plan, index):
            continue
        if index in output.errors:
            ended += _refuse(request, output.errors[index])
            continue
        # Beams of one search are compared with each other, so their rows are collected first.
        if family is not None and family.is_beam:
            beams.setdefault(family, {})[request.id] = index
            continue
        if family is not None and not family.has_forked:
            _spread(family, memory)
        request.take(token, now_s, *_report(request, output, index))
        if request.finish_reason:
            ended.append(request)
            if family is not None:
                family.living.remove(request)
    for family, rows in beams.items():
        if family.root.finish_reason:
            continue
        ended += _advance(family, rows, output, now_s, memory)
    return ended


def _follows(request: Request, plan: StepPlan, index: int) -> bool:
    """Whether all guesses up to a row's were right, so that its token continues the output."""
    guess = plan.token_ids[plan.sample_rows[index]]
    return len(request.output) == plan.output_positions[index] and request.output[-1] == guess


def _refuse(request: Request, error: str) -> list[Request]:
    """End a request and all its sequences because a row could not be sampled."""
    family = request.family
    if family is None:
        request.finish_reason, request.error = "refused", error
        return [request]
    for member in family.members:
        member.finish_reason = member.finish_reason or "refused"
        member.error = error
    family.living = []
    return list(family.members)


def _report(
    request: Request, output: StepOutput, index: int
) -> tuple[float | None, list[tuple[int, float]] | None]:
    """Return what a request asks for of its token's log probability and of the alternatives."""
    count = request.params.logprobs
    if count is None or output.logprobs is None:
        return None, None
    if output.top_tokens is None or output.top_logprobs is None:
        return float(output.logprobs[index]), [] if count == 0 else None
    pairs = zip(
        output.top_tokens[index, :count].tolist(),
        output.top_logprobs[index, :count].tolist(),
        strict=True,
    )
    return float(output.logprobs[index]), list(pairs)


def _spread(family: Family, memory: KVMemory) -> None:
    """Let all members go on from where the root stands."""
    for member in family.members[1:]:
        memory.fork(family.root, member)
    family.living = list(family.members)
    family.has_forked = True


def _advance(
    family: Family, rows: dict[str, int], output: StepOutput, now_s: float, memory: KVMemory
) -> list[Request]:
    """Move the beams of a family; the result holds the root when the search has ended."""
    family.has_forked = True
    advance_beams(family, rows, output, now_s, memory.fork)
    for member in family.members:
        if member not in family.living:
            memory.drop(member)
    if family.living:
        return []
    best = best_hypotheses(family)[0]
    root = family.root
    root.output = list(best.tokens)
    root.logprobs = list(best.logprobs)
    root.cumulative_logprob = best.cumulative_logprob
    root.last_token_s = now_s
    # The root itself got no token when all its first continuations ended the output.
    if math.isnan(root.first_token_s):
        root.first_token_s = now_s
    for member in family.members:
        member.finish_reason = "stop" if best.finish_reason == "stop" else "length"
    return [root]
