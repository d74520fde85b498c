"""Pipeline schedules: in which order each rank runs the passes of its stages' micro-batches."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from steelyard.errors import ConfigError, SteelyardError, merged

__all__ = [
    "Pass",
    "PipelineSchedule",
    "gpipe",
    "interleaved",
    "one_forward_one_backward",
    "zero_bubble",
]

PassKind = Literal["forward", "backward", "backward_input", "backward_weight"]


class Pass(NamedTuple):
    """One pass of a micro-batch through one stage.

    Attributes:
        op: "backward" makes both gradients; "backward_input" and "backward_weight" make one each.
        stage: pipeline stage, 0 first; stages beyond the ranks are further chunks of a rank.
        micro_batch: micro-batch, 0 first.
    """

    op: PassKind
    stage: int
    micro_batch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineSchedule:
    """The passes of one step, rank by rank.

    Attributes:
        name: name of the schedule, as the literature has it.
        num_stages: stages of the whole model; stage s lies on rank s % number of ranks.
        num_micro_batches: micro-batches per step.
        passes: passes of each rank in the order it runs them.
    """

    name: str
    num_stages: int
    num_micro_batches: int
    passes: tuple[tuple[Pass, ...], ...]

    @property
    def num_ranks(self) -> int:
        """Ranks of the pipeline."""
        return len(self.passes)

    @property
    def num_chunks(self) -> int:
        """Stages on each rank."""
        return self.num_stages // len(self.passes)


def gpipe(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """Run all forward passes, then all backward passes in the opposite order.

    Args:
        num_ranks: ranks of the pipeline, at least 1.
        num_micro_batches: micro-batches per step, at least 1.

    Returns:
        The schedule; every rank holds the activations of all micro-batches.

    Raises:
        ConfigError: a number is smaller than 1.

    Source: Huang et al. 2019, arXiv 1811.06965.
    """
    _require(num_ranks, num_micro_batches)
    order = range(num_micro_batches)
    passes = tuple(
        tuple(
            [Pass("forward", rank, item) for item in order]
            + [Pass("backward", rank, item) for item in reversed(order)]
        )
        for rank in range(num_ranks)
    )
    return _made("GPipe", num_ranks, num_micro_batches, passes)


def one_forward_one_backward(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """Alternate forward and backward passes after a warm-up, so that activations are freed early.

    Args:
        num_ranks: ranks of the pipeline, at least 1.
        num_micro_batches: micro-batches per step, at least 1.

    Returns:
        The schedule; rank r holds the activations of at most `num_ranks` - r micro-batches.

    Raises:
        ConfigError: a number is smaller than 1.

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1.
    """
    _require(num_ranks, num_micro_batches)
    passes = []
    for rank in range(num_ranks):
        warm = min(num_ranks - rank - 1, num_micro_batches)
        forward = [Pass("forward", rank, item) for item in range(num_micro_batches)]
        backward = [Pass("backward", rank, item) for item in range(num_micro_batches)]
        passes.append(_alternated(forward, backward, warm))
    return _made("1F1B", num_ranks, num_micro_batches, tuple(passes))


def interleaved(num_ranks: int, num_micro_batches: int, num_chunks: int) -> PipelineSchedule:
    """Return the schedule of several stages per rank: the pipeline fills in smaller pieces.

    Args:
        num_ranks: ranks of the pipeline, at least 1.
        num_micro_batches: micro-batches per step, a multiple of `num_ranks` when there are several
            chunks.
        num_chunks: stages per rank; 1 is `one_forward_one_backward`.

    Returns:
        The schedule over `num_ranks` x `num_chunks` stages.

    Raises:
        ConfigError: a number is smaller than 1, or the micro-batches do not divide.

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2.
    """
    _require(num_ranks, num_micro_batches, num_chunks)
    if num_chunks == 1:
        return one_forward_one_backward(num_ranks, num_micro_batches)
    if num_micro_batches % num_ranks:
        raise ConfigError(
            f"{num_micro_batches} micro-batches in {num_chunks} chunks do not divide by "
            f"{num_ranks} ranks",
            hint=f"use a multiple of {num_ranks} micro-batches, or 1 chunk",
        )
    total = num_micro_batches * num_chunks
    passes = []
    for rank in range(num_ranks):
        forward = [_chunked("forward", rank, num_ranks, num_chunks, k) for k in range(total)]
        backward = [_chunked("backward", rank, num_ranks, num_chunks, k) for k in range(total)]
        warm = 2 * (num_ranks - rank - 1) + (num_chunks - 1) * num_ranks
        # With as many micro-batches as ranks, every forward pass belongs to the warm-up.
        warm = total if num_micro_batches == num_ranks else min(warm, total)
        passes.append(_alternated(forward, backward, warm))
    name = f"interleaved 1F1B, {num_chunks} chunks"
    return _made(name, num_ranks * num_chunks, num_micro_batches, tuple(passes))


def zero_bubble(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """Split the backward pass, and fill the bubble of 1F1B with gradients of weights (ZB-H1).

    Rank r keeps r of its weight gradients back until the end, which leaves each rank with as many
    unfinished micro-batches as the first has in 1F1B.

    Args:
        num_ranks: ranks of the pipeline, at least 1.
        num_micro_batches: micro-batches per step, at least 1.

    Returns:
        The schedule; its bubble is (`num_ranks` - 1) (forward + input - weight pass).

    Raises:
        ConfigError: a number is smaller than 1.

    Source: Qi et al. 2024, arXiv 2401.10241, section 2.2 and table 2.
    """
    _require(num_ranks, num_micro_batches)
    passes = []
    for rank in range(num_ranks):
        plain = _alternated(
            [Pass("forward", rank, item) for item in range(num_micro_batches)],
            [Pass("backward_input", rank, item) for item in range(num_micro_batches)],
            min(num_ranks - rank - 1, num_micro_batches),
        )
        passes.append(_with_weights(plain, kept_back=rank))
    return _made("ZB-H1", num_ranks, num_micro_batches, tuple(passes))


def _require(num_ranks: int, num_micro_batches: int, num_chunks: int = 1) -> None:
    """Refuse every number below 1 at once."""
    numbers = {
        "num_ranks": num_ranks,
        "num_micro_batches": num_micro_batches,
        "num_chunks": num_chunks,
    }
    wrong: list[SteelyardError] = [
        ConfigError(f"{name} is {value}, but must be at least 1")
        for name, value in numbers.items()
        if value < 1
    ]
    if wrong:
        raise merged(wrong)


def _made(
    name: str, num_stages: int, num_micro_batches: int, passes: tuple[tuple[Pass, ...], ...]
) -> PipelineSchedule:
    """Make a schedule of its parts."""
    return PipelineSchedule(
        name=name, num_stages=num_stages, num_micro_batches=num_micro_batches, passes=passes
    )


def _chunked(op: PassKind, rank: int, num_ranks: int, num_chunks: int, place: int) -> Pass:
    """Return the pass at a place of a rank's order: groups of `num_ranks` go through all chunks."""
    group, inside = divmod(place, num_ranks * num_chunks)
    chunk = inside // num_ranks
    if op == "backward":
        chunk = num_chunks - 1 - chunk
    return Pass(op, chunk * num_ranks + rank, group * num_ranks + inside % num_ranks)


def _alternated(forward: list[Pass], backward: list[Pass], warm: int) -> tuple[Pass, ...]:
    """Run `warm` forward passes, then one forward and one backward in turn, then what is left."""
    steady = len(forward) - warm
    turns = [item for pair in zip(forward[warm:], backward[:steady], strict=True) for item in pair]
    return (*forward[:warm], *turns, *backward[steady:])


def _with_weights(passes: tuple[Pass, ...], kept_back: int) -> tuple[Pass, ...]:
    """Put each weight pass after the input pass that comes `kept_back` micro-batches later."""
    found: list[Pass] = []
    waiting: list[Pass] = []
    for item in passes:
        found.append(item)
        if item.op == "backward_input":
            waiting.append(item._replace(op="backward_weight"))
            if len(waiting) > kept_back:
                found.append(waiting.pop(0))
    return (*found, *waiting)
