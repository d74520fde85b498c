"""Time of one optimizer step: kernels, communication that cannot hide, bubble and update."""

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
    plain_floats,
    training_memory,
)
from steelyard.cost.operators import OperatorTable, operators
from steelyard.cost.roofline import Machine, operator_times_s
from steelyard.errors import ConfigError

__all__ = ["StepCost", "micro_batch_operators", "recomputed", "training_step"]

OVERLAP = 0.7
"""Share of the compute time that data-parallel traffic may hide behind. It is assumed; the whole
step is checked against published throughput."""

_EXPOSED = 0.05
"""Least share of data-parallel traffic that shows: the first and last buckets have nothing to hide
behind."""

ADAMW_PASSES = {True: 7.0, False: 12.0}
"""Reads and writes of fp32 values per parameter in an update, by whether it is fused: weight and
two moments read and written, gradient read; eager code also writes and reads intermediate
results."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCost:
    """One optimizer step; numbers, or arrays over layouts.

    Attributes:
        time_s: wall time of the step.
        compute_s: time of all micro-batches' kernels on the busiest stage, recomputation included.
        product_s: part of `compute_s` in matrix products and attention.
        tensor_s: exposed tensor-parallel communication.
        bubble_s: idle time while the pipeline fills and drains, and its transfers.
        data_s: exposed data-parallel communication.
        update_s: time of the optimizer's pass over its states.
        model_flops: model FLOPs of the step on all accelerators (6N plus attention).
        flops: FLOPs the busiest accelerator executes, recomputation included.
        bytes: bytes the busiest accelerator moves to and from memory.
        tokens: tokens of the step on all accelerators.
        mfu: model FLOPs per second over the peak of all accelerators.
        memory: memory of the fullest accelerator.
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
        arch: architecture that is trained.
        machine: accelerator with its links.
        micro_batch: sequences per micro-batch and replica.
        sequence_length: tokens per sequence.
        accumulation: micro-batches per step and replica; they also fill the pipeline.
        layout: parallelism, one accelerator when not given; its fields may be arrays that broadcast
            with the arguments.
        flash_attention: whether attention is fused.
        overlap: share of compute that data-parallel traffic may hide behind.
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
    kernels_s, product_s, tensor_s, flops, moved = _micro_batch(
        arch, machine, axes, batch, sequence_length, flash_attention
    )
    once_s = kernels_s + tensor_s
    tokens = steps * batch * sequence_length * axes["data"]
    parts = {
        "compute_s": steps * kernels_s,
        "product_s": steps * product_s,
        "tensor_s": steps * tensor_s,
        "bubble_s": _bubble_s(arch, machine, axes, batch * sequence_length, steps, once_s),
        "data_s": _data_s(arch, machine, axes, steps, kernels_s, overlap),
        "update_s": _update_s(arch, machine, axes),
        "flops": steps * flops,
        "bytes": steps * moved,
        "tokens": tokens,
        "model_flops": tokens * model_flops_per_token(arch, sequence_length, convention=convention),
    }
    parts["time_s"] = steps * once_s + parts["bubble_s"] + parts["data_s"] + parts["update_s"]
    most_flops = parts["time_s"] * chosen.num_accelerators * machine.peak_flops_per_s
    parts["mfu"] = parts["model_flops"] / most_flops
    memory = training_memory(
        arch,
        batch=batch,
        sequence_length=sequence_length,
        layout=chosen,
        accumulation=steps,
        precision=PURE_FP32 if machine.dtype_bytes >= 4 else MIXED,
        flash_attention=flash_attention,
    )
    return StepCost(memory=memory, **plain_floats(**parts))


def micro_batch_operators(
    arch: Architecture,
    machine: Machine,
    axes: dict[str, Any],
    batch: Any,
    sequence_length: int,
    *,
    flash_attention: bool = True,
) -> tuple[OperatorTable, OperatorTable]:
    """List what one micro-batch runs on the busiest accelerator.

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
            batch=batch,
            dtype_bytes=machine.dtype_bytes,
            tensor_parallel=axes["tensor"],
            pipeline_parallel=axes["pipeline"],
            sequence_parallel=axes["sequence_parallel"],
            fused=machine.fused,
            flash_attention=flash_attention,
        )
        for phase in ("train", "prefill")
    )
    return train, forward


def _micro_batch(
    arch: Architecture,
    machine: Machine,
    axes: dict[str, Any],
    batch: Any,
    sequence_length: int,
    flash_attention: bool,
) -> tuple[Any, Any, Any, Any, Any]:
    """Time one micro-batch on the busiest accelerator, and count what it computes and moves.

    Returned are the seconds of all kernels, of products among them and of exposed tensor-parallel
    traffic; FLOPs; and bytes.
    """
    train, forward = micro_batch_operators(
        arch, machine, axes, batch, sequence_length, flash_attention=flash_attention
    )
    repeat_s, repeat_flops = recomputed(forward, machine, axes["recompute"])
    # Full recomputation repeats the forward pass with its all-reduces.
    passes = 2 + np.where(axes["recompute"] == 2, 1, 0)
    times = train.count * operator_times_s(train, machine)
    kernels_s = times.sum(axis=0) + repeat_s
    return (
        kernels_s,
        kernels_s * times[~train.mask("memory")].sum(axis=0) / times.sum(axis=0),
        passes * _tensor_s(arch, machine, batch * sequence_length, axes),
        train.total("flops") + repeat_flops,
        train.total("bytes_read") + train.total("bytes_written"),
    )


def _bubble_s(
    arch: Architecture,
    machine: Machine,
    axes: dict[str, Any],
    tokens: Any,
    steps: Any,
    once_s: Any,
) -> Any:
    """Time the filling and draining of the pipeline, and the transfers that show afterwards."""
    # Activations of one micro-batch to the next stage, and their gradients back.
    size = 2 * machine.dtype_bytes * tokens * arch.hidden_size / axes["tensor"]
    rate = group_bandwidth(machine, axes["pipeline"], axes["tensor"] * axes["data"])
    hop_s = np.where(axes["pipeline"] > 1, size / rate, 0.0)
    filling_s = (axes["pipeline"] - 1) * (once_s + hop_s)
    # While the pipeline is full, about half of each transfer hides behind the next micro-batch.
    return filling_s + steps * 0.5 * hop_s


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


def _tensor_s(arch: Architecture, machine: Machine, tokens: Any, axes: dict[str, Any]) -> Any:
    """Time the two all-reduces per layer of one stage in one pass."""
    # With sequence parallelism each is a gather and a scatter, which move as much.
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
    """Time the data-parallel traffic that does not hide behind compute."""
    layers, tables = parameter_count(arch)
    local = (layers / axes["pipeline"] + tables) / axes["tensor"]
    size = machine.dtype_bytes * local
    once_s = all_reduce_s(machine, size, axes["data"], axes["tensor"])
    gather_s = all_gather_s(machine, size, axes["data"], axes["tensor"])
    # Gradients are reduced once per step, behind the backward pass of the last micro-batch, which
    # is two thirds of its compute. ZeRO stages 1 and 2 scatter gradients and gather weights: as
    # much traffic as the all-reduce. Stage 3 gathers the weights for the forward and the backward
    # pass of every micro-batch and scatters its gradients: three times one gather.
    plain = np.maximum(once_s - overlap * kernels_s * 2 / 3, _EXPOSED * once_s)
    sharded = steps * np.maximum(3 * gather_s - overlap * kernels_s, _EXPOSED * gather_s)
    return np.where(axes["data"] > 1, np.where(axes["zero_stage"] >= 3, sharded, plain), 0.0)


def _update_s(arch: Architecture, machine: Machine, axes: dict[str, Any]) -> Any:
    """Time the optimizer's pass over the states that one accelerator holds."""
    local = sum(parameter_count(arch)) / axes["pipeline"] / axes["tensor"]
    local = local / np.where(axes["zero_stage"] >= 1, axes["data"], 1)
    return 4.0 * ADAMW_PASSES[machine.fused] * local / machine.memory_bytes_per_s
