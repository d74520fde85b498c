"""One step of a beam search over the sequences of a family."""

import math
from collections.abc import Callable

from steelyard.serve.scheduling.request import Family, Hypothesis, Request
from steelyard.serve.scheduling.step import StepOutput

__all__ = ["advance_beams", "best_hypotheses"]


def best_hypotheses(family: Family) -> list[Hypothesis]:
    """Return the `n` finished beams of the highest score, earlier found ones first among equals."""
    return sorted(family.hypotheses, key=lambda item: -item.score)[: family.root.params.n]


def advance_beams(
    family: Family,
    rows: dict[str, int],
    output: StepOutput,
    now_s: float,
    fork: Callable[[Request, Request], None],
) -> None:
    """Rank the continuations of all living beams and let the best ones live.

    Of the 2 x width likeliest continuations, those of the first `width` that end become finished
    beams; the best `width` of the others live on. Where fewer do, as under a grammar, later ones
    that end take their places. The search ends when `width` beams finished or the longest output is
    reached.

    Args:
        family: family of a beam search; its living members and finished beams change.
        rows: row of the step's output by member.
        output: output with at least 2 x width top tokens per row, or with none, as in simulations:
            then every beam goes on with its token.
        now_s: time at the step's end.
        fork: makes the second request share all blocks of the first; blocks that it held are given
            back.

    Source: Graves 2012 (arXiv 1211.3711), section 3; ends as in common libraries: the first `width`
        finished beams.
    """
    width = family.root.params.beam_width
    parents = list(family.living)
    ranked = _rank(parents, rows, output, 2 * width)
    survivors: list[tuple[int, int, float]] = []
    late: list[tuple[int, int, float]] = []
    for place, (parent, token, logprob) in enumerate(ranked):
        if _ends(parents[parent], token):
            if place < width:
                _finish(family, parents[parent], token, logprob)
            else:
                late.append((parent, token, logprob))
        elif len(survivors) < width:
            survivors.append((parent, token, logprob))
    for parent, token, logprob in late[: width - len(survivors)]:
        _finish(family, parents[parent], token, logprob)
    family.living = (
        [] if len(family.hypotheses) >= width else _replace(family, parents, survivors, now_s, fork)
    )
    if family.living and len(family.living[0].output) >= family.root.params.max_tokens:
        for beam in family.living:
            _finish(family, beam, None, 0.0)
        family.living = []


def _rank(
    parents: list[Request], rows: dict[str, int], output: StepOutput, count: int
) -> list[tuple[int, int, float]]:
    """Return the `count` likeliest (parent, token, its log probability), the likeliest first."""
    if output.top_tokens is None or output.top_logprobs is None:
        return [
            (parent, int(output.tokens[rows[beam.id]]), 0.0) for parent, beam in enumerate(parents)
        ]
    found = [
        (parent, token, logprob)
        for parent, beam in enumerate(parents)
        for token, logprob in zip(
            output.top_tokens[rows[beam.id]][:count].tolist(),
            output.top_logprobs[rows[beam.id]][:count].tolist(),
            strict=True,
        )
        if logprob > -math.inf
    ]
    return sorted(found, key=lambda item: -(parents[item[0]].cumulative_logprob + item[2]))[:count]


def _ends(beam: Request, token: int) -> bool:
    """Whether a token ends a beam."""
    params = beam.params
    return (
        not params.ignore_end
        and len(beam.output) >= params.min_tokens
        and token in params.stop_tokens
    )


def _finish(family: Family, beam: Request, token: int | None, logprob: float) -> None:
    """Keep a beam as finished: by an end token, or by its length."""
    total = beam.cumulative_logprob + logprob
    length = len(beam.output) + (token is not None)
    family.hypotheses.append(
        Hypothesis(
            tokens=list(beam.output),
            logprobs=list(beam.logprobs),
            cumulative_logprob=total,
            score=total / max(length, 1) ** family.root.params.length_penalty,
            finish_reason="length" if token is None else "stop",
        )
    )


def _replace(
    family: Family,
    parents: list[Request],
    survivors: list[tuple[int, int, float]],
    now_s: float,
    fork: Callable[[Request, Request], None],
) -> list[Request]:
    """Move survivors to members.

    A parent's first child stays in its place, which needs no copy; the others take the places of
    members without children.

    Args:
        family: family of a beam search.
        parents: beams before the step.
        survivors: (parent, token, its log probability) of each beam that lives on.
        now_s: time at the step's end.
        fork: makes the second request share all blocks of the first.

    Returns:
        The living members.
    """
    chosen = {parent for parent, _, _ in survivors}
    taken = {parents[parent].id for parent in chosen}
    spare = [member for member in family.members if member.id not in taken]
    seen: set[int] = set()
    living: list[Request] = []
    for parent, _, _ in survivors:
        source = parents[parent]
        target = source if parent not in seen else spare.pop(0)
        seen.add(parent)
        if target is not source:
            fork(source, target)
            target.output = list(source.output)
            target.logprobs = list(source.logprobs)
            target.cumulative_logprob = source.cumulative_logprob
            target.first_token_s = source.first_token_s
        living.append(target)
    # Only now, as a parent that already has its token would pass it on to its other children.
    for target, (_, token, logprob) in zip(living, survivors, strict=True):
        target.add(token, now_s, logprob)
    return living
