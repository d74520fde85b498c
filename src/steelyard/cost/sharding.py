"""Traffic that keeps the replicas of weights, gradients and optimizer states in step."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.collectives import all_gather_s, all_reduce_s, level_bytes
from steelyard.cost.held import stage_parameters
from steelyard.cost.roofline import Machine
from steelyard.cost.wire_codes import WireCode

__all__ = ["state_traffic"]

Array = NDArray[np.float64]
GATHERS_PER_LAYER = 4.0
"""Collectives by which one layer's weights are gathered or its gradients scattered: one per large
matrix, with the small tensors beside them."""


def state_traffic(arch: Architecture, machine: Machine, axes: dict[str, Any]) -> dict[str, Array]:
    """Time what replicas exchange per micro-batch and per step.

    Args:
        arch: architecture that is trained.
        machine: accelerator with its links.
        axes: arrays [layouts]: "tensor", "pipeline", "expert", "replicas" and "data_stride" (the
            distance between replicas); "weight_shards", "copy_shards", "gradient_shards" and
            "optimizer_shards", replicas that share one copy; and "weight_bytes", "copy_bytes" and
            "gradient_bytes", bytes of one element on the wire.

    Returns:
        Arrays [layouts] of seconds: "gather_s" (weights for the forward pass of a micro-batch),
        "regather_s" (for its backward pass), "scatter_s" (its gradients), "reduce_s" (gradients at
        the end of the step), "return_s" (updated weights), "micro_batch_code_s" and "step_code_s"
        (quantizing for these wires, which runs where the kernels do and hides behind none); and
        [levels, layouts] bytes that one accelerator sends, "micro_batch_bytes" and "step_bytes".
    """
    dense, routed = stage_parameters(arch, axes)
    layers = arch.num_layers / axes["pipeline"]
    found = _traffic(machine, axes, dense, layers, axes["replicas"], axes["data_stride"], 1.0)
    if not arch.num_experts:
        return found
    # A whole expert has fewer replicas: what is left of the stage beside the expert group.
    apart = axes["expert"] > 1
    beside = np.where(apart, axes["tensor"] / axes["expert"], 1.0)
    others = np.maximum(axes["replicas"] * beside, 1.0)
    stride = np.where(apart, axes["expert"], axes["data_stride"])
    more = _traffic(machine, axes, routed, layers, others, stride, beside)
    return {name: found[name] + more[name] for name in found}


def _traffic(
    machine: Machine,
    axes: dict[str, Any],
    parameters: Array,
    layers: Array,
    replicas: Array,
    stride: Array,
    scale: Any,
) -> dict[str, Array]:
    """Time and count the exchanges over some parameters; `scale` shrinks the shard groups."""
    topology = machine.topology
    groups = tuple(
        np.clip(axes[f"{name}_shards"] * scale, 1.0, replicas)
        for name in ("weight", "copy", "gradient", "optimizer")
    )
    weights, copies, gradients, optimizer = groups
    sent, second, reduced = (
        parameters * axes[f"{name}_bytes"] for name in ("weight", "copy", "gradient")
    )
    copied = axes["copy_shards"] > 0
    again, sent_again = np.where(copied, copies, weights), np.where(copied, second, sent)

    rest = replicas / gradients
    beyond = stride * gradients
    piece = reduced / gradients
    # Where the optimizer is sharded over the rest too, its owner alone needs the sum.
    scattered = optimizer > gradients
    whole_s = all_reduce_s(topology, piece, rest, beyond)
    share_s = all_gather_s(topology, piece, rest, beyond)
    returned = np.maximum(optimizer / weights, 1.0)
    inner = stride * weights
    gathers = level_bytes(topology.group(weights, stride), sent)
    regathers = level_bytes(topology.group(again, stride), sent_again)
    scatters = level_bytes(topology.group(gradients, stride), reduced)
    reduces = level_bytes(topology.group(rest, beyond), piece) * np.where(scattered, 1.0, 2.0)
    returns = level_bytes(topology.group(returned, inner), sent / weights)
    return {
        "gather_s": _layered_s(machine, layers, sent, weights, stride),
        "regather_s": _layered_s(machine, layers, sent_again, again, stride),
        "scatter_s": _layered_s(machine, layers, reduced, gradients, stride),
        "reduce_s": np.where(scattered, share_s, whole_s),
        "return_s": all_gather_s(topology, sent / weights, returned, inner),
        "micro_batch_bytes": gathers + regathers + scatters,
        "step_bytes": reduces + returns,
        **_code_s(machine, axes, parameters, replicas, stride, groups),
    }


def _layered_s(
    machine: Machine, layers: Array, size: Array, members: Array, stride: Array
) -> Array:
    """Time a gather or scatter that happens layer by layer, by the rings libraries use."""
    pieces = np.maximum(GATHERS_PER_LAYER * layers, 1.0)
    leaves = members * stride > machine.accelerators_per_node
    each = size / pieces / np.where(leaves, machine.efficiencies.rings, 1.0)
    return pieces * all_gather_s(machine.topology, each, members, stride, algorithm="ring")


def _code_s(
    machine: Machine,
    axes: dict[str, Any],
    parameters: Array,
    replicas: Array,
    stride: Array,
    groups: tuple[Array, ...],
) -> dict[str, Array]:
    """Time the quantizers of all wires at the memory's bandwidth."""
    wires = [axes[f"{name}_bytes"] for name in ("weight", "copy", "gradient")]
    # Most searches quantize nothing.
    if not any(np.any(wire < machine.dtype_bytes) for wire in wires):
        return dict.fromkeys(("micro_batch_code_s", "step_code_s"), np.zeros_like(replicas))
    weights, copies, gradients, optimizer = groups
    sent, second, reduced = (
        WireCode(machine.dtype_bytes, axes[f"{name}_bytes"])
        for name in ("weight", "copy", "gradient")
    )
    node = np.maximum(machine.accelerators_per_node / stride, 1.0)
    copied = axes["copy_shards"] > 0
    # A second copy in few bits lies so in memory and is made once a step; the first is not kept.
    again = np.where(
        copied,
        second.gathered(parameters, copies, is_kept=True),
        sent.gathered(parameters, weights),
    )
    each = sent.gathered(parameters, weights) + again
    each = each + reduced.scattered(parameters, gradients, np.minimum(gradients, node))
    piece, rest = parameters / gradients, replicas / gradients
    last = reduced.scattered(piece, rest, np.clip(node / gradients, 1.0, rest))
    # An all-reduce gathers what it scattered.
    last = last + np.where(optimizer > gradients, 0.0, reduced.gathered(piece, rest))
    last = last + sent.gathered(parameters / weights, np.maximum(optimizer / weights, 1.0))
    narrow = copied & (second.narrow < second.wide)
    last = last + np.where(narrow, parameters / copies * (second.wide + second.narrow), 0.0)
    rate = machine.memory_bytes_per_s
    return {"micro_batch_code_s": each / rate, "step_code_s": last / rate}
