"""Routing: flows onto paths, by hash, by spraying, by planned splitting, or by load."""

import itertools
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError
from steelyard.sim.network.balance import Split, cut, divide
from steelyard.sim.network.flows import Flows, RoutedFlows
from steelyard.sim.network.graph import Network, by_key
from steelyard.sim.network.paths import (
    HASH_RANGE,
    check_hosts,
    num_paths,
    path_bytes_per_s,
    paths,
    spread,
)

__all__ = ["ecmp", "ethereal", "flowlets", "onto_paths", "place_pairs", "spray"]


def ecmp(
    network: Network, flows: Flows, rng: np.random.Generator, *, split: ArrayLike = 1
) -> RoutedFlows:
    """Route by hash: every piece of every flow takes one shortest path at random.

    Args:
        network: the graph.
        flows: who sends what.
        rng: stands for the hash of a connection's header.
        split: equal pieces per flow, each a connection of its own; a number or int [F].

    Returns:
        The pieces on their paths.
    """
    count = np.broadcast_to(np.asarray(split, dtype=np.int64), (len(flows),))
    if (count < 1).any():
        raise ConfigError(f"a flow is split in {count.min()} pieces, but 1 is the least")
    flow = np.repeat(np.arange(len(flows)), count)
    size = np.repeat(flows.size_bytes / count, count)
    return onto_paths(network, flows, flow, size, rng.integers(HASH_RANGE, size=len(flow)))


def flowlets(
    network: Network, flows: Flows, rng: np.random.Generator, *, flowlet_bytes: float
) -> RoutedFlows:
    """Route bursts of a flow by hash, each for itself; a shorter flow is one burst.

    At the level of flows, bursts that follow one another load links as pieces beside one another
    do. Transports in hardware pause seldom: their flows are single bursts, and so `ecmp`.

    Args:
        network: the graph.
        flows: who sends what.
        rng: draws the path of each burst.
        flowlet_bytes: mean bytes between pauses.

    Returns:
        The bursts on their paths.
    """
    if not flowlet_bytes > 0:
        raise ConfigError(f"flowlets have {flowlet_bytes} bytes, but must have more than 0")
    return ecmp(network, flows, rng, split=np.ceil(flows.size_bytes / flowlet_bytes))


def spray(network: Network, flows: Flows) -> RoutedFlows:
    """Route ideally: every flow is spread over all its shortest paths in even shares, as a fluid.

    Args:
        network: the graph.
        flows: who sends what.

    Returns:
        One piece per flow, on bundles of links.
    """
    start, end = flows.source, flows.target
    links = network.num_links
    if network.is_multi_homed:
        # The host's own links are shared out too, so that no two flows have their bundle in common.
        check_hosts(network, start, end)
        bundles = spread(network, start, end)
        hops = (links + np.arange(len(flows)))[:, None]
    else:
        first, inverse = place_pairs(network, flows)
        one_way = paths(network, start, end, 0)
        leaf = network.target[one_way[:, 0]]
        bundles = spread(network, leaf[first], end[first])
        last = one_way[np.arange(len(flows)), (one_way >= 0).sum(axis=1) - 1]
        is_local = np.diff(bundles.offset)[inverse] == 0
        # Under one leaf there is nothing to spread: up to the leaf, and down to the host.
        middle = np.where(is_local, last, links + inverse)
        end_hop = np.where(is_local, -1, last)
        hops = np.column_stack([one_way[:, 0], middle, end_hop])
    return RoutedFlows(
        flows=flows,
        flow=np.arange(len(flows)),
        size_bytes=flows.size_bytes,
        hops=hops.astype(np.int32),
        bundles=bundles,
    )


def ethereal(network: Network, flows: Flows, *, split: Split = "minimal") -> RoutedFlows:
    """Route whole flows round the paths of each pair of leaves, and split what is left over.

    Flows of one size between two leaves load all paths between them alike, as spraying would: on
    fat trees whose links of a layer are equal, every uplink and every downlink then carries what
    ideal spraying puts on it. A host needs no more for it than the pattern of the collective and
    the leaf of every host. Where paths have unequal rates, flows are laid end to end and cut in
    proportion to these.

    Args:
        network: the graph.
        flows: who sends what.
        split: pieces of the flows that are left over.

    Returns:
        The pieces on their paths.

    Source: arXiv 2407.00550, algorithm 1 and theorem 1 (`split="equal"`).
    """
    first, inverse = place_pairs(network, flows)
    ways = num_paths(network, flows.source[first], flows.target[first])
    rooms = _rooms(network, flows, first, ways)
    _, size_class = np.unique(flows.size_bytes, return_inverse=True)
    _, group = np.unique(inverse * (size_class.max() + 1) + size_class, return_inverse=True)
    offsets, members = by_key(group, int(group.max()) + 1)
    parts = []
    for low, high in itertools.pairwise(offsets):
        own = members[low:high]
        pair = inverse[own[0]]
        # Another host's flows are split for each pair of leaves, so that queue pairs are shared.
        own = np.roll(own, int(network.place[flows.target[own[0]]]))
        size = flows.size_bytes[own[0]]
        room = rooms[pair]
        if room is None:
            flow, path, pieces = divide(len(own), int(ways[pair]), split)
            parts.append((own[flow], path, pieces * (size / ways[pair])))
        else:
            flow, path, pieces = cut(np.full(len(own), size), room * (size * len(own)))
            parts.append((own[flow], path, pieces))
    flow, number, size = (np.concatenate(column) for column in zip(*parts, strict=True))
    return onto_paths(network, flows, flow, size, number)


def onto_paths(
    network: Network,
    flows: Flows,
    flow: NDArray[np.int64],
    size_bytes: NDArray[np.float64],
    number: NDArray[np.int64],
) -> RoutedFlows:
    """Put pieces of flows on paths by their numbers.

    Args:
        network: the graph.
        flows: who sends what.
        flow: flow of each piece, int [S].
        size_bytes: bytes of each piece, float [S].
        number: number of each piece's path, int [S].

    Returns:
        The pieces, by flow.
    """
    check_hosts(network, flows.source, flows.target)
    order = np.argsort(flow, kind="stable")
    flow = flow[order]
    taken = paths(network, flows.source[flow], flows.target[flow], number[order])
    return RoutedFlows(flows=flows, flow=flow, size_bytes=size_bytes[order], hops=taken)


def place_pairs(network: Network, flows: Flows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs of places that flows connect: a flow of each pair, and each flow's pair."""
    check_hosts(network, flows.source, flows.target)
    keys = network.place[flows.source] * network.num_places + network.place[flows.target]
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first, inverse


def _rooms(
    network: Network, flows: Flows, first: NDArray[np.int64], ways: NDArray[np.int64]
) -> list[NDArray[np.float64] | None]:
    """Return the share of each path of a pair of places; None where all are equal."""
    pair = np.repeat(first, ways)
    ends = np.cumsum(ways)
    number = np.arange(len(pair)) - np.repeat(ends - ways, ways)
    rates = path_bytes_per_s(
        network, paths(network, flows.source[pair], flows.target[pair], number)
    )
    found: list[NDArray[np.float64] | None] = []
    for own in np.split(rates, ends[:-1]):
        is_even = len(own) == 1 or math.isclose(own.min(), own.max(), rel_tol=1e-9)
        found.append(None if is_even else own / own.sum())
    return found
