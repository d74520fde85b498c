"""Time one optimizer step.

Compute by the roofline, communication that cannot hide, the pipeline's bubble, the update.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from steelyard.catalog.architecture import Architecture
from steelyard.cost.collectives import all_gather_s, all_reduce_s, group_bandwidth
from steelyard.cost.flops import AttentionConvention, model_flops_per_token
from steelyard.cost.layout import Layout
from steelyard.cost.memory import (
    MIXED,
    PURE_FP32,
    MemoryBreakdown,
    parameter_count,
    training_memory,
)
from steelyard.cost.operators import operators
from steelyard.cost.roofline import Machine, operator_times_s
from steelyard.errors import ConfigError

__all__ = ["StepCost", "training_step"]

OVERLAP = 0.7
"""Share of data-parallel traffic that hides behind compute; assumed; the whole step is checked
against published throughput."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCost:
    """One optimizer step; numbers, or arrays over layouts.

    Attributes:
        time_s: wall time of the step.
        compute_s: kernels of all micro-batches of the busiest stage, recomputation included.
        product_s: part of `compute_s` in matrix products and attention.
        tensor_s: exposed tensor-parallel communication.
        bubble_s: idle time while the pipeline fills and drains, and its transfers.
        data_s: exposed data-parallel communication.
        update_s: the optimizer's pass over its states.
        model_flops: model FLOPs of the step on all accelerators (6N plus attention).
        flops: FLOPs the busiest accelerator executes, recomputation included.
        bytes: bytes it moves to and from memory.
        tokens: tokens of the step on all accelerators.
        mfu: model FLOPs per second over the peak of all accelerators.
        memory: of the fullest accelerator.
    """

    time_s: Any
    compute_s: Any
    product_s: Any
    tensor_s: Any
    bubble_s: Any
    data_s: Any
    update_s: Any
    model_flops: Any
    flops: Any
    bytes: Any
    tokens: Any
    mfu: Any
    memory: MemoryBreakdown


def training_step(
    arch: Architecture,
    *,
    machine: Machine,
    micro_batch: ArrayLike,
    sequence_length: int,
    accumulation: ArrayLike = 1,
    layout: Layout | None = None,
    flash_attention: bool = True,
    overlap: float = OVERLAP,
    convention: AttentionConvention = "full",
) -> StepCost:
    """Predict time, FLOPs and memory of one optimizer step.

    Args:
        arch: the architecture.
        machine: an accelerator with its links.
        micro_batch: sequences per micro-batch and replica.
        sequence_length: tokens of each.
        accumulation: micro-batches per step and replica; also fills the pipeline.
        layout: one accelerator when not given; fields may be arrays that broadcast with the
            arguments.
        flash_attention: fused attention.
        overlap: share of data-parallel traffic that hides behind compute.
        convention: how attention counts in model FLOPs; execution always runs the causal half.

    Returns:
        The step's parts; plain floats when no argument is an array.

    Raises:
        ConfigError: a size is smaller than 1.

    Source: Narayanan et al. 2021 (bubble, tensor parallelism); Rajbhandari et al. 2020 (ZeRO
        traffic).
    """
    chosen = layout or Layout()
    axes = chosen.arrays()
    batch, steps = (np.asarray(item, dtype=float) for item in (micro_batch, accumulation))
    if sequence_length < 1 or (batch < 1).any() or (steps < 1).any():
        raise ConfigError("micro_batch, accumulation and sequence_length must be at least 1")
    seconds, work = _micro_batch(arch, machine, axes, batch, sequence_length, flash_attention)
    kernels_s, product_s, tensor_s = seconds
    hop_s = _hop_s(arch, machine, axes, batch * sequence_length)
    bubble_s = (axes["pipeline"] - 1) * (kernels_s + tensor_s + hop_s) + steps * 0.5 * hop_s
    data_s = _data_s(arch, machine, axes, steps, kernels_s, overlap)
    update_s = _update_s(arch, machine, axes)
    total_s = steps * (kernels_s + tensor_s) + bubble_s + data_s + update_s
    tokens = steps * batch * sequence_length * axes["data"]
    model_flops = tokens * model_flops_per_token(arch, sequence_length, convention=convention)
    parts = {
        "time_s": total_s,
        "compute_s": steps * kernels_s,
        "product_s": steps * product_s,
        "tensor_s": steps * tensor_s,
        "bubble_s": bubble_s,
        "data_s": data_s,
        "update_s": update_s,
        "model_flops": model_flops,
        "flops": steps * work[0],
        "bytes": steps * work[1],
        "tokens": tokens,
        "mfu": model_flops / (total_s * chosen.num_accelerators * machine.peak_flops_per_s),
    }
    precision = PURE_FP32 if machine.dtype_bytes >= 4 else MIXED
    options: dict[str, Any] = {
        "accumulation": steps,
        "precision": precision,
        "flash_attention": flash_attention,
    }
    memory = training_memory(
        arch, batch=batch, sequence_length=sequence_length, layout=chosen, **options
    )
    return StepCost(
        **{name: float(value) if np.ndim(value) == 0 else value for name, value in parts.items()},
        memory=memory,
    )


def _micro_batch(
    arch: Architecture,
    machine: Machine,
    axes: dict[str, Any],
    batch: Any,
    sequence_length: int,
    flash_attention: bool,
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any]]:
    """Give (kernel, product and tensor-parallel seconds), (FLOPs, bytes moved) of one micro-batch on the busiest accelerator."""
    shape: dict[str, Any] = {
        "tensor_parallel": axes["tensor"],
        "pipeline_parallel": axes["pipeline"],
        "tokens": sequence_length,
    }
    shape |= {
        "batch": batch,
        "dtype_bytes": machine.dtype_bytes,
        "fused": machine.fused,
        "flash_attention": flash_attention,
    }
    shape["sequence_parallel"] = axes["sequence_parallel"]
    train, forward = (operators(arch, phase=phase, **shape) for phase in ("train", "prefill"))
    repeat_s, repeat_flops = _recomputed(forward, machine, axes["recompute"])
    passes = 2 + np.where(axes["recompute"] == 2, 1, 0)
    tensor_s = passes * _tensor_s(arch, machine, batch * sequence_length, axes)
    moved = train.total("bytes_read") + train.total("bytes_written")
    times = train.count * operator_times_s(train, machine)
    kernels_s = times.sum(axis=0) + repeat_s
    product_s = kernels_s * times[~train.mask("memory")].sum(axis=0) / times.sum(axis=0)
    return (kernels_s, product_s, tensor_s), (train.total("flops") + repeat_flops, moved)


def _hop_s(arch: Architecture, machine: Machine, axes: dict[str, Any], tokens: Any) -> Any:
    """Time one micro-batch's activations and gradients to the next stage and back."""
    size = 2 * machine.dtype_bytes * tokens * arch.hidden_size / axes["tensor"]
    rate = group_bandwidth(machine, axes["pipeline"], axes["tensor"] * axes["data"])
    return np.where(axes["pipeline"] > 1, size / rate, 0.0)


def _recomputed(forward: Any, machine: Machine, recompute: Any) -> tuple[Any, Any]:
    """Return seconds and FLOPs that recomputation repeats per micro-batch: attention only, or all layers."""
    times = forward.count * operator_times_s(forward, machine)
    layers = np.array([name not in ("embedding", "head", "final_norm") for name in forward.names])
    attention = forward.mask("attention")
    flops = forward.count * forward.flops
    seconds = np.where(
        recompute == 2,
        times[layers].sum(axis=0),
        np.where(recompute == 1, times[attention].sum(axis=0), 0.0),
    )
    return seconds, np.where(
        recompute == 2,
        flops[layers].sum(axis=0),
        np.where(recompute == 1, flops[attention].sum(axis=0), 0.0),
    )


def _tensor_s(arch: Architecture, machine: Machine, tokens: Any, axes: dict[str, Any]) -> Any:
    """Time the two all-reduces of each layer of one stage in one pass; as gather and scatter they cost the same."""
    size = machine.dtype_bytes * tokens * arch.hidden_size
    layers = arch.num_layers / axes["pipeline"]
    return np.where(
        axes["tensor"] > 1, 2 * layers * all_reduce_s(machine, size, axes["tensor"]), 0.0
    )


def _data_s(
    arch: Architecture,
    machine: Machine,
    axes: dict[str, Any],
    steps: Any,
    kernels_s: Any,
    overlap: float,
) -> Any:
    """Time the data-parallel traffic that is not hidden: gradients once per step, or sharded weights every micro-batch."""
    layers, tables = parameter_count(arch)
    local = (layers / axes["pipeline"] + tables) / axes["tensor"]
    once_s = all_reduce_s(machine, machine.dtype_bytes * local, axes["data"], axes["tensor"])
    gather_s = all_gather_s(machine, machine.dtype_bytes * local, axes["data"], axes["tensor"])
    hidden_once = overlap * kernels_s * 2 / 3
    hidden_every = overlap * kernels_s
    sharded = steps * np.maximum(3 * gather_s - hidden_every, 0.05 * gather_s)
    plain = np.maximum(once_s - hidden_once, 0.05 * once_s)
    return np.where(axes["data"] > 1, np.where(axes["zero_stage"] >= 3, sharded, plain), 0.0)


def _update_s(arch: Architecture, machine: Machine, axes: dict[str, Any]) -> Any:
    """Time the optimizer: it reads and writes weights and two moments, and reads gradients, in fp32."""
    local = sum(parameter_count(arch)) / axes["pipeline"] / axes["tensor"]
    local = local / np.where(axes["zero_stage"] >= 1, axes["data"], 1)
    passes = 7.0 if machine.fused else 12.0
    return 4.0 * passes * local / machine.memory_bytes_per_s
