"""Search training layouts.

Every split of a cluster into data, tensor and pipeline groups, evaluated in one array pass.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.layout import RECOMPUTE, Layout
from steelyard.cost.roofline import Machine
from steelyard.cost.step import StepCost, training_step

__all__ = ["LayoutSearch", "accelerator_counts", "search_layouts"]

MICRO_BATCHES = (1, 2, 4, 8)
MAX_PIPELINE = 64
MAX_SHARDED_REPLICAS = 512
"""Largest ZeRO-3 group tried: published runs agree with the cost model up to it, and at 1,536 and
2,240 ran four times slower."""
Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutSearch:
    """All candidate layouts with their costs; every array is [candidates].

    Attributes:
        data: data-parallel replicas.
        tensor: tensor-parallel degree.
        pipeline: pipeline stages.
        zero_stage: sharding stage.
        recompute: index into `cost.layout.RECOMPUTE`.
        micro_batch: sequences.
        accumulation: micro-batches per step.
        cost: of each candidate.
        fits: whether memory suffices.
        limit_bytes: memory a candidate may use.
    """

    data: Array
    tensor: Array
    pipeline: Array
    zero_stage: Array
    recompute: Array
    micro_batch: Array
    accumulation: Array
    cost: StepCost
    fits: Array
    limit_bytes: float

    @property
    def num_accelerators(self) -> Array:
        """Accelerators of each candidate."""
        return self.data * self.tensor * self.pipeline

    @property
    def tokens_per_s(self) -> Array:
        """Throughput of each candidate."""
        return self.cost.tokens / self.cost.time_s

    @property
    def memory_bytes(self) -> Array:
        """Memory of the fullest accelerator of each candidate."""
        return np.asarray(self.cost.memory.total)

    def best(self, allowed: Array) -> int:
        """Return the index of the fastest allowed candidate, -1 when none is; ties go to the smaller memory."""
        if not allowed.any():
            return -1
        rate = np.where(allowed, self.tokens_per_s, -np.inf)
        close = np.flatnonzero(rate >= rate.max() * (1 - 1e-9))
        return int(close[np.argmin(self.memory_bytes[close])])

    def choice(self, index: int) -> dict[str, Any]:
        """Return a candidate as plain values."""
        names = ("data", "tensor", "pipeline", "zero_stage", "micro_batch", "accumulation")
        plain: dict[str, Any] = {name: int(getattr(self, name)[index]) for name in names}
        plain |= {
            "recompute": RECOMPUTE[int(self.recompute[index])],
            "sequence_parallel": bool(self.tensor[index] > 1),
        }
        return {"num_accelerators": int(self.num_accelerators[index]), **plain}


def accelerator_counts(num_nodes: int, per_node: int) -> list[int]:
    """List how many accelerators to try: parts of a node, then all nodes, halves of that, and powers of two of nodes."""
    inside = [count for count in range(1, per_node) if per_node % count == 0]
    nodes = {num_nodes >> shift for shift in range(num_nodes.bit_length())} | {
        1 << shift for shift in range(num_nodes.bit_length())
    }
    return inside + [count * per_node for count in sorted(nodes)]


def search_layouts(
    arch: Architecture,
    machine: Machine,
    *,
    counts: list[int],
    global_batch: int,
    sequence_length: int,
    reserve_fraction: float = 0.12,
) -> LayoutSearch:
    """Evaluate every layout of every number of accelerators.

    Args:
        arch: the model.
        machine: an accelerator with its links.
        counts: numbers of accelerators to try.
        global_batch: wanted sequences per step; a layout may deviate by at most a quarter to divide
            evenly.
        sequence_length: tokens per sequence.
        reserve_fraction: memory kept for the runtime, buffers and fragmentation.

    Returns:
        All candidates; empty arrays when no split divides the model and the batch.
    """
    rows = [row for count in counts for row in _splits(arch, machine, count, global_batch)]
    tensor, pipeline, data, micro, steps = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    policies = [(zero, recompute) for zero in (0, 1, 2, 3) for recompute in range(len(RECOMPUTE))]
    zero, recompute = (np.repeat(column, len(rows)) for column in np.array(policies).T)
    tensor, pipeline, data, micro, steps = (
        np.tile(item, len(policies)) for item in (tensor, pipeline, data, micro, steps)
    )
    sensible = (
        ((data > 1) | (zero == 0))
        & ((pipeline == 1) | (zero < 2))
        & (recompute != 1)
        & ((zero < 3) | (data <= MAX_SHARDED_REPLICAS))
    )
    columns = (item[sensible] for item in (tensor, pipeline, data, micro, steps, zero, recompute))
    tensor, pipeline, data, micro, steps, zero, recompute = columns
    layout = Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        zero_stage=zero,
        sequence_parallel=tensor > 1,
        recompute=recompute,
    )
    cost = training_step(
        arch,
        machine=machine,
        micro_batch=micro,
        sequence_length=sequence_length,
        accumulation=steps,
        layout=layout,
    )
    limit = machine.memory_bytes * (1 - reserve_fraction)
    return LayoutSearch(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        zero_stage=zero,
        recompute=recompute,
        micro_batch=micro,
        accumulation=steps,
        cost=cost,
        fits=np.asarray(cost.memory.total) <= limit,
        limit_bytes=limit,
    )


def _splits(
    arch: Architecture, machine: Machine, count: int, global_batch: int
) -> list[tuple[int, int, int, int, int]]:
    """List (tensor, pipeline, data, micro-batch, accumulation) of a number of accelerators; tensor groups stay in a node."""
    rows = []
    for tensor in (1, 2, 4, 8, 16):
        if (
            tensor > machine.accelerators_per_node
            or arch.num_heads % tensor
            or count % tensor
            or machine.accelerators_per_node % tensor
        ):
            continue
        for pipeline in range(1, min(arch.num_layers, MAX_PIPELINE, count // tensor) + 1):
            if arch.num_layers % pipeline or (count // tensor) % pipeline:
                continue
            data = count // tensor // pipeline
            rows += [(tensor, pipeline, data, *part) for part in _batches(global_batch, data)]
    return rows


def _batches(global_batch: int, data: int) -> list[tuple[int, int]]:
    """List (micro-batch, accumulation) whose product over the replicas is within a quarter of the wanted batch."""
    found = []
    for micro in MICRO_BATCHES:
        steps = round(global_batch / (data * micro))
        if steps >= 1 and 0.75 <= steps * data * micro / global_batch <= 1.25:
            found.append((micro, steps))
    return found
