"""A network as a graph of directed links in flat arrays."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError
from steelyard.jit import njit

__all__ = ["Cabling", "Network"]

_FAR = np.int16(30_000)  # a distance no network has; sums of two still fit an int32


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """Hosts and switches with directed links; hosts come first and forward nothing.

    Every cable is two links, one each way. N nodes, L links, P places: hosts wired to the same
    switches share a place, and so all their distances.

    Attributes:
        name: what it is, for reports.
        num_hosts: endpoints, nodes 0 to num_hosts - 1.
        tier: int [N]; 0 host, 1 switch with hosts, 2 and more above.
        group: int [N]; pod, cell, zone or plane of a node.
        source: int [L]; node that a link leaves.
        target: int [L]; node that it enters.
        bytes_per_s: float [L]; one-way capacity.
        latency_s: float [L]; time of an empty link with the switch behind it.
        metric: int [L]; length of a link for routing, 1 where hops are counted.
    """

    name: str
    num_hosts: int
    tier: NDArray[np.int64]
    group: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    bytes_per_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    metric: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Refuse links that cannot be, and hosts that cannot reach one another.

        Raises:
            ConfigError: a capacity is not positive, or the network is disconnected.
        """
        if self.num_hosts < 2:
            raise ConfigError(
                f"network {self.name!r} has {self.num_hosts} hosts", hint="it needs at least 2"
            )
        bad = np.flatnonzero(~((self.bytes_per_s > 0) & np.isfinite(self.bytes_per_s)))
        if len(bad):
            value = self.bytes_per_s[bad[0]]
            raise ConfigError(
                f"a link of network {self.name!r} carries {value} byte/s, but must be above 0",
                hint="leave out links that are down",
            )
        self._check_connected()

    def _check_connected(self) -> None:
        """Refuse a network in which a host cannot reach another."""
        apart = np.argwhere(self.distance[: self.num_hosts] >= _FAR)
        if len(apart):
            host, place = (int(item) for item in apart[0])
            other = int(np.flatnonzero(self.place == place)[0])
            raise ConfigError(
                f"network {self.name!r} is disconnected: host {host} cannot reach host {other}",
                hint="add a link between their switches, or leave the host out",
            )

    @property
    def num_nodes(self) -> int:
        """Hosts and switches."""
        return len(self.tier)

    @property
    def num_links(self) -> int:
        """Directed links, two per cable."""
        return len(self.source)

    @property
    def num_switches(self) -> int:
        """Switches."""
        return self.num_nodes - self.num_hosts

    @cached_property
    def out_links(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Links by the node that they leave: offsets [N + 1] into link numbers [L]."""
        return by_key(self.source, self.num_nodes)

    @cached_property
    def place(self) -> NDArray[np.int64]:
        """Place of every host, int [num_hosts]."""
        known: dict[tuple[Any, ...], int] = {}
        found = np.empty(self.num_hosts, dtype=np.int64)
        offsets, links = self.out_links
        for host in range(self.num_hosts):
            own = links[offsets[host] : offsets[host + 1]]
            key = tuple(sorted(zip(self.target[own], self.metric[own], strict=True)))
            found[host] = known.setdefault(key, len(known))
        return found

    @property
    def num_places(self) -> int:
        """Places."""
        return int(self.place.max()) + 1

    @cached_property
    def distance(self) -> NDArray[np.int16]:
        """Length of the shortest path from a node to a host of a place, int [N, P]."""
        found = np.full((self.num_nodes, self.num_places), _FAR, dtype=np.int16)
        last = np.flatnonzero(self.target < self.num_hosts)
        for link in last:
            here = found[self.source[link]]
            place = self.place[self.target[link]]
            here[place] = min(here[place], self.metric[link])
        inner = np.flatnonzero(self.target >= self.num_hosts)
        _relax(found, self.source[inner], self.target[inner], self.metric[inner])
        return found

    def hops(self, source: ArrayLike, target: ArrayLike) -> NDArray[np.int64]:
        """Return the links on the shortest path between hosts; 0 from a host to itself.

        Args:
            source: hosts, any shape.
            target: hosts, of a shape that broadcasts.

        Returns:
            Sums of `metric`, so links where every metric is 1.
        """
        start, end = np.asarray(source), np.asarray(target)
        far = self.distance[start, self.place[end]].astype(np.int64)
        return np.where(start == end, 0, far)

    def links_between(self, one: int, other: int) -> NDArray[np.int64]:
        """Return the links from nodes of one group to nodes of another."""
        leaves = self.group[self.source] == one
        return np.flatnonzero(leaves & (self.group[self.target] == other))

    def bisection_bytes_per_s(self, groups: ArrayLike) -> float:
        """Return what links out of some groups carry into all others, one way.

        Args:
            groups: numbers of the groups on the one side.

        Returns:
            Bytes per second.
        """
        inside = np.isin(self.group, np.asarray(groups))
        across = inside[self.source] & ~inside[self.target]
        return float(self.bytes_per_s[across].sum())

    @property
    def is_multi_homed(self) -> bool:
        """Whether some host has several links."""
        offsets, _ = self.out_links
        return bool((np.diff(offsets[: self.num_hosts + 1]) > 1).any())


@dataclass
class Cabling:
    """Collects nodes and cables, and makes the network.

    Attributes:
        name: what it is.
        num_hosts: endpoints.
        switch_tier: tiers of the switches so far.
        switch_group: their groups.
        host_group: groups of the hosts, int [num_hosts].
    """

    name: str
    num_hosts: int
    host_group: ArrayLike = 0
    switch_tier: list[int] = field(default_factory=list)
    switch_group: list[int] = field(default_factory=list)
    _cables: list[tuple[Any, ...]] = field(default_factory=list)

    def switches(self, count: int, *, tier: int, group: int = 0) -> NDArray[np.int64]:
        """Add switches and return their node numbers."""
        first = self.num_hosts + len(self.switch_tier)
        self.switch_tier += [tier] * count
        self.switch_group += [group] * count
        return np.arange(first, first + count)

    def cable(
        self,
        one: ArrayLike,
        other: ArrayLike,
        *,
        bytes_per_s: ArrayLike,
        latency_s: float,
        metric: int = 1,
    ) -> None:
        """Add cables, both ways; ends and capacities broadcast."""
        ends = np.broadcast_arrays(one, other, np.asarray(bytes_per_s, dtype=float))
        start, end, rate = (np.ravel(item) for item in ends)
        for pair in ((start, end), (end, start)):
            full = np.full(len(rate), latency_s)
            self._cables.append((*pair, rate, full, np.full(len(rate), metric)))

    def network(self) -> Network:
        """Return what was collected as a network."""
        columns = [np.concatenate(item) for item in zip(*self._cables, strict=True)]
        source, target, rate, latency, metric = columns
        hosts = np.broadcast_to(np.asarray(self.host_group), (self.num_hosts,))
        return Network(
            name=self.name,
            num_hosts=self.num_hosts,
            tier=np.concatenate([np.zeros(self.num_hosts, int), self.switch_tier]).astype(np.int64),
            group=np.concatenate([hosts, self.switch_group]).astype(np.int64),
            source=source.astype(np.int64),
            target=target.astype(np.int64),
            bytes_per_s=rate.astype(float),
            latency_s=latency.astype(float),
            metric=metric.astype(np.int64),
        )


def by_key(keys: NDArray[Any], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group positions by key.

    Args:
        keys: int [n], each below `size`.
        size: number of keys.

    Returns:
        Offsets [size + 1] into positions [n], those of one key in their order.
    """
    offsets = np.zeros(size + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=size), out=offsets[1:])
    return offsets, np.argsort(keys, kind="stable").astype(np.int64)


@njit()
def _relax(distance, source, target, metric):  # pragma: no cover - compiled
    """Lower the distances of link sources until none changes (Bellman and Ford)."""
    changed = True
    while changed:
        changed = False
        for link in range(len(source)):
            near = distance[source[link]]
            far = distance[target[link]]
            for place in range(distance.shape[1]):
                length = far[place] + metric[link]
                if length < near[place]:
                    near[place] = length
                    changed = True
