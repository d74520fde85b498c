"""Every split of a cluster into data, tensor and pipeline groups, costed in one array pass."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.layout import RECOMPUTE, SCHEDULES, Layout
from steelyard.cost.memory import MemoryBreakdown
from steelyard.cost.resident import resident_training_memory
from steelyard.cost.roofline import Machine
from steelyard.cost.step import StepCost, training_step
from steelyard.errors import InfeasibleError
from steelyard.plan.layout_space import LayoutSpace, layout_columns
from steelyard.units import pretty

__all__ = ["LayoutSearch", "accelerator_counts", "fastest", "fitting_layouts", "search_layouts"]

_DEGREES = ("data", "tensor", "pipeline", "context", "expert", "virtual_stages")
_SHARDS = ("weight_shards", "gradient_shards", "optimizer_shards")
_SWITCHES = ("sequence_parallel", "offload_optimizer", "offload_activations")
Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutSearch:
    """All candidate layouts with their costs; every array is [candidates].

    Attributes:
        layout: the layouts; every field that was searched is an array, words as their indices.
        micro_batch: sequences per micro-batch.
        accumulation: micro-batches per step.
        cost: cost of each candidate.
        fits: whether memory suffices.
        limit_bytes: memory a candidate may use.
        sequence_length: tokens per sequence.
        space: what was searched.
    """

    layout: Layout
    micro_batch: Array
    accumulation: Array
    cost: StepCost
    fits: Array
    limit_bytes: float
    sequence_length: int
    space: LayoutSpace

    def column(self, name: str) -> Array:
        """Return one setting of all candidates.

        Args:
            name: field of the layout, "micro_batch" or "accumulation".

        Returns:
            Values [candidates], words as their indices.
        """
        values = getattr(self if name in ("micro_batch", "accumulation") else self.layout, name)
        return np.broadcast_to(np.asarray(values), self.fits.shape)

    @property
    def num_accelerators(self) -> Array:
        """Accelerators of each candidate."""
        return np.asarray(self.layout.num_accelerators)

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
        """Return a candidate as plain values: fields of a `Layout`, with its batch."""

        def of(name: str) -> int:
            return int(self.column(name)[index])

        found: dict[str, Any] = {"num_accelerators": int(self.num_accelerators[index])}
        names = (*_DEGREES, "zero_stage", *_SHARDS, "micro_batch", "accumulation")
        return (
            found
            | {name: of(name) for name in names}
            | {"schedule": SCHEDULES[of("schedule")], "recompute": RECOMPUTE[of("recompute")]}
            | {name: bool(of(name)) for name in _SWITCHES}
        )


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
    space: LayoutSpace | None = None,
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
        space: what each axis may be; all that is worth trying when not given.

    Returns:
        All candidates; empty arrays when no split divides the model and the batch.
    """
    chosen = space or LayoutSpace()
    columns = layout_columns(
        arch,
        machine,
        counts=counts,
        global_batch=global_batch,
        sequence_length=sequence_length,
        space=chosen,
    )
    names = {item.name for item in fields(Layout)} & {*columns}
    layout = Layout(**{name: columns[name] for name in names})
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
    return LayoutSearch(
        layout=layout,
        micro_batch=columns["micro_batch"],
        accumulation=columns["accumulation"],
        cost=cost,
        fits=np.asarray(cost.memory.total) <= limit,
        limit_bytes=limit,
        sequence_length=sequence_length,
        space=chosen,
    )


def fitting_layouts(
    arch: Architecture,
    machine: Machine,
    *,
    counts: list[int],
    global_batch: int,
    sequence_length: int,
    reserve_fraction: float = 0.12,
    space: LayoutSpace | None = None,
) -> LayoutSearch:
    """Evaluate every layout, and refuse where none exists or none fits in memory.

    Args:
        arch: model that is trained.
        machine: accelerator with its links.
        counts: numbers of accelerators to try.
        global_batch: target sequences per step.
        sequence_length: tokens per sequence.
        reserve_fraction: share of memory kept for the runtime, buffers and fragmentation.
        space: what each axis may be; all that is worth trying when not given.

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
        space=space,
    )
    pinned = f" with {words}" if (words := search.space.words) else ""
    if not len(search.fits):
        raise InfeasibleError(
            f"batch: no split of {max(counts)} accelerators divides {global_batch} sequences and "
            f"{arch.num_layers} layers{pinned}",
            hint="use fewer accelerators, a larger batch, or a longer run where it sets the batch",
        )
    if not search.fits.any():
        least = float(search.memory_bytes.min())
        offered = pretty(search.limit_bytes, "byte")
        raise InfeasibleError(
            f"memory: {arch.name} needs at least {pretty(least, 'byte')} on each of {max(counts)} "
            f"{machine.name}{pinned}, which offer {offered} after the reserve",
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
