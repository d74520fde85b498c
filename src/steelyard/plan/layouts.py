"""Every split of a cluster into data, tensor and pipeline groups, costed in one array pass."""

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.layout import RECOMPUTE, Layout
from steelyard.cost.memory import MemoryBreakdown
from steelyard.cost.resident import resident_training_memory
from steelyard.cost.roofline import Machine
from steelyard.cost.step import StepCost, training_step
from steelyard.errors import InfeasibleError
from steelyard.units import pretty

__all__ = ["LayoutSearch", "accelerator_counts", "fastest", "fitting_layouts", "search_layouts"]

MICRO_BATCHES = (1, 2, 4, 8)
MAX_PIPELINE = 64
MAX_SHARDED_REPLICAS = 512
"""Largest ZeRO-3 group tried: published runs agree with the cost model up to it. The only larger
ones, on 1,536 and 2,240 replicas, are of a library whose rings reached a ninth of the network."""
_COLUMNS = (
    "tensor",
    "pipeline",
    "data",
    "micro_batch",
    "accumulation",
    "zero_stage",
    "recompute",
)
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
        micro_batch: sequences per micro-batch.
        accumulation: micro-batches per step.
        cost: cost of each candidate.
        fits: whether memory suffices.
        limit_bytes: memory a candidate may use.
        sequence_length: tokens per sequence.
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
    sequence_length: int

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

    def one_cost(self, index: int) -> StepCost:
        """Return the cost of one candidate as plain values."""
        return self.cost.at(index)

    def best(self, allowed: Array) -> int:
        """Return the index of the fastest allowed candidate, -1 when none is allowed.

        Of equally fast ones it is the one of the smallest memory.

        Args:
            allowed: whether each candidate may be chosen, [candidates].

        Returns:
            An index.
        """
        if not allowed.any():
            return -1
        return fastest(self.tokens_per_s, self.memory_bytes, allowed)

    def choice(self, index: int) -> dict[str, Any]:
        """Return a candidate as plain values."""
        names = ("num_accelerators", "data", "tensor", "pipeline", "zero_stage")
        names += ("micro_batch", "accumulation")
        return {name: int(getattr(self, name)[index]) for name in names} | {
            "recompute": RECOMPUTE[int(self.recompute[index])],
            "sequence_parallel": bool(self.tensor[index] > 1),
        }


def fastest(tokens_per_s: Array, memory_bytes: Array, allowed: Array) -> int:
    """Return the place of the fastest candidate; of equally fast ones that of the smallest memory.

    Args:
        tokens_per_s: throughput of each, [candidates].
        memory_bytes: memory of its fullest accelerator, [candidates].
        allowed: whether each may be chosen, [candidates]; one of them at least.

    Returns:
        An index.
    """
    rate = np.where(allowed, tokens_per_s, -np.inf)
    # Candidates that do the same work in another order differ by rounding only.
    close = np.flatnonzero(rate >= rate.max() * (1 - 1e-9))
    return int(close[np.argmin(memory_bytes[close])])


def accelerator_counts(num_nodes: int, per_node: int) -> list[int]:
    """List how many accelerators to try.

    These are parts of a node, all nodes with their halves, and powers of two of nodes.

    Args:
        num_nodes: nodes of the cluster.
        per_node: accelerators per node.

    Returns:
        Rising numbers.
    """
    inside = [count for count in range(1, per_node) if per_node % count == 0]
    shifts = range(num_nodes.bit_length())
    nodes = {num_nodes >> shift for shift in shifts} | {1 << shift for shift in shifts}
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
        arch: model that is trained.
        machine: accelerator with its links.
        counts: numbers of accelerators to try.
        global_batch: target sequences per step; a layout may deviate by at most a quarter to divide
            evenly.
        sequence_length: tokens per sequence.
        reserve_fraction: share of memory kept for the runtime, buffers and fragmentation.

    Returns:
        All candidates; empty arrays when no split divides the model and the batch.
    """
    rows = [row for count in counts for row in _splits(arch, machine, count, global_batch)]
    policies = itertools.product(range(4), range(len(RECOMPUTE)))
    every = [(*row, *policy) for policy in policies for row in rows]
    columns = dict(zip(_COLUMNS, np.array(every, dtype=np.int64).reshape(-1, 7).T, strict=True))
    data = columns["data"]
    zero = columns["zero_stage"]
    sensible = (
        # One replica shards nothing. Stages 2 and 3 under a pipeline would reduce or gather once
        # per micro-batch, and fused attention leaves selective recomputation nothing to save.
        ((data > 1) | (zero == 0))
        & ((columns["pipeline"] == 1) | (zero < 2))
        & (columns["recompute"] != 1)
        & ((zero < 3) | (data <= MAX_SHARDED_REPLICAS))
        # This package's own trainer keeps every activation.
        & ((columns["recompute"] == 0) | (not machine.trainer_process_bytes))
    )
    columns = {name: column[sensible] for name, column in columns.items()}
    layout = Layout(
        data=columns["data"],
        tensor=columns["tensor"],
        pipeline=columns["pipeline"],
        zero_stage=columns["zero_stage"],
        sequence_parallel=columns["tensor"] > 1,
        recompute=columns["recompute"],
    )
    cost = training_step(
        arch,
        machine=machine,
        micro_batch=columns["micro_batch"],
        sequence_length=sequence_length,
        accumulation=columns["accumulation"],
        layout=layout,
    )
    if machine.trainer_process_bytes:
        cost = replace(cost, memory=_own_memory(arch, machine, columns, sequence_length))
    limit = machine.memory_bytes * (1 - reserve_fraction)
    fits = np.asarray(cost.memory.total) <= limit
    return LayoutSearch(
        **columns, cost=cost, fits=fits, limit_bytes=limit, sequence_length=sequence_length
    )


def fitting_layouts(
    arch: Architecture,
    machine: Machine,
    *,
    counts: list[int],
    global_batch: int,
    sequence_length: int,
    reserve_fraction: float = 0.12,
) -> LayoutSearch:
    """Evaluate every layout, and refuse where none exists or none fits in memory.

    Args:
        arch: model that is trained.
        machine: accelerator with its links.
        counts: numbers of accelerators to try.
        global_batch: target sequences per step.
        sequence_length: tokens per sequence.
        reserve_fraction: share of memory kept for the runtime, buffers and fragmentation.

    Returns:
        All candidates, of which one at least fits.

    Raises:
        InfeasibleError: no split divides the model and the batch, or none fits; the message says
            which, and how much memory is missing.
    """
    search = search_layouts(
        arch,
        machine,
        counts=counts,
        global_batch=global_batch,
        sequence_length=sequence_length,
        reserve_fraction=reserve_fraction,
    )
    if not len(search.fits):
        raise InfeasibleError(
            f"batch: no split of {max(counts)} accelerators divides {global_batch} sequences and "
            f"{arch.num_layers} layers",
            hint="use fewer accelerators, a larger batch, or a longer run where it sets the batch",
        )
    if not search.fits.any():
        least = float(search.memory_bytes.min())
        raise InfeasibleError(
            f"memory: {arch.name} needs at least {pretty(least, 'byte')} on each of {max(counts)} "
            f"{machine.name}, which offer {pretty(search.limit_bytes, 'byte')} after the reserve",
            hint=f"use about {np.ceil(least / search.limit_bytes):.0f} times as many accelerators, "
            "ones with more memory, or a smaller model or budget",
        )
    return search


def _own_memory(
    arch: Architecture, machine: Machine, columns: dict[str, Array], sequence_length: int
) -> MemoryBreakdown:
    """Return the memory of this package's own trainer, whose process the machine knows."""
    return resident_training_memory(
        arch,
        batch=columns["micro_batch"],
        sequence_length=sequence_length,
        accumulation=columns["accumulation"],
        dtype="fp32" if machine.dtype_bytes >= 4 else "bf16",
        process_bytes=machine.trainer_process_bytes,
    )


def _splits(
    arch: Architecture, machine: Machine, count: int, global_batch: int
) -> list[tuple[int, int, int, int, int]]:
    """List the first five of `_COLUMNS` for a number of accelerators."""
    rows = []
    for tensor in (1, 2, 4, 8, 16):
        # Tensor groups stay within a node: their traffic is too much for the network.
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
    """List (micro-batch, accumulation) that come within a quarter of the wanted batch."""
    found = []
    for micro in MICRO_BATCHES:
        steps = round(global_batch / (data * micro))
        if steps >= 1 and 0.75 <= steps * data * micro / global_batch <= 1.25:
            found.append((micro, steps))
    return found
