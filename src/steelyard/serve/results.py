"""Results of an engine: pieces of outputs while they come, whole outputs, counters."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from steelyard.serve.scheduling.beam import best_hypotheses
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepOutput, StepPlan

__all__ = [
    "Completion",
    "Delta",
    "EngineStats",
    "FinishedStep",
    "Output",
    "StepResult",
    "whole_outputs",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """New tokens of one output.

    Attributes:
        request_id: id of the request as it was asked.
        index: rank of the output among those of the request.
        tokens: new token ids; the stop token that ended it is not among them. Empty when only the
            end is told.
        logprobs: natural logarithm of the probability of each new token; empty when not asked for.
        top_logprobs: (token, log probability) pairs of the likeliest alternatives of each new
            token; empty when not asked for.
        finish_reason: "stop", "length", "abort" or "refused" when the output ended, else "".
        error: why it was refused.
    """

    request_id: str
    index: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    finish_reason: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """One whole output of a request.

    Attributes:
        index: rank among the outputs of the request; the best comes first where they were ranked.
        tokens: token ids.
        finish_reason: "stop", "length", "abort" or "refused".
        logprobs: log probability of each token; empty when not asked for.
        top_logprobs: (token, log probability) pairs of the likeliest alternatives of each token;
            empty when not asked for.
        cumulative_logprob: sum of the log probabilities, 0 when they are not known.
    """

    index: int
    tokens: list[int]
    finish_reason: str
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    cumulative_logprob: float = 0.0


def whole_outputs(root: Request) -> list[Output]:
    """Return the outputs of a request that ended, the best first where they were ranked."""
    family = root.family
    if family is not None and family.hypotheses:
        return [
            Output(
                index=index,
                tokens=item.tokens,
                finish_reason=item.finish_reason,
                logprobs=item.logprobs if family.reports else [],
                cumulative_logprob=item.cumulative_logprob,
            )
            for index, item in enumerate(best_hypotheses(family))
        ]
    members = [root] if family is None else family.outputs()
    reports = family is None or family.reports
    return [
        Output(
            index=index,
            tokens=item.output,
            finish_reason=item.finish_reason or "abort",
            logprobs=item.logprobs if reports else [],
            top_logprobs=item.top_logprobs if reports else [],
            cumulative_logprob=item.cumulative_logprob,
        )
        for index, item in enumerate(members)
    ]


@dataclass(frozen=True, slots=True)
class Completion:
    """All outputs of one request.

    Attributes:
        request_id: id of the request.
        prompt: token ids.
        outputs: the `n` outputs asked for.
        num_cached: prompt tokens whose keys and values were found in the cache.
    """

    request_id: str
    prompt: list[int]
    outputs: list[Output]
    num_cached: int = 0

    @property
    def tokens(self) -> list[int]:
        """Token ids of the first output."""
        return self.outputs[0].tokens

    @property
    def finish_reason(self) -> str:
        """Why the first output ended."""
        return self.outputs[0].finish_reason


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step whose results the scheduler has taken.

    Attributes:
        plan: the step.
        output: its results.
        dropped: sampled rows of sequences that had ended before, whose tokens mean nothing.
        finished: requests all of whose outputs ended.
    """

    plan: StepPlan
    output: StepOutput
    dropped: set[int]
    finished: list[Request]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """Results of one call of `LLM.step`; it unpacks into plan, tokens and finished.

    Attributes:
        plan: the step whose results these are; None when none came.
        tokens: the first token sampled for each sequence, by its id, end tokens among them; right
            guesses gave more, which stand in `deltas`.
        deltas: new tokens and ends of outputs.
        finished: requests all of whose outputs ended.
    """

    plan: StepPlan | None = None
    tokens: dict[str, int] = field(default_factory=dict)
    deltas: list[Delta] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)

    @classmethod
    def of(cls, step: FinishedStep) -> "StepResult":
        """Collect what is new, before another step adds to the outputs."""
        plan = step.plan
        tokens: dict[str, int] = {}
        deltas: list[Delta] = []
        for row, (request, token, before) in enumerate(
            zip(
                plan.sampled,
                step.output.tokens.tolist(),
                plan.output_positions.tolist(),
                strict=True,
            )
        ):
            if row in step.dropped or request.id in tokens:
                continue
            tokens[request.id] = token
            # Ranked outputs are told as a whole: until the last ends, their order is not known.
            if request.family is None or not request.family.is_ranked:
                deltas.append(_news(request, before))
        for root in step.finished:
            if root.family is not None and root.family.is_ranked:
                deltas += _whole(root)
        return cls(plan=plan, tokens=tokens, deltas=deltas, finished=step.finished)

    def __iter__(self) -> Iterator[Any]:
        yield from (self.plan, self.tokens, self.finished)


def _news(request: Request, before: int) -> Delta:
    """Say what a sequence got since it had `before` output tokens."""
    reports = bool(request.logprobs)
    return Delta(
        request_id=request.root.id,
        index=request.index,
        tokens=request.output[before:],
        logprobs=request.logprobs[before:] if reports else [],
        top_logprobs=request.top_logprobs[before:] if reports else [],
        finish_reason=request.finish_reason or "",
        error=request.error,
    )


def _whole(root: Request) -> list[Delta]:
    """Say all that a request whose outputs are ranked gave."""
    return [
        Delta(
            request_id=root.id,
            index=item.index,
            tokens=item.tokens,
            logprobs=item.logprobs,
            top_logprobs=item.top_logprobs,
            finish_reason=item.finish_reason,
            error=root.error,
        )
        for item in whole_outputs(root)
    ]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters of an engine.

    Attributes:
        steps: steps run.
        running: requests with blocks.
        waiting: requests without blocks.
        preemptions: times a request lost its blocks.
        blocks_in_use: blocks held.
        num_blocks: blocks in the pool.
        kv_utilization: token states over slots of held blocks.
        swapped: requests whose keys and values are on the host or on their way.
        swaps: preemptions that moved blocks to the host.
        cached_prompt_tokens: prompt tokens found in the prefix cache, over all requests.
        admitted_prompt_tokens: prompt tokens of all requests that were admitted.
        drafted_tokens: guessed output tokens that were checked.
        accepted_tokens: those of them that were right.
    """

    steps: int
    running: int
    waiting: int
    preemptions: int
    blocks_in_use: int
    num_blocks: int
    kv_utilization: float
    swapped: int = 0
    swaps: int = 0
    cached_prompt_tokens: int = 0
    admitted_prompt_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
