"""Communities of a whole graph of one kind of nodes by the Leiden method, and modularity."""

import numpy as np
from numpy.typing import NDArray

from steelyard.data.graph.csr import CSRGraph
from steelyard.errors import ConfigError, DataError
from steelyard.jit import njit

__all__ = ["leiden", "modularity", "numbered"]

_MOST_ROUNDS = 20


@njit()
def _move(
    offsets: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    strength: np.ndarray,
    scale: float,
    labels: np.ndarray,
    order: np.ndarray,
) -> bool:
    """Move nodes to the neighbouring community that gains most, until none gains; whether any."""
    count = len(labels)
    held = np.zeros(count)
    size = np.zeros(count, np.int64)
    for node in range(count):
        held[labels[node]] += strength[node]
        size[labels[node]] += 1
    empty = np.empty(count + 1, np.int64)
    free = 0
    for label in range(count):
        if size[label] == 0:
            empty[free] = label
            free += 1
    queue = order.copy()
    waits = np.ones(count, np.bool_)
    first, waiting = 0, count
    ties = np.zeros(count)
    near = np.empty(count, np.int64)
    moved = False
    while waiting:
        node = queue[first]
        first = (first + 1) % count
        waiting -= 1
        waits[node] = False
        own, found = labels[node], 0
        for place in range(offsets[node], offsets[node + 1]):
            if targets[place] == node:
                continue
            label = labels[targets[place]]
            if ties[label] == 0:
                near[found] = label
                found += 1
            ties[label] += weights[place]
        held[own] -= strength[node]
        size[own] -= 1
        best, most = own, ties[own] - scale * strength[node] * held[own]
        for number in range(found):
            label = near[number]
            gain = ties[label] - scale * strength[node] * held[label]
            # The margin keeps rounding from moving a node back and forth for ever.
            if gain > most + 1e-12:
                best, most = label, gain
        if most < -1e-12 and size[own] and free:
            free -= 1
            best = empty[free]
        if best != own and size[own] == 0:
            empty[free] = own
            free += 1
        for number in range(found):
            ties[near[number]] = 0
        held[best] += strength[node]
        size[best] += 1
        if best == own:
            continue
        labels[node] = best
        moved = True
        for place in range(offsets[node], offsets[node + 1]):
            other = targets[place]
            if labels[other] != best and not waits[other]:
                waits[other] = True
                queue[(first + waiting) % count] = other
                waiting += 1
    return moved


@njit()
def _refine(
    offsets: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    strength: np.ndarray,
    scale: float,
    labels: np.ndarray,
    order: np.ndarray,
) -> np.ndarray:
    """Split each community into parts that hang together, by merging its nodes anew."""
    count = len(labels)
    parts = np.arange(count)
    whole = np.zeros(count)
    for node in range(count):
        whole[labels[node]] += strength[node]
    held, size = strength.copy(), np.ones(count, np.int64)
    # Ties of each part to the rest of its community.
    cut = np.zeros(count)
    for node in range(count):
        for place in range(offsets[node], offsets[node + 1]):
            if targets[place] != node and labels[targets[place]] == labels[node]:
                cut[node] += weights[place]
    ties = np.zeros(count)
    near = np.empty(count, np.int64)
    for node in order:
        rest = whole[labels[node]] - strength[node]
        if size[parts[node]] > 1 or cut[node] < scale * strength[node] * rest:
            continue
        found = 0
        for place in range(offsets[node], offsets[node + 1]):
            other = targets[place]
            if other == node or labels[other] != labels[node]:
                continue
            if ties[parts[other]] == 0:
                near[found] = parts[other]
                found += 1
            ties[parts[other]] += weights[place]
        best, most = parts[node], 1e-12
        for number in range(found):
            part = near[number]
            beyond = whole[labels[node]] - held[part]
            gain = ties[part] - scale * strength[node] * held[part]
            if gain > most and cut[part] >= scale * held[part] * beyond:
                best, most = part, gain
        if best != parts[node]:
            size[parts[node]] -= 1
            size[best] += 1
            held[best] += strength[node]
            cut[best] += cut[node] - 2 * ties[best]
            parts[node] = best
        for number in range(found):
            ties[near[number]] = 0
    return parts


def numbered(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return labels from 0 on, the largest community first; of equal ones that of the first node.

    Args:
        labels: community of each node, any numbers, [N].

    Returns:
        int64, [N].
    """
    _, first, inverse, counts = np.unique(
        labels, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.lexsort((first, -counts))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place[inverse]


def _weights(graph: CSRGraph) -> NDArray[np.float64]:
    """Return the weight of each entry; refuse what has no modularity."""
    if graph.num_columns != len(graph):
        raise DataError(
            f"a graph of {len(graph):,} rows and {graph.num_columns:,} columns",
            hint="give one whose rows and columns are the same nodes",
        )
    weights = np.ones(graph.num_edges) if graph.weights is None else graph.weights
    if len(weights) and weights.min() < 0:
        raise DataError("a graph with a weight below 0", hint="leave such edges out")
    return weights


def modularity(graph: CSRGraph, labels: NDArray[np.int64], resolution: float = 1.0) -> float:
    """Return the modularity of communities.

    Args:
        graph: graph of one kind of nodes.
        labels: community of each node, from 0 on, [N].
        resolution: weight of what chance would give.

    Returns:
        -1/2 to 1; 0 for a graph without edges.

    Raises:
        DataError: rows and columns differ, or a weight is below 0.

    Source: Newman and Girvan 2004, arXiv cond-mat/0308217, eq. 5; Reichardt and Bornholdt 2006 for
        the resolution.
    """
    weights = _weights(graph)
    total = weights.sum()
    if not total:
        return 0.0
    rows = np.repeat(np.arange(len(graph)), graph.degrees)
    inside = weights[labels[rows] == labels[graph.targets]].sum()
    held = np.bincount(labels, np.bincount(rows, weights, len(graph)))
    return float(inside / total - resolution * (held / total) @ (held / total))


def leiden(graph: CSRGraph, *, resolution: float = 1.0, seed: int = 0) -> NDArray[np.int64]:
    """Find communities of high modularity, each of which hangs together.

    Nodes move to better communities; communities are split into well connected parts; the parts
    become the nodes of the next level. This is repeated from its own result until nothing moves.

    Args:
        graph: graph of one kind of nodes, weights not below 0.
        resolution: higher finds more and smaller communities; above 0.
        seed: seed of the order in which nodes are looked at.

    Returns:
        Community of each node, from 0 on, the largest first, [N].

    Raises:
        ConfigError: the resolution is not above 0.
        DataError: rows and columns differ, or a weight is below 0.

    Source: Traag et al. 2019, arXiv 1810.08473; the refinement takes the best part
        instead of drawing one.
    """
    if resolution <= 0:
        raise ConfigError(f"a resolution of {resolution}, but it must be above 0")
    weights, labels = _weights(graph), np.arange(len(graph))
    total = weights.sum()
    if not total:
        return labels
    rng = np.random.default_rng(seed)
    for _ in range(_MOST_ROUNDS):
        before = labels
        labels = numbered(_one_round(graph, weights, labels, resolution / total, rng))
        if np.array_equal(labels, before):
            break
    return labels


def _one_round(
    graph: CSRGraph,
    weights: NDArray[np.float64],
    start: NDArray[np.int64],
    scale: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Go once from single nodes through all levels."""
    offsets, targets = graph.offsets, graph.targets.astype(np.int64)
    strength = np.bincount(np.repeat(np.arange(len(graph)), graph.degrees), weights, len(graph))
    labels, member = start.copy(), np.arange(len(graph))
    while True:
        level = (offsets, targets, weights, strength, scale)
        moved = _move(*level, labels, rng.permutation(len(labels)))
        parts = _refine(*level, labels, rng.permutation(len(labels)))
        _, first, parts = np.unique(parts, return_index=True, return_inverse=True)
        if len(first) == len(labels):
            return labels[member]
        upper = labels[first]
        rows = np.repeat(parts, np.diff(offsets))
        codes, inverse = np.unique(rows * len(first) + parts[targets], return_inverse=True)
        weights = np.bincount(inverse, weights, len(codes)).astype(np.float64)
        offsets = np.searchsorted(codes // len(first), np.arange(len(first) + 1))
        targets = codes % len(first)
        strength = np.bincount(parts, strength)
        member = parts[member]
        # Communities of the upper level are those that the parts lie in, named from 0 on.
        labels = np.unique(upper, return_inverse=True)[1]
        if not moved and len(np.unique(labels)) == len(labels):
            return labels[member]
