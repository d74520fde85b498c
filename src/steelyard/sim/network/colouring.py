"""Uplinks and downlinks balanced jointly: edges of a bipartite graph in as many colours as paths.

A flow is an edge from its source leaf to its target leaf, and its path (a spine) is its colour. If
every leaf sends and receives a multiple of s flows, s colours can be given so that each leaf has
equally many edges of each (König 1916): no flow is split. Only what is beyond such multiples must
be.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from steelyard.errors import ConfigError
from steelyard.sim.network.balance import Split, cut, divide
from steelyard.sim.network.flows import Flows, RoutedFlows
from steelyard.sim.network.graph import Network, by_key
from steelyard.sim.network.paths import num_paths
from steelyard.sim.network.routing import ethereal, onto_paths, place_pairs

__all__ = ["colour_counts", "edge_colouring"]


def edge_colouring(network: Network, flows: Flows, *, split: Split = "minimal") -> RoutedFlows:
    """Route so that uplinks and downlinks of all leaves are balanced jointly, with fewest splits.

    The flows that the pairs of leaves leave over (`ethereal` splits those) are put together: whole
    ones are coloured as far as the leaves' counts are multiples of the number of paths, and only
    the others are split. Where that would make more pieces than pair by pair, it is done pair by
    pair.

    Args:
        network: the graph; all its pairs of leaves have equally many paths, and a path's number
            says which uplink and downlink it uses, as on a fat tree of two layers.
        flows: who sends what, all of one size.
        split: how pair by pair would split, for comparison.

    Returns:
        The pieces on their paths; every link between switches carries what spraying puts on it.

    Raises:
        ConfigError: sizes, or numbers of paths, are not all equal.

    Source: König 1916 (edge colouring of bipartite graphs); arXiv 2407.00550 balances pairs.
    """
    first, inverse = place_pairs(network, flows)
    ways = num_paths(network, flows.source[first], flows.target[first])
    source, target = network.place[flows.source[first]], network.place[flows.target[first]]
    is_local = source == target
    size, colours = np.unique(flows.size_bytes), np.unique(ways[~is_local])
    if len(size) != 1 or len(colours) > 1:
        raise ConfigError(
            f"colouring needs flows of one size and one number of paths, but there are "
            f"{len(size)} sizes and paths {colours.tolist()}",
            hint="ethereal balances each size and pair of leaves for itself",
        )
    by_pair = ethereal(network, flows, split=split)
    if not len(colours):
        return by_pair
    num_colours = int(colours[0])
    counts = np.bincount(inverse, minlength=len(first))
    members = by_key(inverse, len(first))
    parts = []
    left = np.where(is_local, 0, counts % num_colours)
    matrix = np.zeros((network.num_places, network.num_places), dtype=np.int64)
    matrix[source, target] = left
    whole, pieces = colour_counts(matrix, num_colours)
    for pair, count in enumerate(counts):
        own = members[1][members[0][pair] : members[0][pair + 1]]
        if is_local[pair]:
            parts.append((own, np.zeros(count, np.int64), np.full(count, num_colours)))
            continue
        even = count - left[pair]
        if even:
            flow, path, units = divide(even, num_colours)
            parts.append((own[flow], path, units))
        place = source[pair], target[pair]
        for flow, path, units in _pieces(whole[:, *place], pieces[:, *place], num_colours):
            parts.append((own[even + flow], path, units))
    flow, number, units = (np.concatenate(column) for column in zip(*parts, strict=True))
    if len(flow) > len(by_pair):
        return by_pair
    return onto_paths(network, flows, flow, units * (size[0] / num_colours), number)


def colour_counts(
    edges: NDArray[np.int64], num_colours: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Colour the edges between leaves so that every leaf has each colour equally often.

    Args:
        edges: flows from each leaf to each other, int [P, P].
        num_colours: colours C, the paths between leaves.

    Returns:
        Whole edges by colour, int [C, P, P], and parts of the others in units of 1 / C of an edge,
        int [C, P, P]. Summed over colours both are `edges`; rows and columns are alike for all
        colours. There are no parts where all rows and columns of `edges` sum to multiples of C.
    """
    whole = _largest_divisible(edges, num_colours)
    rest = edges - whole
    return _peel(whole, num_colours), _peel(rest * num_colours, num_colours)


def _largest_divisible(edges: NDArray[np.int64], divisor: int) -> NDArray[np.int64]:
    """Return edges, as many as are found, whose rows and columns sum to multiples of a divisor."""
    out = edges.sum(axis=1) // divisor * divisor
    into = edges.sum(axis=0) // divisor * divisor
    while True:
        flow = _transport(edges, out, into)
        sums = flow.sum(axis=1), flow.sum(axis=0)
        if (sums[0] == out).all() and (sums[1] == into).all():
            return flow
        # A leaf that cannot be filled is given up down to the next multiple, which others feel.
        out, into = sums[0] // divisor * divisor, sums[1] // divisor * divisor


def _peel(edges: NDArray[np.int64], num_colours: int) -> NDArray[np.int64]:
    """Divide edges whose degrees are multiples of the colours into colours of equal degrees."""
    found = np.zeros((num_colours, *edges.shape), dtype=np.int64)
    out, into = edges.sum(axis=1) // num_colours, edges.sum(axis=0) // num_colours
    left = edges.copy()
    for colour in range(num_colours):
        if not left.any():
            break
        # What is left has degrees (colours left) x (out, into), so a factor exists (König).
        found[colour] = _transport(left, out, into)
        left -= found[colour]
    return found


def _transport(
    room: NDArray[np.int64], out: NDArray[np.int64], into: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the largest whole flow from rows to columns within the room of each pair."""
    rows, columns = room.shape
    size = rows + columns + 2
    graph = np.zeros((size, size), dtype=np.int32)
    graph[1 : rows + 1, rows + 1 : -1] = room
    graph[0, 1 : rows + 1] = out
    graph[rows + 1 : -1, -1] = into
    found = maximum_flow(csr_array(graph), 0, size - 1).flow.toarray()
    return found[1 : rows + 1, rows + 1 : -1].astype(np.int64)


def _pieces(whole: NDArray[np.int64], units: NDArray[np.int64], num_colours: int):
    """Yield the flows of a pair of leaves, numbered from 0, with path and size of their pieces."""
    path = np.repeat(np.arange(num_colours), whole)
    if len(path):
        yield np.arange(len(path)), path, np.full(len(path), num_colours)
    # Colours with room for a whole flow take it whole.
    more = units // num_colours
    again = np.repeat(np.arange(num_colours), more)
    if len(again):
        yield len(path) + np.arange(len(again)), again, np.full(len(again), num_colours)
    rooms = units - more * num_colours
    split = int(rooms.sum()) // num_colours
    if split:
        flow, cut_path, sizes = cut(np.full(split, num_colours), rooms)
        yield len(path) + len(again) + flow, cut_path, sizes
