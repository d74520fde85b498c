"""Routing that looks at loads or leaves the shortest paths: detours and least-loaded choice."""

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.jit import njit
from steelyard.sim.network.flows import Flows, RoutedFlows
from steelyard.sim.network.graph import Network
from steelyard.sim.network.paths import HASH_RANGE, check_hosts, paths

__all__ = ["least_loaded", "valiant"]

_CHUNK = 8192  # flows whose candidate paths are held at a time


def valiant(network: Network, flows: Flows, rng: np.random.Generator) -> RoutedFlows:
    """Route each flow over a random other group, to which and from which it goes the shortest way.

    This doubles the load of the network at most, and makes it even whatever the traffic is.

    Args:
        network: the graph; every host has one link.
        flows: who sends what.
        rng: draws group and paths.

    Returns:
        One piece per flow.

    Source: Valiant and Brebner 1981.
    """
    check_hosts(network, flows.source, flows.target)
    hops = _detours(network, flows.source, flows.target, rng)
    return _whole(flows, hops)


def least_loaded(
    network: Network,
    flows: Flows,
    rng: np.random.Generator,
    *,
    candidates: int = 4,
    detours: int = 0,
) -> RoutedFlows:
    """Route flow by flow over the way whose busiest link has least, among a few drawn at random.

    A way's cost is the time of its busiest link with this flow, times its links: a detour must be
    less loaded by as much as it is longer (the rule of adaptive routing on Dragonfly networks).

    Args:
        network: the graph.
        flows: who sends what; earlier ones choose first.
        rng: draws the candidates.
        candidates: shortest paths to choose from.
        detours: ways over another group to choose from as well.

    Returns:
        One piece per flow.

    Source: Mitzenmacher 2001 (the power of few choices); Singh 2005 (UGAL: queue times hops).
    """
    if candidates < 1 or detours < 0:
        raise ConfigError(
            f"there are {candidates} candidates and {detours} detours to choose from",
            hint="candidates are at least 1, detours at least 0",
        )
    check_hosts(network, flows.source, flows.target)
    load_s = np.zeros(network.num_links)
    chosen = []
    for low in range(0, len(flows), _CHUNK):
        rows = slice(low, low + _CHUNK)
        start, end = flows.source[rows], flows.target[rows]
        ways = [
            paths(network, start, end, rng.integers(HASH_RANGE, size=len(start)))
            for _ in range(candidates)
        ]
        ways += [_detours(network, start, end, rng) for _ in range(detours)]
        width = max(way.shape[1] for way in ways)
        stacked = np.stack([_padded(way, width) for way in ways], axis=1)
        picked = np.empty(len(start), dtype=np.int64)
        _choose(stacked, flows.size_bytes[rows], network.bytes_per_s, load_s, picked)
        chosen.append(stacked[np.arange(len(start)), picked])
    width = max(hops.shape[1] for hops in chosen)
    return _whole(flows, np.concatenate([_padded(hops, width) for hops in chosen]))


def _detours(
    network: Network,
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int32]:
    """Return ways over a random group: to its first switch, and on from there."""
    if network.is_multi_homed:
        raise ConfigError(
            "detours need hosts with one link each",
            hint="spray shares the traffic among the ports of a host",
        )
    count = len(source)
    middle = _elsewhere(network, source, target, rng)
    there = paths(network, source, middle, rng.integers(HASH_RANGE, size=count))
    # The first node of the middle's group; where groups do not tell (a torus), its own switch.
    ends = np.where(there >= 0, network.target[there], -1)
    is_switch = (ends >= network.num_hosts) & (there >= 0)
    inside = is_switch & (network.group[ends] == network.group[middle][:, None])
    apart = network.group[source] != network.group[middle]
    last = np.where(apart & inside.any(axis=1), inside.argmax(axis=1), is_switch.sum(axis=1) - 1)
    turn = ends[np.arange(count), last]
    there[np.arange(there.shape[1]) > last[:, None]] = -1
    back = paths(network, turn, target, rng.integers(HASH_RANGE, size=count))
    both = np.concatenate([there, back], axis=1)
    order = np.argsort(both < 0, axis=1, kind="stable")
    return np.take_along_axis(both, order, axis=1)


def _elsewhere(
    network: Network,
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw a host for each pair, of a third group where there is one."""
    middle = rng.integers(network.num_hosts, size=len(source))
    group = network.group
    for _ in range(16):
        near = (group[middle] == group[source]) | (group[middle] == group[target])
        near |= (middle == source) | (middle == target)
        if not near.any():
            break
        middle[near] = rng.integers(network.num_hosts, size=int(near.sum()))
    # With two hosts in all there is no other; the detour is then the shortest way.
    return np.where(middle == source, target, middle)


def _padded(hops: NDArray[np.int32], width: int) -> NDArray[np.int32]:
    """Widen paths with -1."""
    return np.pad(hops, ((0, 0), (0, width - hops.shape[1])), constant_values=-1)


def _whole(flows: Flows, hops: NDArray[np.int32]) -> RoutedFlows:
    """Return flows in one piece each."""
    used = int((hops >= 0).sum(axis=1).max())
    return RoutedFlows(
        flows=flows,
        flow=np.arange(len(flows)),
        size_bytes=flows.size_bytes,
        hops=np.ascontiguousarray(hops[:, :used]),
    )


@njit()
def _choose(ways, size, capacity, load_s, picked):  # pragma: no cover - compiled
    """Pick the cheapest way of each flow, and add the flow to its links."""
    for row in range(len(size)):
        least, best = np.inf, 0
        for way in range(ways.shape[1]):
            busiest, length = 0.0, 0
            for hop in range(ways.shape[2]):
                link = ways[row, way, hop]
                if link < 0:
                    break
                length += 1
                busiest = max(busiest, load_s[link] + size[row] / capacity[link])
            if busiest * length < least * (1 - 1e-12):
                least, best = busiest * length, way
        picked[row] = best
        for hop in range(ways.shape[2]):
            link = ways[row, best, hop]
            if link < 0:
                break
            load_s[link] += size[row] / capacity[link]
