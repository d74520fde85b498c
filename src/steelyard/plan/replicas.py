"""The replica of a deployment: the largest batch that keeps both limits on one accelerator kind."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator
from steelyard.cost.collectives import all_reduce_s
from steelyard.cost.operators import OperatorTable, operators
from steelyard.cost.roofline import Machine, roofline_time_s
from steelyard.cost.weights import (
    WeightType,
    product_dtypes,
    stored_serving_memory,
    with_stored_weights,
)
from steelyard.errors import require
from steelyard.plan.fit import COUNTS, PREFILL_CHUNK, RESERVE
from steelyard.plan.serving_parts import ServedParts, decode_parts

__all__ = [
    "BATCHES",
    "UTILIZATION",
    "Replica",
    "ServingGoal",
    "Work",
    "best_replica",
    "replica_parts",
    "replica_works",
    "serving_machine",
]

UTILIZATION = 0.8
"""Share of its rate that a replica is planned for: beyond it queues grow."""
BATCHES: NDArray[np.float64] = np.exp2(np.arange(11, dtype=np.float64))


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingGoal:
    """Load and limits of a deployment.

    Attributes:
        rate_per_s: requests per second.
        prompt_tokens: mean prompt length.
        output_tokens: mean output length.
        ttft_s: longest time to the first token.
        tpot_s: longest time per further token.
    """

    rate_per_s: float
    prompt_tokens: int = 512
    output_tokens: int = 256
    ttft_s: float = 1.0
    tpot_s: float = 0.05

    def __post_init__(self) -> None:
        """Refuse loads and limits that are not above 0."""
        names = ("rate_per_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s")
        require(self, **{name: (getattr(self, name) > 0, "above 0") for name in names})


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What a replica of some accelerators does, over the batches that are tried.

    Attributes:
        count: accelerators of a replica.
        decode: operators of one token for every batch.
        prefill: operators of one prompt.
        memory_bytes: bytes on each accelerator for every batch, [batches].
        reduced_bytes: bytes that a decoding step sums over the group, [batches].
        prompt_bytes: bytes that a prefill sums over the group.
    """

    count: int
    decode: OperatorTable
    prefill: OperatorTable
    memory_bytes: NDArray[np.float64]
    reduced_bytes: NDArray[np.float64]
    prompt_bytes: float


def replica_works(arch: Architecture, kind: WeightType, goal: ServingGoal) -> list[Work]:
    """List the work of a replica of each number of accelerators that the heads divide over."""
    return [_work(arch, kind, goal, count) for count in COUNTS if arch.num_heads % count == 0]


def _work(arch: Architecture, kind: WeightType, goal: ServingGoal, count: int) -> Work:
    """List the work of a replica once for all accelerators."""
    context = goal.prompt_tokens + goal.output_tokens
    shape: dict[str, Any] = {"dtype_bytes": kind.activation_bytes, "tensor_parallel": count}
    decode = operators(arch, phase="decode", tokens=1, context=context, batch=BATCHES, **shape)
    prefill = operators(arch, phase="prefill", tokens=goal.prompt_tokens, **shape)
    memory = stored_serving_memory(
        arch,
        kind,
        tokens_resident=BATCHES * context,
        step_tokens=np.maximum(BATCHES, min(goal.prompt_tokens, PREFILL_CHUNK)),
        tensor_parallel=count,
    )
    # A layer sums its hidden states over the group twice: after attention and after the MLP.
    per_token = 2 * arch.num_layers * arch.hidden_size * kind.activation_bytes
    return Work(
        count=count,
        decode=with_stored_weights(decode, kind),
        prefill=with_stored_weights(prefill, kind),
        memory_bytes=np.asarray(memory.total),
        reduced_bytes=BATCHES * per_token,
        prompt_bytes=goal.prompt_tokens * per_token,
    )


def serving_machine(record: Accelerator, kind: WeightType) -> Machine | None:
    """Return the roofline that multiplies the weights, None where there is none."""
    dtypes = product_dtypes(kind, record.peak_flops_per_s)
    if not dtypes:
        return None
    machine = Machine.from_accelerator(record, dtype=dtypes[0])
    return replace(machine, accelerators_per_node=max(COUNTS))


def best_replica(
    record: Accelerator, machine: Machine, goal: ServingGoal, works: list[Work]
) -> "Replica | str":
    """Return the replica size that needs the fewest accelerators, or why none will do."""
    linked = record.scale_up_bytes_per_s or record.host_link_bytes_per_s
    tried = [_replica(record, machine, goal, work) for work in works if work.count == 1 or linked]
    possible = [item for item in tried if isinstance(item, Replica)]
    if not possible:
        return str(tried[-1])
    return min(possible, key=lambda item: item.accelerators(goal))


@dataclass(frozen=True, kw_only=True, slots=True)
class Replica:
    """The largest batch of a replica that meets both limits.

    Attributes:
        count: accelerators.
        batch: requests that decode together.
        ttft_s: time of one prompt.
        tpot_s: time per further token, prompts of others included.
        output_tokens: tokens of an answer.
        parts: what a further token waits for.
    """

    count: int
    batch: int
    ttft_s: float
    tpot_s: float
    output_tokens: int
    parts: ServedParts

    def accelerators(self, goal: ServingGoal) -> int:
        """Return the accelerators of as many replicas as the rate takes."""
        per_replica = UTILIZATION * self.batch / (self.output_tokens * self.tpot_s)
        return self.count * math.ceil(goal.rate_per_s / per_replica)


def replica_parts(machine: Machine, goal: ServingGoal, work: Work) -> tuple[ServedParts, float]:
    """Time a further token and a prompt on a replica.

    Args:
        machine: one of its accelerators.
        goal: lengths of prompts and answers.
        work: what it does.

    Returns:
        What a further token waits for with every batch that is tried, and seconds of one prompt.
    """
    links_s = [
        all_reduce_s(machine, size, work.count) if work.count > 1 else 0.0
        for size in (work.reduced_bytes, work.prompt_bytes)
    ]
    prefill_s = float(roofline_time_s(work.prefill, machine) + links_s[1])
    # While an answer is decoded, `batch` prompts of other requests take the machine.
    beside_s = BATCHES * prefill_s / goal.output_tokens
    return decode_parts(work.decode, machine, links_s=links_s[0], prompt_s=beside_s), prefill_s


def _replica(record: Accelerator, machine: Machine, goal: ServingGoal, work: Work) -> Replica | str:
    """Return the replica, or the limit that no batch meets."""
    parts, prefill_s = replica_parts(machine, goal, work)
    tpot_s = parts.time_s
    fits = work.memory_bytes <= record.memory_bytes * (1 - RESERVE)
    if not fits.any():
        return (
            f"does not fit: needs {work.memory_bytes[0] / 1e9:,.0f} GB, has "
            f"{record.memory_bytes / 1e9:,.0f} GB on each of {work.count}"
        )
    if prefill_s > goal.ttft_s:
        return f"a prompt takes {prefill_s:.2g} s, more than {goal.ttft_s:g} s"
    meets = fits & (tpot_s <= goal.tpot_s)
    if not meets.any():
        return f"a token takes {tpot_s[0] * 1e3:.3g} ms, more than {goal.tpot_s * 1e3:g} ms"
    best = int(np.flatnonzero(meets).max())
    return Replica(
        count=work.count,
        batch=int(BATCHES[best]),
        ttft_s=prefill_s,
        tpot_s=float(tpot_s[best]),
        output_tokens=goal.output_tokens,
        parts=parts.at(best),
    )
