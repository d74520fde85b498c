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
from steelyard.plan.intervals import adapter_relative, served_relative, step_relative
from steelyard.plan.serving_parts import ServedParts, decode_parts

__all__ = [
    "Load",
    "Rated",
    "Use",
    "accumulation_of",
    "adapter_passes",
    "decode_rate",
    "listed",
    "served_parts",
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


@dataclass(frozen=True, slots=True)
class Rated:
    """How fast a placed model is.

    Attributes:
        tokens_per_s: output tokens of all users together, or trained tokens, per second.
        bound: "compute", "bandwidth" or "links", what limits it.
        relative: half-width of the rate's 80 % interval, as a fraction.
    """

    tokens_per_s: float
    bound: str
    relative: float


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
) -> Rated:
    """Return output tokens per second of all users together.

    Args:
        arch: model that is served.
        machine: one of the accelerators.
        kind: type of the weights.
        load: context and users.
        count: accelerators that share the work.

    Returns:
        The rate, what limits it and how far it may be off.
    """
    parts = served_parts(arch, machine, kind, load, count)
    kernels_s = float(parts.time_s - parts.links_s)
    moved = float(listed(arch, "decode", load, kind.name, count).total("bytes_moved"))
    memory_s = moved / float(machine.bandwidth(moved))
    # Where products are slow at few rows, moving the bytes is a small part of the time.
    bound = "compute" if memory_s < kernels_s / 2 else "bandwidth"
    return Rated(
        tokens_per_s=load.users / float(parts.time_s),
        bound="links" if parts.links_s > kernels_s else bound,
        relative=served_relative(machine, parts),
    )


def served_parts(
    arch: Architecture, machine: Machine, kind: WeightType, load: Load, count: int
) -> ServedParts:
    """Return what a decoding step of all users waits for.

    Args:
        arch: model that is served.
        machine: one of the accelerators.
        kind: type of the weights.
        load: context and users.
        count: accelerators that share the work.

    Returns:
        Seconds of each part; no prompts of others among them.
    """
    table = listed(arch, "decode", load, kind.name, count)
    size = summed_bytes(arch, kind, load)
    # One sum over the group after attention and one after the MLP.
    links_s = 2 * arch.num_layers * float(all_reduce_s(machine, size, count)) if count > 1 else 0.0
    return decode_parts(table, machine, links_s=links_s)


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
) -> Rated:
    """Return trained tokens per second of all accelerators.

    Args:
        arch: model that is trained.
        machine: one of the accelerators.
        kind: type of the weights.
        load: use and context.
        layout: replicas, sharding and recomputation.

    Returns:
        The rate, what limits it and how far it may be off.
    """
    if load.use == "lora":
        return _adapter_rate(arch, machine, kind, load, layout)
    cost = training_cost(arch, machine, load, layout)
    bound = "compute" if cost.product_s > 0.5 * cost.compute_s else "bandwidth"
    return Rated(
        tokens_per_s=cost.tokens / cost.time_s,
        bound="links" if cost.data_s > cost.compute_s else bound,
        relative=step_relative(machine, cost, arch),
    )


def adapter_passes(table: OperatorTable) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which operators run with adapters over frozen weights, and which run forward."""
    frozen = np.array([not name.endswith(".grad_weight") for name in table.names])
    return frozen, np.array(["." not in name for name in table.names])


def _adapter_rate(
    arch: Architecture, machine: Machine, kind: WeightType, load: Load, layout: Layout
) -> Rated:
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
    return Rated(
        tokens_per_s=layout.data * load.context / max(kernels_s, links_s),
        bound="links" if links_s > kernels_s else bound,
        relative=adapter_relative(machine, kernels_s, max(links_s - kernels_s, 0.0)),
    )
