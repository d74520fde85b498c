"""Time of one optimizer step: kernels, communication that cannot hide, bubble and update."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.flops import AttentionConvention, attention_flops, model_flops_per_token
from steelyard.cost.layout import ORDER, Layout
from steelyard.cost.memory import (
    MIXED,
    PURE_FP32,
    MemoryBreakdown,
    plain_floats,
    training_memory,
)
from steelyard.cost.roofline import Machine
from steelyard.cost.step_parts import Overlap, step_parts
from steelyard.errors import ConfigError

__all__ = [
    "Overlap",
    "StepCost",
    "training_step",
]

Array = NDArray[Any]


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
        data_s: exposed data-parallel communication, and quantizing for narrow wires.
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
        stage_layers: layers on the busiest stage.
        stage_embedding: 1 where the busiest stage holds the embedding, else 0.
        stage_head: 1 where it holds the head, else 0.
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
    stage_layers: Any
    stage_embedding: Any
    stage_head: Any
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
    axes, shape = _axes(chosen, micro_batch, accumulation, sequence_length, order)
    axes |= _derived(machine, axes, order)
    parts = step_parts(
        arch,
        machine,
        axes,
        sequence_length,
        flash_attention=flash_attention,
        overlap=overlap or Overlap(),
        reductions=reductions,
    )
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
        fused=machine.fused,
    )
    links = parts.pop("link_bytes")
    shaped = {name: value.reshape(shape) for name, value in parts.items()}
    return StepCost(
        memory=memory, link_bytes=links.reshape(len(links), *shape), **plain_floats(**shaped)
    )


def _axes(
    layout: Layout,
    micro_batch: ArrayLike,
    accumulation: ArrayLike,
    sequence_length: int,
    order: tuple[str, ...],
) -> tuple[dict[str, Array], tuple[int, ...]]:
    """Return everything as arrays [layouts], and the shape that the arguments broadcast to."""
    named = {"batch": np.asarray(micro_batch), "steps": np.asarray(accumulation, dtype=float)}
    named |= layout.arrays()
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
    return axes, shape


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
    for name in ("weight", "copy", "gradient"):
        bits = axes[f"{name}_wire_bits"]
        # A column that repeats one value stays one, which spares passes over a million layouts.
        apart = bits if bits.strides[0] else bits[:1]
        each = np.where(apart > 0, apart / 8, machine.dtype_bytes)
        found[f"{name}_bytes"] = np.broadcast_to(each, bits.shape)
    return found


def _recomputed_share(
    arch: Architecture, sequence_length: int, convention: AttentionConvention
) -> NDArray[np.float64]:
    """Return the recomputed FLOPs over the model FLOPs, by index into `RECOMPUTE`."""
    work = model_flops_per_token(arch, sequence_length, convention=convention) / 3
    attention = attention_flops(arch, sequence_length, convention=convention) / sequence_length
    head = 0 if arch.kind == "encoder" else 2 * arch.hidden_size * arch.vocab_size
    return np.array([0.0, attention, work - head]) / (3 * work)
