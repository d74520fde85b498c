"""Time of one optimizer step: kernels, communication that cannot hide, bubble and update."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.flops import AttentionConvention, attention_flops, model_flops_per_token
from steelyard.cost.held import stage_parameters
from steelyard.cost.layout import ORDER, Layout
from steelyard.cost.memory import (
    MIXED,
    PURE_FP32,
    MemoryBreakdown,
    plain_floats,
    training_memory,
)
from steelyard.cost.operators import OperatorTable, operators
from steelyard.cost.passes import micro_batch_costs
from steelyard.cost.pipeline import busiest_stage, filling_share
from steelyard.cost.roofline import Machine, operator_times_s
from steelyard.cost.sharding import state_traffic
from steelyard.cost.unique import on_unique
from steelyard.errors import ConfigError

__all__ = [
    "ADAMW_PASSES",
    "Overlap",
    "StepCost",
    "micro_batch_operators",
    "recomputed",
    "training_step",
]

Array = NDArray[Any]

_EXPOSED = 0.05
"""Least share of the replicas' traffic that shows: the first and last buckets have nothing to hide
behind."""

ADAMW_PASSES = {True: 7.0, False: 12.0}
"""Reads and writes of fp32 values per parameter in an update, by whether it is fused: weight and
two moments read and written, gradient read; eager code also writes and reads intermediate
results."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """How much of each kind of traffic software hides; 0 for none, 1 for as much as fits.

    Attributes:
        data: share of the compute time that traffic between replicas may hide behind.
        tensor: share of the tensor groups' traffic that hides behind the products around it.
        pipeline: share of the transfers between stages that hides while the pipeline is full.
        context: share of attention's time that ring attention's traffic may hide behind.
        expert: share of the experts' exchanges that hides behind other computation.
    """

    data: float = 0.7
    tensor: float = 0.0
    pipeline: float = 0.5
    context: float = 0.9
    expert: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCost:
    """One optimizer step; numbers, or arrays over layouts.

    Attributes:
        time_s: wall time of the step, the sum of the parts below that end in _s but `product_s`.
        compute_s: time of all micro-batches' kernels on the busiest stage, recomputation included.
        product_s: part of `compute_s` in matrix products and attention.
        tensor_s: exposed tensor-parallel communication.
        context_s: exposed exchange of keys and values between parts of a sequence.
        expert_s: exposed exchange of tokens between experts.
        bubble_s: idle time while the pipeline fills and drains, and its transfers.
        data_s: exposed data-parallel communication.
        host_s: exposed transfers to and from host memory.
        update_s: time of the optimizer's pass over its states.
        model_flops: model FLOPs of the step on all accelerators (6N plus attention).
        flops: FLOPs the busiest accelerator executes, recomputation included.
        bytes: bytes the busiest accelerator moves to and from memory.
        link_bytes: bytes the busiest accelerator sends through each level of the machine's
            topology on average, [levels, *layouts].
        tokens: tokens of the step on all accelerators.
        mfu: model FLOPs per second over the peak of all accelerators.
        hfu: the same with the FLOPs that are recomputed.
        memory: memory of the fullest accelerator.
    """

    time_s: Any
    compute_s: Any
    product_s: Any
    tensor_s: Any
    context_s: Any
    expert_s: Any
    bubble_s: Any
    data_s: Any
    host_s: Any
    update_s: Any
    model_flops: Any
    flops: Any
    bytes: Any
    link_bytes: NDArray[np.float64]
    tokens: Any
    mfu: Any
    hfu: Any
    memory: MemoryBreakdown

    def at(self, index: int) -> "StepCost":
        """Return one of several layouts' costs.

        Args:
            index: place of the layout in the arrays [layouts].

        Returns:
            Plain numbers; `link_bytes` [levels].
        """
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        memory, links = values.pop("memory"), values.pop("link_bytes")
        plain = {
            name: float(value[index] if np.ndim(value) else value) for name, value in values.items()
        }
        return StepCost(**plain, memory=memory.at(index), link_bytes=links[..., index])


def training_step(
    arch: Architecture,
    *,
    machine: Machine,
    micro_batch: ArrayLike,
    sequence_length: int,
    accumulation: ArrayLike = 1,
    layout: Layout | None = None,
    flash_attention: bool = True,
    overlap: Overlap | None = None,
    reductions: float = 2.0,
    order: tuple[str, ...] = ORDER,
    convention: AttentionConvention = "full",
) -> StepCost:
    """Predict time, FLOPs, traffic and memory of one optimizer step.

    Args:
        arch: architecture that is trained.
        machine: accelerator with its links.
        micro_batch: sequences per micro-batch and replica.
        sequence_length: tokens per sequence.
        accumulation: micro-batches per step and replica; they also fill the pipeline.
        layout: parallelism, one accelerator when not given; its fields may be arrays that broadcast
            with the arguments.
        flash_attention: whether attention is fused.
        overlap: what traffic hides; the defaults when not given.
        reductions: all-reduces over the tensor group per layer and pass: after attention and after
            the MLP, or one where the two run side by side.
        order: axes from the one whose members stand next to each other outward.
        convention: how attention counts in model FLOPs; execution always runs the causal half.

    Returns:
        The step's parts; plain floats when no argument is an array.

    Raises:
        ConfigError: a size is smaller than 1, or `order` does not name each axis once.

    Source: Narayanan et al. 2021 (bubble, tensor parallelism); Rajbhandari et al. 2020 (ZeRO
        traffic); arXiv 2501.04266 (a shard group per state).
    """
    chosen = layout or Layout()
    named = {"batch": np.asarray(micro_batch), "steps": np.asarray(accumulation, dtype=float)}
    named |= chosen.arrays()
    if sorted(order) != sorted(ORDER):
        raise ConfigError(f"order {order} does not name each of {', '.join(ORDER)} once")
    sizes = ("batch", "steps", "data", "tensor", "pipeline", "context", "expert", "virtual_stages")
    if sequence_length < 1 or any((named[name] < 1).any() for name in sizes):
        raise ConfigError(
            "micro_batch, accumulation, sequence_length and the degrees of a layout must be at "
            "least 1"
        )
    shape = np.broadcast_shapes(*(column.shape for column in named.values()))
    axes = {name: np.broadcast_to(item, shape).reshape(-1) for name, item in named.items()}
    axes |= _derived(machine, axes, order)
    parts = _parts(arch, machine, axes, sequence_length, flash_attention, overlap, reductions)
    work = model_flops_per_token(arch, sequence_length, convention=convention)
    tokens = axes["steps"] * axes["batch"] * sequence_length * axes["data"]
    accelerators = axes["data"] * axes["tensor"] * axes["pipeline"] * axes["context"]
    most_flops = parts["time_s"] * accelerators * machine.peak_flops_per_s
    parts |= {"tokens": tokens, "model_flops": tokens * work}
    parts["mfu"] = parts["model_flops"] / most_flops
    again = _recomputed_share(arch, sequence_length, convention)[axes["recompute"]]
    parts["hfu"] = parts["mfu"] * (1 + again)
    memory = training_memory(
        arch,
        batch=micro_batch,
        sequence_length=sequence_length,
        layout=chosen,
        accumulation=accumulation,
        precision=PURE_FP32 if machine.dtype_bytes >= 4 else MIXED,
        flash_attention=flash_attention,
    )
    links = parts.pop("link_bytes")
    shaped = {name: value.reshape(shape) for name, value in parts.items()}
    return StepCost(memory=memory, link_bytes=links.reshape(-1, *shape), **plain_floats(**shaped))


def _derived(machine: Machine, axes: dict[str, Array], order: tuple[str, ...]) -> dict[str, Array]:
    """Return strides between the members of groups, shard groups, and bytes on the wire."""
    found: dict[str, Array] = {"replicas": axes["data"] * axes["context"]}
    stride: Array = np.ones_like(axes["data"])
    for name in order:
        found[f"{name}_stride"] = stride
        stride = stride * axes[name]
    # Replicas of the weights are the members of both data and context groups.
    found["data_stride"] = np.minimum(found["data_stride"], found["context_stride"])
    staged = axes["zero_stage"]
    for name, state, least in (
        ("weight", "weight", 3),
        ("gradient", "gradient", 2),
        ("optimizer", "optimizer", 1),
    ):
        own = axes[f"{state}_shards"]
        found[f"{name}_shards"] = np.where(
            own > 0, own, np.where(staged >= least, found["replicas"], 1)
        )
    found["copy_shards"] = axes["weight_copy_shards"]
    for name in ("weight", "gradient"):
        bits = axes[f"{name}_wire_bits"]
        found[f"{name}_bytes"] = np.where(bits > 0, bits / 8, machine.dtype_bytes)
    return found


_PASS_KEYS = (
    "batch",
    "tensor",
    "context",
    "expert",
    "sequence_parallel",
    "tensor_stride",
    "context_stride",
)
_STATE_KEYS = (
    "tensor",
    "pipeline",
    "expert",
    "replicas",
    "data_stride",
    "weight_shards",
    "copy_shards",
    "gradient_shards",
    "optimizer_shards",
    "weight_bytes",
    "gradient_bytes",
)
_HOP_KEYS = ("batch", "tensor", "context", "pipeline", "pipeline_stride")


def _parts(
    arch: Architecture,
    machine: Machine,
    axes: dict[str, Array],
    sequence_length: int,
    flash_attention: bool,
    overlap: Overlap | None,
    reductions: float,
) -> dict[str, Array]:
    """Return the times, FLOPs and bytes of a step, [layouts].

    What depends on a few fields only is evaluated once per combination of these that occurs.
    """
    hides = overlap or Overlap()
    once = on_unique(
        {name: axes[name] for name in _PASS_KEYS},
        lambda some: micro_batch_costs(
            arch,
            machine,
            some,
            sequence_length,
            flash_attention=flash_attention,
            reductions=reductions,
        ),
    )
    states = on_unique(
        {name: axes[name] for name in _STATE_KEYS}, lambda some: state_traffic(arch, machine, some)
    )
    hops = on_unique(
        {name: axes[name] for name in _HOP_KEYS},
        lambda some: _hop(arch, machine, some, sequence_length),
    )
    steps, recompute = axes["steps"], axes["recompute"]
    # Full recomputation repeats the forward pass with its traffic.
    passes = np.where(recompute == 2, 3.0, 2.0)
    repeated_s, repeated_flops = _repeated(once, recompute)
    kernels_s = once["forward_s"] + once["backward_s"] + repeated_s
    waits = {
        "tensor_s": passes * once["tensor_s"] * (1 - hides.tensor),
        "expert_s": passes * once["expert_s"] * (1 - hides.expert),
        "context_s": _exposed(once["context_s"], hides.context * 3.5 * once["attention_s"]),
    }
    layer_s = (kernels_s + sum(waits.values())) / arch.num_layers
    busy = busiest_stage(
        arch.num_layers, axes["pipeline"], layer_s, once["embedding_s"], once["head_s"]
    )
    share = busy.layers / arch.num_layers
    ends_s = busy.embedding * once["embedding_s"] + busy.head * once["head_s"]
    compute_s = share * kernels_s + ends_s
    parts = {name: steps * share * value for name, value in waits.items()}
    parts["compute_s"] = steps * compute_s
    products_s = once["product_s"] + repeated_s * once["product_s"] / kernels_s
    parts["product_s"] = steps * (share * products_s + busy.head * once["end_product_s"])
    stage_s = compute_s + share * sum(waits.values())
    whole_s = arch.num_layers * layer_s + once["embedding_s"] + once["head_s"]
    filling = filling_share(
        axes["schedule"],
        axes["virtual_stages"],
        once["forward_s"],
        once["backward_s"] + repeated_s,
        once["weight_s"],
    )
    # While the pipeline is full, part of each transfer hides behind the next micro-batch; a device
    # passes each micro-batch on once per chunk, and its gradient back.
    filling_s = filling * (whole_s - stage_s) + 2 * (axes["pipeline"] - 1) * hops["hop_s"]
    steady_s = steps * axes["virtual_stages"] * 2 * hops["hop_s"] * (1 - hides.pipeline)
    parts["bubble_s"] = filling_s + steady_s
    parts["data_s"] = _data_s(axes, states, compute_s, hides.data)
    parts["update_s"] = _update_s(arch, machine, axes)
    parts["host_s"] = _host_s(arch, machine, axes, sequence_length, compute_s)
    parts["time_s"] = steps * stage_s + parts["bubble_s"] + parts["data_s"]
    parts["time_s"] = parts["time_s"] + parts["update_s"] + parts["host_s"]
    parts["flops"] = steps * (
        share * (once["flops"] + repeated_flops) + busy.head * once["end_flops"]
    )
    parts["bytes"] = steps * (share * once["bytes"] + busy.head * once["end_bytes"])
    inside = passes * (once["tensor_bytes"] + once["expert_bytes"]) + once["context_bytes"]
    between = 2 * axes["virtual_stages"] * hops["hop_bytes"]
    parts["link_bytes"] = (
        steps * (share * inside + states["micro_batch_bytes"] + between) + states["step_bytes"]
    )
    return parts


def _hop(
    arch: Architecture, machine: Machine, axes: dict[str, Array], sequence_length: int
) -> dict[str, Array]:
    """Time the transfer of one micro-batch's activations to the next stage, and count it."""
    tokens = axes["batch"] * sequence_length / axes["context"]
    # Each member of a tensor group sends its part.
    size = machine.dtype_bytes * tokens * arch.hidden_size / axes["tensor"]
    group = machine.topology.group(axes["pipeline"], axes["pipeline_stride"])
    # A stage sends to its neighbor, which in the mean lies as far as neighbors of the group do.
    between = group.parts > 1
    hops = (np.cumprod(group.parts[::-1], axis=0)[::-1]) * np.where(between, 1.0, 0.0)
    shares = hops / np.maximum(hops.sum(axis=0), 1.0)
    seconds = (shares * (size / group.bytes_per_s + group.latency_s)).sum(axis=0)
    return {"hop_s": seconds, "hop_bytes": shares * size}


def _repeated(once: dict[str, Array], recompute: Array) -> tuple[Array, Array]:
    """Return the seconds and FLOPs per micro-batch and all layers that recomputation repeats."""
    seconds, flops = (
        np.where(
            recompute == 2,
            once[f"forward_{unit}"],
            np.where(recompute == 1, once[f"attention_{unit}"], 0.0),
        )
        for unit in ("s", "flops")
    )
    return seconds, flops


def _exposed(traffic_s: Array, behind_s: Array) -> Array:
    """Return the traffic that does not hide behind something, at least a small share of it."""
    return np.maximum(traffic_s - behind_s, _EXPOSED * traffic_s)


def _data_s(
    axes: dict[str, Array], states: dict[str, Array], compute_s: Array, overlap: float
) -> Array:
    """Time the traffic between replicas that does not hide behind a micro-batch's compute."""
    each_s = states["gather_s"] + states["regather_s"] + states["scatter_s"]
    # What a step exchanges once hides behind its last backward pass, two thirds of a micro-batch's
    # compute, and updated weights behind the forward pass of the next step.
    last_s = _exposed(states["reduce_s"], overlap * compute_s * 2 / 3)
    first_s = _exposed(states["return_s"], overlap * compute_s / 3)
    return axes["steps"] * _exposed(each_s, overlap * compute_s) + last_s + first_s


def _update_s(arch: Architecture, machine: Machine, axes: dict[str, Array]) -> Array:
    """Time the optimizer's pass over the states that one accelerator holds."""
    dense, routed = stage_parameters(arch, axes)
    local = (dense + routed) / axes["optimizer_shards"]
    passes = np.where(axes["offload_optimizer"], 0.0, ADAMW_PASSES[machine.fused])
    return 4.0 * passes * local / machine.memory_bytes_per_s


def _host_s(
    arch: Architecture,
    machine: Machine,
    axes: dict[str, Array],
    sequence_length: int,
    compute_s: Array,
) -> Array:
    """Time what offloading moves to the host and back, beyond what hides behind compute.

    Gradients go and updated weights come once per step; the host's own update is not timed.
    Saved activations go and come while layers compute. Infinite without a known link.
    """
    optimizer, activations = axes["offload_optimizer"], axes["offload_activations"]
    if not (optimizer.any() or activations.any()):
        return np.zeros_like(compute_s)
    rate = machine.topology.efficiency * machine.host_link_bytes_per_s
    dense, routed = stage_parameters(arch, axes)
    states = optimizer * 2 * machine.dtype_bytes * (dense + routed) / axes["optimizer_shards"]
    tokens = axes["batch"] * sequence_length / axes["context"]
    layers = np.ceil(arch.num_layers / axes["pipeline"])
    kept = activations * 2 * machine.dtype_bytes * tokens * arch.hidden_size * layers
    if not rate:
        return np.where(optimizer | activations, np.inf, 0.0)
    saved_s = np.maximum(kept / rate - compute_s, 0.0)
    return states / rate + axes["steps"] * saved_s


def _recomputed_share(
    arch: Architecture, sequence_length: int, convention: AttentionConvention
) -> NDArray[np.float64]:
    """Return the recomputed FLOPs over the model FLOPs, by index into `RECOMPUTE`."""
    work = model_flops_per_token(arch, sequence_length, convention=convention) / 3
    attention = attention_flops(arch, sequence_length, convention=convention) / sequence_length
    head = 0 if arch.kind == "encoder" else 2 * arch.hidden_size * arch.vocab_size
    return np.array([0.0, attention, work - head]) / (3 * work)


def micro_batch_operators(
    arch: Architecture,
    machine: Machine,
    axes: dict[str, Any],
    batch: Any,
    sequence_length: int,
    *,
    flash_attention: bool = True,
) -> tuple[OperatorTable, OperatorTable]:
    """List what one micro-batch runs on a stage that holds embedding and head.

    Args:
        arch: architecture that is trained.
        machine: accelerator with its links.
        axes: a layout's fields as arrays.
        batch: sequences of the micro-batch.
        sequence_length: tokens per sequence.
        flash_attention: whether attention is fused.

    Returns:
        Operators of the forward and backward pass together, and of the forward pass alone.
    """
    train, forward = (
        operators(
            arch,
            phase=phase,
            tokens=sequence_length,
            batch=np.asarray(batch) / axes["context"],
            dtype_bytes=machine.dtype_bytes,
            tensor_parallel=axes["tensor"],
            pipeline_parallel=axes["pipeline"],
            expert_parallel=axes["expert"],
            sequence_parallel=axes["sequence_parallel"],
            fused=machine.fused,
            flash_attention=flash_attention,
        )
        for phase in ("train", "prefill")
    )
    return train, forward


def recomputed(forward: OperatorTable, machine: Machine, recompute: Any) -> tuple[Any, Any]:
    """Count what recomputation repeats per micro-batch.

    Args:
        forward: operators of the forward pass.
        machine: accelerator they run on.
        recompute: index into `RECOMPUTE`.

    Returns:
        Seconds and FLOPs.
    """
    layers = np.array([name not in ("embedding", "head", "final_norm") for name in forward.names])
    attention = forward.mask("attention")

    def repeated(column: Any) -> Any:
        whole = np.where(recompute == 2, column[layers].sum(axis=0), 0.0)
        return np.where(recompute == 1, column[attention].sum(axis=0), whole)

    times = forward.count * operator_times_s(forward, machine)
    return repeated(times), repeated(forward.count * forward.flops)
