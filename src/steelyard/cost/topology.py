"""Nested levels of links between accelerators, and where a group of ranks lies on them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.catalog.hardware import Accelerator, Cluster, Level
from steelyard.errors import ConfigError

__all__ = ["Group", "Topology", "node_and_network"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Topology:
    """Levels of links from the accelerators outward: die pair, node, pod, network.

    Attributes:
        levels: levels of links, at least one; each joins units of the one before it, the first
            single accelerators.
        efficiency: share of a link's rate that large transfers reach.
        host_bytes_per_s: one-way rate of one accelerator to its host's memory, 0 when unknown.
    """

    levels: tuple[Level, ...]
    efficiency: float = 1.0
    host_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a topology without levels, or with a level that joins nothing or has no rate.

        Raises:
            ConfigError: a level is impossible.
        """
        wrong = [item.name for item in self.levels if item.members < 1 or item.bytes_per_s <= 0]
        if wrong or not self.levels:
            raise ConfigError(
                f"levels without members or rate: {', '.join(wrong) or 'there are no levels'}",
                hint="give each level members >= 1 and bytes_per_s > 0",
            )

    @classmethod
    def of(
        cls, cluster: Cluster, accelerator: Accelerator, *, efficiency: float = 1.0
    ) -> "Topology":
        """Make the topology of a cluster of the catalog.

        Args:
            cluster: its `levels`, else a node and a network from its rates.
            accelerator: record for the rates that the cluster lacks.
            efficiency: share of a link's rate that large transfers reach.

        Returns:
            The topology; a lone accelerator's has one level of one member.
        """
        levels = cluster.levels or node_and_network(
            per_node=cluster.accelerators_per_node,
            num_nodes=cluster.num_nodes,
            scale_up_bytes_per_s=cluster.scale_up_bytes_per_s or accelerator.scale_up_bytes_per_s,
            injection_bytes_per_s=cluster.injection_bytes_per_s,
            host_bytes_per_s=accelerator.host_link_bytes_per_s,
        )
        return cls(levels, efficiency, accelerator.host_link_bytes_per_s)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Accelerators in one unit of each level, rising."""
        return tuple(int(size) for size in np.cumprod([item.members for item in self.levels]))

    @cached_property
    def ports(self) -> tuple[int, ...]:
        """Accelerators that share one port into each level: 1 for the innermost."""
        return (1, *self.sizes[:-1])

    def span(self, members: ArrayLike, stride: ArrayLike = 1) -> NDArray[np.int64]:
        """Return the index of the innermost level that holds a whole group.

        Args:
            members: members of the group.
            stride: distance between neighbors, in accelerators.

        Returns:
            Index into `levels`; the outermost also for groups larger than the machine.
        """
        reach = np.asarray(members) * np.asarray(stride)
        found = np.searchsorted(self.sizes, reach, side="left")
        return np.minimum(found, len(self.levels) - 1)

    def group(self, members: ArrayLike, stride: ArrayLike = 1) -> "Group":
        """Describe groups of ranks, one of which starts at each rank of a stride.

        Args:
            members: members of a group.
            stride: distance between neighbors, in accelerators.

        Returns:
            How many members meet at each level, and what each sends and waits there.
        """
        size, step = np.broadcast_arrays(
            np.asarray(members, dtype=float), np.asarray(stride, dtype=float)
        )
        inside, parts, rates, latencies = np.ones_like(size), [], [], []
        for level, reach, port in zip(self.levels, self.sizes, self.ports, strict=True):
            is_last = reach == self.sizes[-1]
            # Members within one unit of this level; the outermost takes whatever remains.
            held = size if is_last else np.clip(np.floor(reach / step), 1.0, size)
            parts.append(held / inside)
            inside = held
            # Groups of the same stride leave a unit side by side through its one port.
            sharing = np.minimum(step, port)
            slower = level.oversubscription if port > 1 else 1.0
            rates.append(self.efficiency * level.bytes_per_s / sharing / slower)
            latencies.append(np.full_like(size, level.latency_s))
        return Group(size, np.array(parts), np.array(rates), np.array(latencies))


@dataclass(frozen=True)
class Group:
    """Groups of ranks on a topology; arrays over groups.

    Attributes:
        members: members of a group, [*groups].
        parts: units of the level below that meet in one unit of each level, 1 where a group does
            not use the level, [levels, *groups]; they multiply to `members`.
        bytes_per_s: one-way rate that one unit of a group has into each level while all groups of
            the same stride talk at once, [levels, *groups].
        latency_s: time that a message through each level adds, [levels, *groups].
    """

    members: Array
    parts: Array
    bytes_per_s: Array
    latency_s: Array

    @property
    def slowest_bytes_per_s(self) -> Array:
        """Rate of the slowest level that a group uses; infinite for groups of one; [*groups]."""
        return np.where(self.parts > 1, self.bytes_per_s, np.inf).min(axis=0)

    @property
    def longest_s(self) -> Array:
        """Latency of the slowest level that a group uses, 0 for groups of one; [*groups]."""
        return np.where(self.parts > 1, self.latency_s, 0.0).max(axis=0)


def node_and_network(
    *,
    per_node: int,
    num_nodes: int,
    scale_up_bytes_per_s: float,
    injection_bytes_per_s: float,
    host_bytes_per_s: float = 0.0,
) -> tuple[Level, ...]:
    """Make the two levels that the rates of a node and of its network card give.

    Args:
        per_node: accelerators of a node.
        num_nodes: nodes.
        scale_up_bytes_per_s: one-way rate of an accelerator to its peers in the node, 0 for none.
        injection_bytes_per_s: one-way network rate of a node, 0 for none.
        host_bytes_per_s: one-way rate to the host's memory, 0 when unknown.

    Returns:
        Node and network. Without links within the node, data moves over its network, else over the
        host; without a network all accelerators count as one node.
    """
    inside = scale_up_bytes_per_s or injection_bytes_per_s or host_bytes_per_s or np.inf
    node = Level(name="node", members=per_node, bytes_per_s=inside)
    outside = injection_bytes_per_s or inside * per_node
    return node, Level(name="network", members=num_nodes, bytes_per_s=outside)
