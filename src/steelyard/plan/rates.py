"""How fast a placed model is: tokens per second of serving, training and adapters."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.collectives import all_reduce_s
from steelyard.cost.layout import RECOMPUTE, Layout
from steelyard.cost.operators import OperatorTable, operators
from steelyard.cost.roofline import Machine, operator_times_s
from steelyard.cost.step import StepCost, training_step
from steelyard.cost.weights import WEIGHT_TYPES, WeightType, stored_bytes, with_stored_weights

__all__ = [
    "Load",
    "Use",
    "accumulation_of",
    "adapter_passes",
    "decode_rate",
    "listed",
    "summed_bytes",
    "training_cost",
    "training_rate",
]

Use = Literal["serve", "train", "lora"]

_STEP_TOKENS = 131072
"""Tokens of a training step: gradients are accumulated up to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What a placed model has to do.

    Attributes:
        use: what for.
        context: tokens of each sequence.
        users: sequences that decode together.
    """

    use: Use
    context: int
    users: int


@lru_cache(maxsize=512)
def listed(
    arch: Architecture, phase: Literal["train", "decode"], load: Load, kind: str, count: int
) -> OperatorTable:
    """List the operators of a step once for all machines.

    Args:
        arch: model that is placed.
        phase: "train" for forward and backward, "decode" for a token of each user.
        load: context and users.
        kind: name of the weight type.
        count: accelerators that share the work.

    Returns:
        The operators, with weights read in the type they are stored in.
    """
    chosen = WEIGHT_TYPES[kind]
    decodes = phase == "decode"
    return with_stored_weights(
        operators(
            arch,
            phase=phase,
            tokens=1 if decodes else load.context,
            context=load.context if decodes else None,
            batch=load.users if decodes else 1,
            dtype_bytes=chosen.activation_bytes,
            tensor_parallel=count,
        ),
        chosen,
    )


def decode_rate(
    arch: Architecture, machine: Machine, kind: WeightType, load: Load, count: int
) -> tuple[float, str]:
    """Return output tokens per second of all users together, and what limits them.

    Args:
        arch: model that is served.
        machine: one of the accelerators.
        kind: type of the weights.
        load: context and users.
        count: accelerators that share the work.

    Returns:
        The rate, and "compute", "bandwidth" or "links".
    """
    table = listed(arch, "decode", load, kind.name, count)
    kernels_s = float((table.count * operator_times_s(table, machine)).sum())
    size = summed_bytes(arch, kind, load)
    # One sum over the group after attention and one after the MLP.
    links_s = 2 * arch.num_layers * float(all_reduce_s(machine, size, count)) if count > 1 else 0.0
    moved = float(table.total("bytes_moved"))
    memory_s = moved / float(machine.bandwidth(moved))
    # Where products are slow at few rows, moving the bytes is a small part of the time.
    bound = "compute" if memory_s < kernels_s / 2 else "bandwidth"
    return load.users / (kernels_s + links_s), "links" if links_s > kernels_s else bound


def summed_bytes(arch: Architecture, kind: WeightType, load: Load) -> float:
    """Return the bytes that a decoding step sums over the group after a block."""
    return load.users * arch.hidden_size * kind.activation_bytes


def accumulation_of(load: Load, layout: Layout) -> int:
    """Return the micro-batches of a training step, of one sequence each."""
    return max(1, round(_STEP_TOKENS / (load.context * layout.data)))


def training_cost(arch: Architecture, machine: Machine, load: Load, layout: Layout) -> StepCost:
    """Return the cost of the training step that a placement is rated by.

    Args:
        arch: model that is trained.
        machine: one of the accelerators.
        load: use and context.
        layout: replicas, sharding and recomputation.

    Returns:
        The step.
    """
    return training_step(
        arch,
        machine=machine,
        micro_batch=1,
        sequence_length=load.context,
        accumulation=accumulation_of(load, layout),
        layout=layout,
    )


def training_rate(
    arch: Architecture, machine: Machine, kind: WeightType, load: Load, layout: Layout
) -> tuple[float, str]:
    """Return trained tokens per second of all accelerators, and what limits them.

    Args:
        arch: model that is trained.
        machine: one of the accelerators.
        kind: type of the weights.
        load: use and context.
        layout: replicas, sharding and recomputation.

    Returns:
        The rate, and "compute", "bandwidth" or "links".
    """
    if load.use == "lora":
        return _adapter_rate(arch, machine, kind, load, layout)
    cost = training_cost(arch, machine, load, layout)
    if cost.data_s > cost.compute_s:
        return cost.tokens / cost.time_s, "links"
    return cost.tokens / cost.time_s, "compute" if cost.product_s > 0.5 * cost.compute_s else (
        "bandwidth"
    )


def adapter_passes(table: OperatorTable) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which operators run with adapters over frozen weights, and which run forward."""
    frozen = np.array([not name.endswith(".grad_weight") for name in table.names])
    return frozen, np.array(["." not in name for name in table.names])


def _adapter_rate(
    arch: Architecture, machine: Machine, kind: WeightType, load: Load, layout: Layout
) -> tuple[float, str]:
    """Return trained tokens per second of adapters: no gradients of the frozen weights."""
    table = listed(arch, "train", load, kind.name, 1)
    times = table.count * operator_times_s(table, machine)
    frozen, forward = adapter_passes(table)
    repeated = times[forward].sum() if layout.recompute == RECOMPUTE[2] else 0.0
    kernels_s = float(times[frozen].sum() + repeated)
    gathered = stored_bytes(arch, kind) if layout.zero_stage == 3 else 0.0
    # Frozen weights are gathered for the forward and the backward pass.
    links_s = float(all_reduce_s(machine, gathered, layout.data)) if gathered else 0.0
    products = table.mask("matmul") | table.mask("attention")
    bound = "compute" if times[frozen & products].sum() > 0.5 * kernels_s else "bandwidth"
    rate = layout.data * load.context / max(kernels_s, links_s)
    return rate, "links" if links_s > kernels_s else bound
