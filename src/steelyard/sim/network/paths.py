"""Shortest paths through a network: one by its number, all of them, or all at once in shares."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError
from steelyard.jit import njit
from steelyard.sim.network.graph import Network

__all__ = ["Bundles", "check_hosts", "num_paths", "path_bytes_per_s", "paths", "spread"]

HASH_RANGE = 1 << 62
"""Path numbers below this are choices by hash at every node of a path."""

MAX_HOPS = 64
"""Links of the longest path; a torus of 32 x 32 x 32 has shortest paths of 50."""


@dataclass(frozen=True, eq=False)
class Bundles:
    """Sets of links that a flow uses at once, each with its share of the flow.

    Attributes:
        offset: int [B + 1]; where a bundle begins.
        link: int [n]; links of all bundles, one after another.
        share: float [n]; fraction of the flow on each link.
    """

    offset: NDArray[np.int64]
    link: NDArray[np.int64]
    share: NDArray[np.float64]

    @classmethod
    def none(cls) -> "Bundles":
        """Return no bundles at all."""
        return cls(np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0))

    def __len__(self) -> int:
        return len(self.offset) - 1

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """Bundle of each entry, int [n]."""
        return np.repeat(np.arange(len(self)), np.diff(self.offset))


def paths(
    network: Network, source: ArrayLike, target: ArrayLike, number: ArrayLike
) -> NDArray[np.int32]:
    """Return the links of one shortest path per pair of hosts.

    At each node with k ways that are equally short, the number modulo k says which is taken, and
    its quotient goes on. On fat trees and Dragonfly+ the numbers below `num_paths` are so all the
    shortest paths, each once, and a random number below 2^62 is a choice by hash at each node.

    Args:
        network: the graph.
        source: hosts, or switches that the path begins at, int [F].
        target: other hosts, int [F].
        number: which of the equal paths, at least 0, int [F].

    Returns:
        Links in order, int [F, H] with H the longest; -1 after a path's last link.
    """
    found, _ = _walked(network, source, target, number)
    longest = int((found >= 0).sum(axis=1).max(initial=1))
    return np.ascontiguousarray(found[:, :longest])


def num_paths(network: Network, source: ArrayLike, target: ArrayLike) -> NDArray[np.int64]:
    """Return how many numbers `paths` tells apart: the product of the ways along path 0.

    Args:
        network: the graph.
        source: hosts, int [F].
        target: other hosts, int [F].

    Returns:
        Int [F]; 1 between hosts of one leaf.
    """
    start, end = np.broadcast_arrays(source, target)
    # Paths differ between places only, so one pair of hosts stands for all of its places.
    keys = network.place[start] * network.num_places + network.place[end]
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return _walked(network, start[first], end[first], 0)[1][inverse]


def _walked(
    network: Network, source: ArrayLike, target: ArrayLike, number: ArrayLike
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the links of paths, padded to the longest of the network, and their products."""
    start, end, pick = (
        np.array(item, dtype=np.int64) for item in np.broadcast_arrays(source, target, number)
    )
    length = min(int(network.distance[: network.num_hosts].max()), MAX_HOPS)
    found = np.full((len(start), length), -1, dtype=np.int32)
    counts = np.ones(len(start), dtype=np.int64)
    graph = (network.target, network.metric, network.distance, network.place)
    _walk(start, end, pick, *network.out_links, *graph, found, counts)
    return found, counts


def path_bytes_per_s(network: Network, links: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the rate of the narrowest link between switches of each path.

    Args:
        network: the graph.
        links: links as `paths` returns them, int [F, H].

    Returns:
        Float [F]; infinite where a path has no link between switches.
    """
    hosts = network.num_hosts
    inner = (links >= 0) & (network.source[links] >= hosts) & (network.target[links] >= hosts)
    return np.where(inner, network.bytes_per_s[links], np.inf).min(axis=1)


def spread(network: Network, source: ArrayLike, target: ArrayLike) -> Bundles:
    """Return what ideal spraying puts on links: even shares of all shortest paths.

    Every node divides what it gets among its ways in proportion to their rates.

    Args:
        network: the graph.
        source: nodes that the flow starts from, hosts or switches, int [F].
        target: hosts that it goes to, int [F]; a flow from a switch ends at the last switch.

    Returns:
        A bundle per pair.
    """
    start, end = (np.array(item, dtype=np.int64) for item in np.broadcast_arrays(source, target))
    graph = (network.target, network.metric, network.bytes_per_s, network.distance, network.place)
    found = _spread(start, end, *network.out_links, *graph, network.num_hosts)
    return Bundles(*found)


def check_hosts(network: Network, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
    """Refuse pairs that are not two hosts of the network.

    Args:
        network: the graph.
        source: int [F].
        target: int [F].

    Raises:
        ConfigError: a host sends to itself, or there is no such host.
    """
    for name, ends in (("source", source), ("target", target)):
        wrong = np.flatnonzero((ends < 0) | (ends >= network.num_hosts))
        if len(wrong):
            raise ConfigError(
                f"flow {wrong[0]} has {name} {ends[wrong[0]]}, but hosts are 0 to "
                f"{network.num_hosts - 1}",
                hint="number the hosts from 0, or take a larger network",
            )
    same = np.flatnonzero(source == target)
    if len(same):
        raise ConfigError(
            f"flow {same[0]} goes from host {source[same[0]]} to itself",
            hint="leave out what does not use the network",
        )


@njit()
def _walk(
    source, target, number, offsets, links, ends, metric, distance, place, found, counts
):  # pragma: no cover - compiled
    """Fill in the links of a path per row, and the product of its ways."""
    for row in range(len(source)):
        node, goal, pick = source[row], target[row], number[row]
        home = place[goal]
        hop = 0
        while node != goal:
            direct, shortest = 0, 0
            for at in range(offsets[node], offsets[node + 1]):
                link = links[at]
                if ends[link] == goal:
                    direct += 1
                elif (
                    ends[link] >= len(place)
                    and distance[ends[link], home] + metric[link] == distance[node, home]
                ):
                    shortest += 1
            ways = direct if direct else shortest
            left = pick % ways
            pick //= ways
            counts[row] *= ways
            for at in range(offsets[node], offsets[node + 1]):
                link = links[at]
                if direct:
                    fits = ends[link] == goal
                else:
                    fits = (
                        ends[link] >= len(place)
                        and distance[ends[link], home] + metric[link] == distance[node, home]
                    )
                if fits:
                    if left == 0:
                        found[row, hop] = link
                        node = ends[link]
                        break
                    left -= 1
            hop += 1


@njit()
def _spread(
    source, target, offsets, links, ends, metric, rates, distance, place, num_hosts
):  # pragma: no cover - compiled
    """Divide one unit per row among all shortest paths; return it as bundles."""
    amount = np.zeros(len(offsets) - 1)
    waiting = np.empty(len(offsets) - 1, dtype=np.int64)
    bounds = np.zeros(len(source) + 1, dtype=np.int64)
    taken, shares = [np.int64(0) for _ in range(0)], [0.0 for _ in range(0)]
    for row in range(len(source)):
        goal, home = target[row], place[target[row]]
        is_whole = source[row] < num_hosts
        waiting[0], count = source[row], 1
        amount[source[row]] = 1.0
        while count:
            # The farthest node goes first, so that all has arrived at a node when it is divided.
            far = 0
            for at in range(1, count):
                if distance[waiting[at], home] > distance[waiting[far], home]:
                    far = at
            node = waiting[far]
            count -= 1
            waiting[far] = waiting[count]
            whole, is_last = 0.0, False
            for at in range(offsets[node], offsets[node + 1]):
                link = links[at]
                if ends[link] == goal:
                    if not is_last:
                        whole, is_last = 0.0, True
                    whole += rates[link]
                elif (
                    not is_last
                    and ends[link] >= num_hosts
                    and distance[ends[link], home] + metric[link] == distance[node, home]
                ):
                    whole += rates[link]
            for at in range(offsets[node], offsets[node + 1]):
                link = links[at]
                if is_last:
                    if is_whole and ends[link] == goal:
                        taken.append(link)
                        shares.append(amount[node] * rates[link] / whole)
                elif (
                    ends[link] >= num_hosts
                    and distance[ends[link], home] + metric[link] == distance[node, home]
                ):
                    taken.append(link)
                    part = amount[node] * rates[link] / whole
                    shares.append(part)
                    if amount[ends[link]] == 0.0:
                        waiting[count] = ends[link]
                        count += 1
                    amount[ends[link]] += part
            amount[node] = 0.0
        bounds[row + 1] = len(taken)
    return bounds, np.array(taken), np.array(shares)
