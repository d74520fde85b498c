"""Over how many replicas each kind of state is split: a shard group per state, searched.

Weights are gathered and gradients scattered with every micro-batch, optimizer states meet the
others once a step. So the frequent traffic belongs on the fastest links, as far as memory allows.
ZeRO's stages, ZeRO++, hybrid sharding and ZeRO-topo are points of this space; which of them is
fastest is an answer, not an option.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.layout import Layout, Recompute
from steelyard.cost.roofline import Machine
from steelyard.cost.step import Overlap, StepCost, training_step
from steelyard.cost.topology import Topology
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.layout_space import MICRO_BATCHES
from steelyard.plan.layouts import fastest
from steelyard.units import pretty

__all__ = ["PLAIN", "QUANTIZED", "ShardChoice", "ShardSearch", "WireBits", "search_shards"]

Array = NDArray[np.float64]
_STATES = ("weight", "weight_copy", "gradient", "optimizer")
_SHARDS = tuple(f"{state}_shards" for state in _STATES)
_BITS = ("weight_wire_bits", "copy_wire_bits", "gradient_wire_bits")


@dataclass(frozen=True, slots=True)
class WireBits:
    """Bits of one element between replicas, scales of blocks included; 0 for the compute dtype.

    Attributes:
        weight: bits of a weight that is gathered.
        copy: bits of a weight of the second copy, in memory and on the wire.
        gradient: bits of a gradient that is scattered.
    """

    weight: float = 0.0
    copy: float = 0.0
    gradient: float = 0.0


PLAIN = WireBits()
"""Everything in the compute dtype."""
QUANTIZED = WireBits(8 + 16 / 2048, 8 + 16 / 2048, 4 + 16 / 256)
"""Weights in 8 bits by blocks of 2,048, gradients in 4 bits by blocks of 256, a 16-bit scale each:
arXiv:2306.10209, section 3."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardChoice:
    """One candidate.

    Attributes:
        groups: replicas that share one copy, by state: "weight", "weight_copy" (0 for no second
            copy), "gradient" and "optimizer".
        levels: name of the level that holds each group, "none" where each replica keeps all.
        wire: bits on the wire.
        micro_batch: sequences per micro-batch.
        accumulation: micro-batches per step.
    """

    groups: dict[str, int]
    levels: dict[str, str]
    wire: WireBits
    micro_batch: int
    accumulation: int


@dataclass(frozen=True, kw_only=True)
class ShardSearch:
    """All candidates with their costs.

    Attributes:
        layout: shard groups of the candidates, each field [candidates].
        micro_batch: sequences per micro-batch, [candidates].
        accumulation: micro-batches per step, [candidates].
        cost: cost of each candidate.
        fits: whether memory suffices, [candidates].
        topology: levels of links that the groups lie on.
    """

    layout: Layout
    micro_batch: Array
    accumulation: Array
    cost: StepCost
    fits: NDArray[np.bool_]
    topology: Topology

    @property
    def best(self) -> int:
        """Place of the fastest candidate that fits; of equally fast ones the smallest."""
        rate = np.asarray(self.cost.tokens / self.cost.time_s)
        return fastest(rate, np.asarray(self.cost.memory.total), self.fits)

    def choice(self, place: int) -> ShardChoice:
        """Return a candidate as plain values.

        Args:
            place: place of the candidate in the arrays.

        Returns:
            Its groups, with the levels they lie on.
        """
        groups = {
            state: int(getattr(self.layout, name)[place])
            for state, name in zip(_STATES, _SHARDS, strict=True)
        }
        wires = (float(getattr(self.layout, name)[place]) for name in _BITS)
        return ShardChoice(
            groups=groups,
            levels={name: self._level(size) for name, size in groups.items()},
            wire=WireBits(*wires),
            micro_batch=int(self.micro_batch[place]),
            accumulation=int(self.accumulation[place]),
        )

    def _level(self, size: int) -> str:
        """Name the innermost level that holds a group."""
        return "none" if size <= 1 else self.topology.levels[int(self.topology.span(size))].name


def search_shards(
    arch: Architecture,
    machine: Machine,
    *,
    count: int,
    global_batch: int,
    sequence_length: int,
    sizes: Sequence[int] = (),
    wires: Sequence[WireBits] = (PLAIN,),
    recompute: Recompute = "full",
    overlap: Overlap | None = None,
    reserve_fraction: float = 0.12,
) -> ShardSearch:
    """Cost every assignment of states to shard groups, without tensor or pipeline parallelism.

    Args:
        arch: model that is trained.
        machine: accelerator with its links.
        count: accelerators, all of them replicas.
        global_batch: sequences of a step; micro-batches of 1, 2, 4 and 8 that divide it are tried.
        sequence_length: tokens per sequence.
        sizes: sizes of groups to try beside 1 and `count`; where the machine's levels end when
            empty, such as a package of dies and a node, as far as these divide `count`.
        wires: bits on the wire to try.
        recompute: what the backward pass computes again.
        overlap: what traffic hides; the defaults when not given.
        reserve_fraction: share of memory kept for the runtime, buffers and fragmentation.

    Returns:
        All candidates, of which one at least fits.

    Raises:
        ConfigError: a size does not divide `count`, or no micro-batch divides the batch.
        InfeasibleError: no candidate fits in memory.

    Source: Xu et al. 2025, section 3 (arXiv:2501.04266); Wang et al. 2023 (arXiv:2306.10209).
    """
    rows = list(_candidates(machine.topology, count, global_batch, sizes, wires))
    if not rows:
        raise ConfigError(
            f"{global_batch} sequences do not divide over {count} accelerators",
            hint=f"choose a multiple of {count} as the batch",
        )
    columns = np.array(rows, dtype=float).T
    micro_batch, accumulation = columns[:2]
    shards = dict(zip(_SHARDS, columns[2:6].astype(int), strict=True))
    bits = dict(zip(_BITS, columns[6:], strict=True))
    layout = Layout(data=count, recompute=recompute, **shards, **bits)
    cost = training_step(
        arch,
        machine=machine,
        micro_batch=micro_batch,
        sequence_length=sequence_length,
        accumulation=accumulation,
        layout=layout,
        overlap=overlap,
    )
    limit = machine.memory_bytes * (1 - reserve_fraction)
    need = np.asarray(cost.memory.total)
    if need.min() > limit:
        raise InfeasibleError(
            f"memory: {arch.name} needs at least {pretty(float(need.min()), 'byte')} on each of "
            f"{count} {machine.name}, and {pretty(limit, 'byte')} are there after the reserve",
            hint="use more accelerators, or split layers with tensor and pipeline parallelism",
        )
    return ShardSearch(
        layout=layout,
        micro_batch=micro_batch,
        accumulation=accumulation,
        cost=cost,
        fits=need <= limit,
        topology=machine.topology,
    )


def _candidates(
    topology: Topology,
    count: int,
    global_batch: int,
    sizes: Sequence[int],
    wires: Sequence[WireBits],
) -> Iterator[tuple[Any, ...]]:
    """Yield micro-batch, accumulation, groups of the four states, and bits on the wire."""
    inner = sizes or [size for size in topology.sizes if size < count and count % size == 0]
    wrong = [size for size in inner if size < 1 or count % size]
    if wrong:
        raise ConfigError(
            f"groups of {', '.join(map(str, wrong))} do not divide {count} accelerators",
            hint="choose sizes of groups that divide their number",
        )
    tried = sorted({1, *inner, count})
    batches = [
        (micro, global_batch // (count * micro))
        for micro in MICRO_BATCHES
        if global_batch % (count * micro) == 0
    ]
    for batch, wire in itertools.product(batches, wires):
        for weight, gradient, optimizer in itertools.product(tried, repeat=3):
            # A second copy that is split as far as the first one saves nothing.
            for copy in [0, *(size for size in tried if size < weight)]:
                bits = (wire.weight, wire.copy, wire.gradient)
                yield *batch, weight, copy, gradient, optimizer, *bits
