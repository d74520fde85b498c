"""What one micro-batch costs on one accelerator: kernels and the traffic within a layer."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.collectives import all_gather_s, all_reduce_s, all_to_all_s, level_bytes
from steelyard.cost.operators import OperatorTable, operators
from steelyard.cost.roofline import Machine, operator_times_s

__all__ = ["ENDS", "micro_batch_costs"]

Array = NDArray[np.float64]
ENDS = ("embedding", "final_norm", "head", "loss")
"""Operators outside the layers, of which only the embedding stands on the first stage."""


def micro_batch_costs(
    arch: Architecture,
    machine: Machine,
    axes: dict[str, Any],
    sequence_length: int,
    *,
    flash_attention: bool,
    reductions: float,
) -> dict[str, Array]:
    """Cost one micro-batch's way through all layers, embedding and head on one accelerator.

    Args:
        arch: architecture that is trained.
        machine: accelerator with its links.
        axes: arrays [layouts]: "batch", "tensor", "context", "expert", "sequence_parallel", and
            "tensor_stride" and "context_stride", the distances between the members of a group.
        sequence_length: tokens per sequence.
        flash_attention: whether attention is fused.
        reductions: all-reduces over the tensor group per layer and pass.

    Returns:
        Arrays [layouts]: seconds "forward_s", "backward_s", "attention_s" (of the forward pass),
        "weight_s" (gradients of weights), "product_s" of all layers, "embedding_s", "head_s",
        "end_product_s"; "flops", "forward_flops", "attention_flops", "end_flops"; "bytes",
        "end_bytes"; traffic of one pass over all layers "tensor_s", "expert_s", and of all
        passes "context_s"; and [levels, layouts] bytes that one accelerator sends, "tensor_bytes"
        and "expert_bytes" of one pass, "context_bytes" of all passes.
    """
    table = operators(
        arch,
        phase="train",
        tokens=sequence_length,
        batch=axes["batch"] / axes["context"],
        dtype_bytes=machine.dtype_bytes,
        tensor_parallel=axes["tensor"],
        expert_parallel=axes["expert"],
        sequence_parallel=axes["sequence_parallel"],
        fused=machine.fused,
        flash_attention=flash_attention,
    )
    tokens = axes["batch"] * sequence_length / axes["context"]
    return _kernels(table, machine) | _traffic(arch, machine, axes, tokens, reductions)


def _kernels(table: OperatorTable, machine: Machine) -> dict[str, Array]:
    """Add up the operators by pass and place."""
    stems = [name.partition(".")[0] for name in table.names]
    ahead = np.array(["." not in name for name in table.names])
    ends = np.array([stem in ENDS for stem in stems])
    first = np.array([stem == "embedding" for stem in stems])
    weight = np.array([name.endswith(".grad_weight") for name in table.names])
    attention = table.mask("attention")
    product = ~table.mask("memory")
    seconds = table.count * operator_times_s(table, machine)
    flops, moved = table.count * table.flops, table.count * table.bytes_moved
    sums = {
        "forward_s": (seconds, ahead & ~ends),
        "backward_s": (seconds, ~ahead & ~ends),
        "attention_s": (seconds, ahead & attention),
        "weight_s": (seconds, weight & ~ends),
        "product_s": (seconds, product & ~ends),
        "embedding_s": (seconds, first),
        "head_s": (seconds, ends & ~first),
        "end_product_s": (seconds, product & ends),
        "flops": (flops, ~ends),
        "forward_flops": (flops, ahead & ~ends),
        "attention_flops": (flops, ahead & attention),
        "end_flops": (flops, ends),
        "bytes": (moved, ~ends),
        "end_bytes": (moved, ends),
    }
    return {name: column[among].sum(axis=0) for name, (column, among) in sums.items()}


def _traffic(
    arch: Architecture, machine: Machine, axes: dict[str, Any], tokens: Array, reductions: float
) -> dict[str, Array]:
    """Time the traffic within tensor, context and expert groups, and count its bytes."""
    topology, width = machine.topology, machine.dtype_bytes
    layers = arch.num_layers
    tensor, context, expert = axes["tensor"], axes["context"], axes["expert"]
    hidden = width * tokens * arch.hidden_size
    # With sequence parallelism each all-reduce is a gather and a scatter, which move as much.
    times = reductions * layers
    summed = times * all_reduce_s(topology, hidden, tensor, axes["tensor_stride"])
    tensor_bytes = 2 * times * level_bytes(topology.group(tensor, axes["tensor_stride"]), hidden)
    # Ring attention: keys and values of all others pass in the forward pass, and in the backward
    # pass again with their gradients.
    heads = np.maximum(arch.num_kv_heads / tensor, 1)
    kept = width * tokens * context * 2 * heads * arch.head_dim
    rings = 3.0 * layers
    group = topology.group(context, axes["context_stride"])
    ring_s = rings * all_gather_s(topology, kept, context, axes["context_stride"], algorithm="ring")
    found = {
        "tensor_s": summed,
        "tensor_bytes": tensor_bytes,
        "context_s": np.where(context > 1, ring_s, 0.0),
        "context_bytes": rings * level_bytes(group, kept),
        "expert_s": np.zeros_like(summed),
        "expert_bytes": np.zeros_like(tensor_bytes),
    }
    if arch.num_experts:
        # Each token's state goes to its experts and comes back; the members of a tensor group each
        # send their part of the tokens.
        sent = hidden * arch.experts_per_token / tensor
        exchanged_s = all_to_all_s(topology, sent, expert)
        share = 2.0 * arch.num_expert_layers
        found["expert_s"] = np.where(expert > 1, share * exchanged_s, 0.0)
        found["expert_bytes"] = share * level_bytes(topology.group(expert), sent, kind="exchange")
    return found
