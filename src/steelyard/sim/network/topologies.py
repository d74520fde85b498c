"""The common shapes of networks: fat trees, Dragonfly+, torus, and several planes."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import ConfigError, SteelyardError, merged
from steelyard.sim.network.graph import Cabling, Network

__all__ = ["dragonfly_plus", "fat_tree", "leaf_spine", "multi_plane", "torus", "zoned_fat_tree"]

HOP_LATENCY_S = 5e-7
"""Latency of a link and its switch; arXiv 2407.00550 simulates 500 ns."""


def _at_least_one(**counts: float) -> None:
    """Refuse counts below 1 and rates of 0, all at once."""
    broken: list[SteelyardError] = [
        ConfigError(f"{name} is {value}, but must be above 0", hint=f"change {name}")
        for name, value in counts.items()
        if not (math.isfinite(value) and value > 0)
    ]
    if broken:
        raise merged(broken)


def leaf_spine(
    leaves: int,
    spines: int,
    hosts_per_leaf: int,
    *,
    bytes_per_s: float,
    oversubscription: float = 1.0,
    latency_s: float = HOP_LATENCY_S,
) -> Network:
    """Return a fat tree of two layers: each leaf has one uplink to each spine.

    Args:
        leaves: switches with hosts.
        spines: switches above them.
        hosts_per_leaf: hosts under each leaf.
        bytes_per_s: rate of a host's link.
        oversubscription: rate of a leaf's hosts over that of its uplinks; 1 for none.
        latency_s: latency of a link with its switch.

    Returns:
        The network; its groups are leaves, and -1 for spines.
    """
    _at_least_one(
        leaves=leaves, spines=spines, hosts_per_leaf=hosts_per_leaf, bytes_per_s=bytes_per_s
    )
    _at_least_one(oversubscription=oversubscription)
    num_hosts = leaves * hosts_per_leaf
    home = np.repeat(np.arange(leaves), hosts_per_leaf)
    made = Cabling(f"leaf-spine {leaves} x {spines}", num_hosts, host_group=home)
    low = np.concatenate([made.switches(1, tier=1, group=leaf) for leaf in range(leaves)])
    high = made.switches(spines, tier=2, group=-1)
    made.cable(np.arange(num_hosts), low[home], bytes_per_s=bytes_per_s, latency_s=latency_s)
    up = bytes_per_s * hosts_per_leaf / spines / oversubscription
    made.cable(low[:, None], high[None, :], bytes_per_s=up, latency_s=latency_s)
    return made.network()


def fat_tree(
    pods: int,
    leaves_per_pod: int,
    aggregations_per_pod: int,
    cores: int,
    hosts_per_leaf: int,
    *,
    bytes_per_s: float,
    oversubscription: float = 1.0,
    latency_s: float = HOP_LATENCY_S,
) -> Network:
    """Return a fat tree of three layers.

    Every leaf has one uplink to each aggregation switch of its pod, and these divide the cores
    among them, so that aggregation switch a of every pod meets the same cores.

    Args:
        pods: groups of leaves and aggregation switches.
        leaves_per_pod: leaves of a pod.
        aggregations_per_pod: aggregation switches of a pod; they divide `cores`.
        cores: switches that join the pods.
        hosts_per_leaf: hosts under each leaf.
        bytes_per_s: rate of a host's link.
        oversubscription: rate into a layer over that out of it upwards, at each layer.
        latency_s: latency of a link with its switch.

    Returns:
        The network; its groups are pods, and -1 for cores.

    Raises:
        ConfigError: the cores cannot be divided, or a count or rate is not positive.
    """
    _at_least_one(pods=pods, leaves_per_pod=leaves_per_pod, cores=cores, bytes_per_s=bytes_per_s)
    _at_least_one(aggregations_per_pod=aggregations_per_pod, hosts_per_leaf=hosts_per_leaf)
    _at_least_one(oversubscription=oversubscription)
    if cores % aggregations_per_pod:
        raise ConfigError(
            f"{cores} cores cannot be divided among {aggregations_per_pod} aggregation switches",
            hint=f"take a multiple of {aggregations_per_pod} cores",
        )
    home = np.repeat(np.arange(pods), leaves_per_pod * hosts_per_leaf)
    made = Cabling(f"fat tree of {pods} pods", len(home), host_group=home)
    leaf_up = bytes_per_s * hosts_per_leaf / aggregations_per_pod / oversubscription
    share = cores // aggregations_per_pod
    pod_up = leaf_up * leaves_per_pod / share / oversubscription
    top = made.switches(cores, tier=3, group=-1).reshape(aggregations_per_pod, share)
    for pod in range(pods):
        low = made.switches(leaves_per_pod, tier=1, group=pod)
        mid = made.switches(aggregations_per_pod, tier=2, group=pod)
        hosts = np.flatnonzero(home == pod)
        under = np.repeat(low, hosts_per_leaf)
        made.cable(hosts, under, bytes_per_s=bytes_per_s, latency_s=latency_s)
        made.cable(low[:, None], mid[None, :], bytes_per_s=leaf_up, latency_s=latency_s)
        made.cable(mid[:, None], top, bytes_per_s=pod_up, latency_s=latency_s)
    return made.network()


def zoned_fat_tree(
    zones: int,
    leaves: int,
    spines: int,
    hosts_per_leaf: int,
    joints: int,
    *,
    bytes_per_s: float,
    latency_s: float = HOP_LATENCY_S,
) -> Network:
    """Return zones, each a fat tree of two layers, joined by a few switches above the spines.

    All switches are of one kind, with links of `bytes_per_s`; each joint has one link to every
    spine of every zone.

    Args:
        zones: separate fat trees.
        leaves: leaves of a zone.
        spines: spines of a zone.
        hosts_per_leaf: hosts under each leaf.
        joints: switches between the zones, such as 2.
        bytes_per_s: rate of every link.
        latency_s: latency of a link with its switch.

    Returns:
        The network; its groups are zones, and -1 for the joints.

    Source: arXiv 2408.14158, section III-C (20 spines and 40 leaves per zone, 122 switches).
    """
    _at_least_one(zones=zones, leaves=leaves, spines=spines, hosts_per_leaf=hosts_per_leaf)
    _at_least_one(joints=joints, bytes_per_s=bytes_per_s)
    home = np.repeat(np.arange(zones), leaves * hosts_per_leaf)
    made = Cabling(f"{zones} zones of {leaves} x {spines}", len(home), host_group=home)
    link: dict[str, Any] = {"bytes_per_s": bytes_per_s, "latency_s": latency_s}
    top = made.switches(joints, tier=3, group=-1)
    for zone in range(zones):
        low = made.switches(leaves, tier=1, group=zone)
        mid = made.switches(spines, tier=2, group=zone)
        made.cable(np.flatnonzero(home == zone), np.repeat(low, hosts_per_leaf), **link)
        made.cable(low[:, None], mid[None, :], **link)
        made.cable(mid[:, None], top[None, :], **link)
    return made.network()


def dragonfly_plus(
    cells: int,
    leaves: int,
    spines: int,
    hosts_per_leaf: int,
    *,
    host_bytes_per_s: float,
    link_bytes_per_s: float,
    cables_per_spine_pair: int = 1,
    latency_s: float = HOP_LATENCY_S,
) -> Network:
    """Return a Dragonfly+: cells of two full bipartite layers, spines joined across cells.

    Spine i of a cell is cabled to spine i of every other cell.

    Args:
        cells: groups of switches.
        leaves: switches with hosts per cell ("L1").
        spines: switches without per cell ("L2").
        hosts_per_leaf: host ports under each leaf.
        host_bytes_per_s: rate of a host port.
        link_bytes_per_s: rate of every cable between switches.
        cables_per_spine_pair: cables from a spine to its like in another cell.
        latency_s: latency of a link with its switch.

    Returns:
        The network; its groups are cells.

    Source: Shpiner et al. 2017 (Dragonfly+); arXiv 2307.16885, section 2.3 (LEONARDO: 18 and 18
    switches per cell, one 200 Gb/s cable from each spine to each other cell).
    """
    _at_least_one(cells=cells, leaves=leaves, spines=spines, hosts_per_leaf=hosts_per_leaf)
    _at_least_one(host_bytes_per_s=host_bytes_per_s, link_bytes_per_s=link_bytes_per_s)
    _at_least_one(cables_per_spine_pair=cables_per_spine_pair)
    home = np.repeat(np.arange(cells), leaves * hosts_per_leaf)
    made = Cabling(f"Dragonfly+ of {cells} cells", len(home), host_group=home)
    tops = []
    for cell in range(cells):
        low = made.switches(leaves, tier=1, group=cell)
        tops.append(made.switches(spines, tier=2, group=cell))
        hosts, under = np.flatnonzero(home == cell), np.repeat(low, hosts_per_leaf)
        made.cable(hosts, under, bytes_per_s=host_bytes_per_s, latency_s=latency_s)
        link: dict[str, Any] = {"bytes_per_s": link_bytes_per_s, "latency_s": latency_s}
        made.cable(low[:, None], tops[-1][None, :], **link)
    # Spine i meets spine i alone: as many cables join two cells as each has spines.
    for one, other in itertools.combinations(tops, 2):
        for _ in range(cables_per_spine_pair):
            made.cable(one, other, bytes_per_s=link_bytes_per_s, latency_s=latency_s)
    return made.network()


def torus(
    shape: tuple[int, ...],
    *,
    bytes_per_s: float,
    host_bytes_per_s: float = 0.0,
    latency_s: float = HOP_LATENCY_S,
) -> Network:
    """Return a torus with one host at each switch.

    Args:
        shape: switches along each axis; an axis of 2 has one cable, not two.
        bytes_per_s: rate of a cable between neighbours.
        host_bytes_per_s: rate of a host; that of all its switch's cables when 0.
        latency_s: latency of a link with its switch.

    Returns:
        The network, hosts numbered with the last axis running fastest.
    """
    _at_least_one(bytes_per_s=bytes_per_s, **{f"axis {i}": n for i, n in enumerate(shape)})
    count = math.prod(shape)
    made = Cabling(f"torus {' x '.join(map(str, shape))}", count)
    nodes = made.switches(count, tier=1).reshape(shape)
    out = host_bytes_per_s or bytes_per_s * sum(2 if size > 2 else size - 1 for size in shape)
    made.cable(np.arange(count), nodes.ravel(), bytes_per_s=out, latency_s=latency_s)
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        ahead = np.roll(nodes, -1, axis)
        keep = slice(None) if size > 2 else slice(0, 1)
        where = tuple(keep if other == axis else slice(None) for other in range(len(shape)))
        made.cable(nodes[where], ahead[where], bytes_per_s=bytes_per_s, latency_s=latency_s)
    return made.network()


def multi_plane(
    planes: Sequence[Network],
    *,
    hosts: Sequence[ArrayLike] | None = None,
    metrics: Sequence[int] | None = None,
) -> Network:
    """Return a network whose hosts have a port in each of several planes.

    Traffic that enters a plane stays in it. Planes of equal length share all traffic. With unequal
    `metrics` the shorter plane is used wherever it reaches, as a fast fabric inside each cluster
    is beside an Ethernet between all.

    Args:
        planes: networks without common switches.
        hosts: hosts of the whole that each plane's hosts are; all in order when None.
        metrics: length of every link of a plane for routing; 1 each when None.

    Returns:
        The network; its groups are planes for switches and 0 for hosts.

    Raises:
        ConfigError: a plane's hosts are not as many as are named for it.
    """
    members = [np.asarray(item) for item in hosts or [np.arange(p.num_hosts) for p in planes]]
    for number, (plane, own) in enumerate(zip(planes, members, strict=True)):
        if len(own) != plane.num_hosts:
            raise ConfigError(
                f"plane {number} has {plane.num_hosts} hosts, but {len(own)} are named for it",
                hint="name each of its hosts once",
            )
    made = Cabling(f"{len(planes)} planes", int(max(own.max() for own in members)) + 1)
    for number, (plane, own) in enumerate(zip(planes, members, strict=True)):
        added = [
            made.switches(1, tier=int(tier), group=number) for tier in plane.tier[plane.num_hosts :]
        ]
        node = np.concatenate([own, *added])
        half = np.flatnonzero(plane.source < plane.target)  # a cable is two links
        for latency in np.unique(plane.latency_s[half]):
            some = half[plane.latency_s[half] == latency]
            made.cable(
                node[plane.source[some]],
                node[plane.target[some]],
                bytes_per_s=plane.bytes_per_s[some],
                latency_s=float(latency),
                metric=metrics[number] if metrics else 1,
            )
    return made.network()
