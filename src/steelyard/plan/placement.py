"""Which ranks sit where: clusters of unlike networks, joined by a slow one.

A collective whose members have different network cards runs over what all of them share, the
slowest. So the axis that crosses clusters should be the one that sends least. All orders of the
axes and of the clusters are tried; Holmes' rule (pipelines cross clusters, replicas do not) is what
comes out where it is best.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.layout import Layout
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.stages import StageSplit, split_layers

__all__ = ["ClusterPart", "JoinedClusters", "LayerWork", "RankPlacement", "place", "placements"]

_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the replicas' traffic that are tried as slowness of a stage: with few micro-batches it
pays to give layers away, with many it does not."""

_BACKWARD = 2 / 3
"""Share of a layer's time that its backward pass takes."""

AXES = ("tensor", "context", "data", "pipeline")
Indices = NDArray[np.int64]
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterPart:
    """Nodes with network cards of one kind.

    Attributes:
        name: name of the part.
        nodes: number of nodes.
        per_node: accelerators of a node.
        node_bytes_per_s: one-way rate of an accelerator within its node.
        network_bytes_per_s: one-way rate of a node to others of its part.
        speed: compute speed of its accelerators over the others'.
    """

    name: str
    nodes: int
    per_node: int
    node_bytes_per_s: float
    network_bytes_per_s: float
    speed: float = 1.0


@dataclass(frozen=True, kw_only=True)
class JoinedClusters:
    """Parts and what joins them.

    Attributes:
        parts: clusters, at least one.
        between_bytes_per_s: one-way rate of a node to nodes of other parts.
    """

    parts: tuple[ClusterPart, ...]
    between_bytes_per_s: float

    @cached_property
    def node(self) -> Indices:
        """Node of each accelerator, part by part."""
        sizes = [part.per_node for part in self.parts for _ in range(part.nodes)]
        return np.repeat(np.arange(len(sizes)), sizes)

    @cached_property
    def part(self) -> Indices:
        """Part of each accelerator."""
        sizes = [part.nodes * part.per_node for part in self.parts]
        return np.repeat(np.arange(len(sizes)), sizes)

    def of_part(self, name: str) -> Array:
        """Return a number of each part, for each accelerator."""
        return np.array([float(getattr(item, name)) for item in self.parts])[self.part]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWork:
    """What a layer computes and sends; sizes of one accelerator's share.

    Attributes:
        num_layers: layers of the model.
        layer_s: seconds of a layer for a micro-batch at speed 1, both passes, recomputation
            included.
        tensor_bytes: bytes of all collectives of the tensor group in a layer and micro-batch,
            over each link of a ring.
        context_bytes: the same of the context group.
        gradient_bytes: bytes of a layer's gradients and weights that a step moves over each link of
            the replicas' ring, before (d - 1) / d.
        boundary_bytes: bytes of the activations of a micro-batch between two stages.
        micro_batches: micro-batches of a step and replica.
        hidden: share of the replicas' traffic that the backward pass hides.
    """

    num_layers: int
    layer_s: float
    tensor_bytes: float = 0.0
    context_bytes: float = 0.0
    gradient_bytes: float
    boundary_bytes: float
    micro_batches: int
    hidden: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlacement:
    """Where the axes of a layout lie, and what a step takes there.

    Attributes:
        layout: the layout, of plain values.
        order: axes from the one whose members stand next to each other outward.
        parts: names of the parts in the order in which ranks fill them.
        split: layers of each stage.
        step_s: seconds of a step.
        collective_s: seconds of a step that each axis's traffic adds, by axis.
        crossing: axes whose groups cross parts.
    """

    layout: Layout
    order: tuple[str, ...]
    parts: tuple[str, ...]
    split: StageSplit
    step_s: float
    collective_s: dict[str, float]
    crossing: tuple[str, ...]


def place(machines: JoinedClusters, works: Iterable[tuple[Layout, LayerWork]]) -> RankPlacement:
    """Return the placement whose step is shortest, of all layouts, orders of axes and of parts.

    Args:
        machines: parts and what joins them.
        works: layouts to try, each with what its layers compute and send.

    Returns:
        The best placement.

    Raises:
        InfeasibleError: no layout fills the machines.

    Source: Holmes, arXiv:2312.03549, sections 3.1 to 3.3.
    """
    found = [item for layout, work in works for item in placements(machines, layout, work)]
    if not found:
        raise InfeasibleError(
            f"no layout fills {len(machines.node)} accelerators",
            hint="choose degrees whose product is their number, and stages for all of them",
        )
    # Of equally fast ones, the one whose traffic is least: it suffers least from other jobs.
    return min(found, key=lambda item: (item.step_s, sum(item.collective_s.values())))


def placements(
    machines: JoinedClusters, layout: Layout, work: LayerWork
) -> Iterator[RankPlacement]:
    """Time a layout in every order of its axes and of the parts.

    Args:
        machines: parts and what joins them.
        layout: degrees, of plain values; nothing comes of one that does not fill the machines, or
            that has more stages than layers.
        work: what its layers compute and send.

    Yields:
        A placement for each order.

    Raises:
        ConfigError: a degree is below 1.
    """
    degrees = {axis: int(getattr(layout, axis)) for axis in AXES}
    if min(degrees.values()) < 1:
        raise ConfigError(f"degrees are {degrees}, but must be at least 1")
    is_whole = layout.num_accelerators == len(machines.node)
    if not is_whole or degrees["pipeline"] > work.num_layers:
        return
    used = [axis for axis in AXES if degrees[axis] > 1]
    for parts in itertools.permutations(machines.parts):
        turned = JoinedClusters(parts=parts, between_bytes_per_s=machines.between_bytes_per_s)
        for order in itertools.permutations(used):
            yield _timed(turned, layout, work, order, degrees)


def _timed(
    machines: JoinedClusters,
    layout: Layout,
    work: LayerWork,
    order: tuple[str, ...],
    degrees: dict[str, int],
) -> RankPlacement:
    """Time one order."""
    ranks = np.arange(len(machines.node))
    strides, places = {}, {}
    stride = 1
    for axis in order:
        strides[axis], places[axis] = stride, ranks // stride % degrees[axis]
        stride *= degrees[axis]
    stage = places.get("pipeline", np.zeros_like(ranks))
    rates, crosses = {}, {}
    for axis in order:
        if axis != "pipeline":
            group = ranks - places[axis] * strides[axis]
            rates[axis], crosses[axis] = _group_rates(machines, group)
    per_layer = _layer_s(machines, work, rates, degrees)
    replicas_s = _replicas_s(work, rates, degrees)
    hop_s = np.zeros(0)
    if "pipeline" in order:
        hop_s, crosses["pipeline"] = _hops(machines, work, stage, strides["pipeline"])
    layer_s = _slowest(per_layer, stage, degrees["pipeline"])
    sent_s = _slowest(replicas_s, stage, degrees["pipeline"])
    tried = (_split(work, layer_s, sent_s, hop_s, weight) for weight in _WEIGHTS)
    split, step_s = min(tried, key=lambda item: item[1])
    layers = np.array(split.layers)
    return RankPlacement(
        layout=layout,
        order=order,
        parts=tuple(part.name for part in machines.parts),
        split=split,
        step_s=step_s,
        collective_s={
            "tensor and context": float(
                (layers * (layer_s - work.layer_s)).max() * work.micro_batches
            ),
            "data": float((layers * sent_s).max()),
            "pipeline": float(2 * hop_s.sum()),
        },
        crossing=tuple(axis for axis in order if crosses[axis]),
    )


def _slowest(seconds: Array, stage: Indices, count: int) -> Array:
    """Return the largest value within each stage, [stages]."""
    return np.array([np.broadcast_to(seconds, stage.shape)[stage == k].max() for k in range(count)])


def _split(
    work: LayerWork, per_layer: Array, replicas_s: Array, hop_s: Array, weight: float
) -> tuple[StageSplit, float]:
    """Split the layers by the stages' speed, and time the step.

    Args:
        work: what a layer computes and sends.
        per_layer: seconds of a layer and micro-batch on each stage, [stages].
        replicas_s: seconds of a layer's gradients and weights on each stage, [stages].
        hop_s: seconds of a micro-batch over each boundary, [stages - 1].
        weight: how much of the replicas' traffic counts as slowness of a stage, 0 to 1.

    Returns:
        The split, and the seconds of the step.
    """
    pace = per_layer + weight * replicas_s / work.micro_batches
    split = split_layers(
        [1.0] * work.num_layers, speeds=(1.0 / pace).tolist(), micro_batches=work.micro_batches
    )
    layers = np.array(split.layers)
    stage_s = layers * per_layer
    # Filling and draining pass each boundary once. Afterwards the slowest stage or boundary sets
    # the pace: transfers of one micro-batch pass while another one computes.
    fill_s = stage_s.sum() + 2 * hop_s.sum()
    end_s = fill_s + (work.micro_batches - 1) * np.max([*stage_s, *hop_s])
    # The backward pass drains towards the first stage: later ones send their gradients sooner.
    drained = np.concatenate([[0.0], np.cumsum(_BACKWARD * stage_s[:-1] + hop_s)])
    return split, float((end_s - drained + layers * replicas_s).max())


def _layer_s(
    machines: JoinedClusters, work: LayerWork, rates: dict[str, Array], degrees: dict[str, int]
) -> Array:
    """Return the seconds of a layer and micro-batch on each accelerator, its collectives included.

    Those of tensor and context groups stand between products and hide behind none.
    """
    seconds = work.layer_s / machines.of_part("speed")
    for axis, size in (("tensor", work.tensor_bytes), ("context", work.context_bytes)):
        if axis in rates:
            seconds = seconds + size * (degrees[axis] - 1) / degrees[axis] / rates[axis]
    return seconds


def _replicas_s(work: LayerWork, rates: dict[str, Array], degrees: dict[str, int]) -> Any:
    """Return the seconds a step that a layer's gradients and weights show, on each accelerator."""
    if "data" not in rates:
        return np.zeros(1)
    sent = work.gradient_bytes * (degrees["data"] - 1) / degrees["data"]
    return (1 - work.hidden) * sent / rates["data"]


def _group_rates(machines: JoinedClusters, group: Indices) -> tuple[Array, bool]:
    """Return the one-way rate of each accelerator's group, and whether any crosses parts."""
    leaves = _varies(group, machines.node)
    mixed = _varies(group, machines.part)
    # Groups that leave a node share its card.
    sharing = _count_distinct(machines.node, np.where(leaves, group, -1), len(machines.node))
    own = machines.of_part("network_bytes_per_s")
    out = np.where(mixed, np.minimum(own, machines.between_bytes_per_s), own)
    rate = np.where(leaves, out / np.maximum(sharing, 1), machines.of_part("node_bytes_per_s"))
    slowest = np.full(group.max() + 1, np.inf)
    np.minimum.at(slowest, group, rate)
    return slowest[group], bool(mixed.any())


def _varies(group: Indices, value: Indices) -> NDArray[np.bool_]:
    """Return for each accelerator whether a value differs within its group."""
    low = np.full(group.max() + 1, np.iinfo(np.int64).max)
    high = np.full(group.max() + 1, -1)
    np.minimum.at(low, group, value)
    np.maximum.at(high, group, value)
    return (low < high)[group]


def _count_distinct(node: Indices, group: Indices, size: int) -> Indices:
    """Return for each accelerator how many groups of at least 0 its node has members of."""
    pairs = np.unique(np.stack([node, group]), axis=1)
    counts = np.bincount(pairs[0][pairs[1] >= 0], minlength=size)
    return counts[node]


def _hops(
    machines: JoinedClusters, work: LayerWork, stage: Indices, stride: int
) -> tuple[Array, bool]:
    """Return the seconds of a micro-batch's activations over each boundary of stages."""
    ranks = np.arange(len(stage))
    sends = stage < stage.max()
    here, there = ranks[sends], ranks[sends] + stride
    node, part = machines.node, machines.part
    leaves, mixed = node[here] != node[there], part[here] != part[there]
    own = machines.of_part("network_bytes_per_s")[here]
    out = np.where(mixed, np.minimum(own, machines.between_bytes_per_s), own)
    # A node's card is shared by all of its accelerators that send over it at once.
    at_once = np.bincount(node[here][leaves], minlength=node.max() + 1)[node[here]]
    inside = machines.of_part("node_bytes_per_s")[here]
    seconds = work.boundary_bytes / np.where(leaves, out / np.maximum(at_once, 1), inside)
    slowest = np.zeros(stage.max())
    np.maximum.at(slowest, stage[here], seconds)
    return slowest, bool(mixed.any())
