"""The parts of an optimizer step's time, each an array over layouts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.held import stage_parameters
from steelyard.cost.passes import micro_batch_costs
from steelyard.cost.pipeline import busiest_stage, filling_share
from steelyard.cost.roofline import Machine
from steelyard.cost.sharding import state_traffic
from steelyard.cost.unique import on_unique

__all__ = ["ADAMW_PASSES", "Overlap", "step_parts"]

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
    "copy_bytes",
    "gradient_bytes",
)
_HOP_KEYS = ("batch", "tensor", "context", "pipeline", "pipeline_stride")


def step_parts(
    arch: Architecture,
    machine: Machine,
    axes: dict[str, Array],
    sequence_length: int,
    *,
    flash_attention: bool,
    overlap: Overlap,
    reductions: float,
) -> dict[str, Array]:
    """Cost the parts of an optimizer step.

    What depends on a few fields only is evaluated once per combination of these that occurs.

    Args:
        arch: architecture that is trained.
        machine: accelerator with its links.
        axes: arrays [layouts]: the fields of a `Layout`, "batch" and "steps", the strides of the
            groups, their "replicas", shard groups, and bytes on the wire.
        sequence_length: tokens per sequence.
        flash_attention: whether attention is fused.
        overlap: what traffic overlap.
        reductions: all-reduces over the tensor group per layer and pass.

    Returns:
        Arrays [layouts] under the names of a `StepCost`'s times, FLOPs and bytes, and "link_bytes"
        [levels, layouts].
    """
    once, states, hops = _evaluated(
        arch, machine, axes, sequence_length, flash_attention=flash_attention, reductions=reductions
    )
    steps, recompute = axes["steps"], axes["recompute"]
    # Full recomputation repeats the forward pass with its traffic.
    passes = np.where(recompute == 2, 3.0, 2.0)
    once["repeated_s"], repeated_flops = _repeated(once, recompute)
    once["kernels_s"] = once["forward_s"] + once["backward_s"] + once["repeated_s"]
    waits = {
        "tensor_s": passes * once["tensor_s"] * (1 - overlap.tensor),
        "expert_s": passes * once["expert_s"] * (1 - overlap.expert),
        "context_s": _exposed(once["context_s"], overlap.context * 3.5 * once["attention_s"]),
    }
    parts, compute_s = _stage_parts(arch, axes, once, waits, hops, overlap)
    parts["data_s"] = _data_s(axes, states, compute_s, overlap.data)
    parts["update_s"] = _update_s(arch, machine, axes)
    parts["host_s"] = _host_s(arch, machine, axes, sequence_length, compute_s)
    timed = (*waits, "compute_s", "bubble_s", "data_s", "update_s", "host_s")
    parts["time_s"] = sum((parts[name] for name in timed), np.zeros(()))
    share, head = parts["stage_layers"] / arch.num_layers, parts["stage_head"]
    parts["flops"] = steps * (share * (once["flops"] + repeated_flops) + head * once["end_flops"])
    parts["bytes"] = steps * (share * once["bytes"] + head * once["end_bytes"])
    inside = passes * (once["tensor_bytes"] + once["expert_bytes"]) + once["context_bytes"]
    between = 2 * axes["virtual_stages"] * hops["hop_bytes"]
    parts["link_bytes"] = (
        steps * (share * inside + states["micro_batch_bytes"] + between) + states["step_bytes"]
    )
    return parts


def _evaluated(
    arch: Architecture,
    machine: Machine,
    axes: dict[str, Array],
    sequence_length: int,
    *,
    flash_attention: bool,
    reductions: float,
) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
    """Return what a micro-batch costs, what replicas exchange, and the way between stages."""
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
    return once, states, hops


def _stage_parts(
    arch: Architecture,
    axes: dict[str, Array],
    once: dict[str, Array],
    waits: dict[str, Array],
    hops: dict[str, Array],
    overlap: Overlap,
) -> tuple[dict[str, Array], Array]:
    """Return the busiest stage's compute, waits and bubble, and its compute per micro-batch."""
    steps, kernels_s, repeated_s = axes["steps"], once["kernels_s"], once["repeated_s"]
    waiting_s = sum(waits.values(), np.zeros(()))
    layer_s = (kernels_s + waiting_s) / arch.num_layers
    busy = busiest_stage(
        arch.num_layers, axes["pipeline"], layer_s, once["embedding_s"], once["head_s"]
    )
    share = busy.layers / arch.num_layers
    ends_s = busy.embedding * once["embedding_s"] + busy.head * once["head_s"]
    compute_s = share * kernels_s + ends_s
    products_s = once["product_s"] + repeated_s * once["product_s"] / kernels_s
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
    filling_s = filling * (whole_s - compute_s - share * waiting_s)
    filling_s = filling_s + 2 * (axes["pipeline"] - 1) * hops["hop_s"]
    steady_s = steps * axes["virtual_stages"] * 2 * hops["hop_s"] * (1 - overlap.pipeline)
    parts = {name: steps * share * value for name, value in waits.items()}
    parts["compute_s"] = steps * compute_s
    parts["product_s"] = steps * (share * products_s + busy.head * once["end_product_s"])
    # A difference of equal sums may round below zero.
    parts["bubble_s"] = np.maximum(filling_s + steady_s, 0.0)
    return parts | {f"stage_{name}": value for name, value in busy._asdict().items()}, compute_s


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
    """Time the traffic between replicas that does not hide behind compute, and its quantizers."""
    each_s = states["gather_s"] + states["regather_s"] + states["scatter_s"]
    # Quantizers keep the accelerator busy like kernels do: traffic hides behind them as well.
    coded_s = states["micro_batch_code_s"]
    busy_s = compute_s + coded_s
    # What a step exchanges once hides behind its last backward pass, two thirds of a micro-batch's
    # compute, and updated weights behind the forward pass of the next step.
    last_s = _exposed(states["reduce_s"], overlap * busy_s * 2 / 3)
    first_s = _exposed(states["return_s"], overlap * busy_s / 3)
    every_s = coded_s + _exposed(each_s, overlap * busy_s)
    return axes["steps"] * every_s + last_s + first_s + states["step_code_s"]


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
