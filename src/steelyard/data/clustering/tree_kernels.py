"""Kernels of a tree of cluster features: rows go down to the nearest, full nodes are parted."""

from typing import Any

import numpy as np

from steelyard.data.kmeans.distances import squared_distance
from steelyard.jit import njit

__all__ = ["ENTRIES", "SPARE_NODES", "insert_rows", "join_costs"]

ENTRIES = 16
"""Entries of a node."""
SPARE_NODES = 66
"""Nodes that one row may make: one on each level, and a new root."""
_LEVELS = 64


@njit()
def _nearest_entry(row: np.ndarray, node: Any, counts: np.ndarray, means: np.ndarray) -> Any:
    """Return the entry of a node whose mean is nearest to a row."""
    best, least = 0, np.inf
    for entry in range(counts[node]):
        apart = squared_distance(row, means[node, entry])
        if apart < least:
            best, least = entry, apart
    return best


@njit()
def _add(
    node: Any,
    entry: Any,
    mean: np.ndarray,
    weight: Any,
    spread: Any,
    weights: np.ndarray,
    means: np.ndarray,
    spreads: np.ndarray,
) -> None:
    """Add a cluster feature to an entry.

    Source: Lang and Schubert 2020 (arXiv 2006.12881, BETULA), equations 4 to 6: means and squared
        deviations in place of sums of squares, which cancel.
    """
    own = weights[node, entry]
    total = own + weight
    apart = squared_distance(mean, means[node, entry])
    spreads[node, entry] += spread + apart * own * weight / total
    for column in range(len(mean)):
        means[node, entry, column] += (mean[column] - means[node, entry, column]) * weight / total
    weights[node, entry] = total


@njit()
def _sum_up(
    node: Any,
    parent: Any,
    entry: Any,
    counts: np.ndarray,
    weights: np.ndarray,
    means: np.ndarray,
    spreads: np.ndarray,
) -> None:
    """Write what all entries of a node are together into an entry of its parent."""
    weights[parent, entry], spreads[parent, entry] = weights[node, 0], spreads[node, 0]
    means[parent, entry] = means[node, 0]
    for other in range(1, counts[node]):
        given = (means[node, other], weights[node, other], spreads[node, other])
        _add(parent, entry, *given, weights, means, spreads)


@njit()
def _move(
    node: Any,
    entry: Any,
    to: Any,
    place: Any,
    children: np.ndarray,
    weights: np.ndarray,
    means: np.ndarray,
    spreads: np.ndarray,
) -> None:
    """Copy an entry to another place."""
    children[to, place], weights[to, place] = children[node, entry], weights[node, entry]
    spreads[to, place] = spreads[node, entry]
    means[to, place] = means[node, entry]


@njit()
def _part(
    node: Any,
    new: Any,
    counts: np.ndarray,
    children: np.ndarray,
    weights: np.ndarray,
    means: np.ndarray,
    spreads: np.ndarray,
) -> None:
    """Part the entries of a node by which of the two farthest they are nearer to."""
    first, second, most = 0, 1, -1.0
    for one in range(counts[node]):
        for other in range(one):
            apart = squared_distance(means[node, one], means[node, other])
            if apart > most:
                first, second, most = other, one, apart
    one_mean, other_mean = means[node, first].copy(), means[node, second].copy()
    kept, moved, total = 0, 0, counts[node]
    for entry in range(total):
        near = squared_distance(means[node, entry], one_mean)
        # Of equal entries the second seed still leaves: neither node may stay empty.
        if near <= squared_distance(means[node, entry], other_mean) and entry != second:
            if kept != entry:
                _move(node, entry, node, kept, children, weights, means, spreads)
            kept += 1
        else:
            _move(node, entry, new, moved, children, weights, means, spreads)
            moved += 1
    counts[node], counts[new] = kept, moved


@njit()
def insert_rows(
    rows: np.ndarray,
    row_weights: np.ndarray,
    row_spreads: np.ndarray,
    limit: Any,
    most: Any,
    state: np.ndarray,
    counts: np.ndarray,
    is_leaf: np.ndarray,
    children: np.ndarray,
    weights: np.ndarray,
    means: np.ndarray,
    spreads: np.ndarray,
) -> Any:
    """Put rows into the tree until it is full.

    Args:
        rows: means of cluster features, or rows [N, D].
        row_weights: rows that each stands for [N].
        row_spreads: squared deviations from each [N].
        limit: mean squared deviation above which an entry takes no more.
        most: entries of all leaves at which it ends.
        state: root, nodes in use, entries of leaves; changed.
        counts: entries of nodes [M].
        is_leaf: [M].
        children: nodes below entries [M, E].
        weights: rows of entries [M, E].
        means: [M, E, D].
        spreads: squared deviations of entries [M, E].

    Returns:
        Rows that were put in.

    Source: Zhang, Ramakrishnan and Livny 1996 (BIRCH), section 4.3.
    """
    path, taken = np.empty(_LEVELS, np.int64), np.empty(_LEVELS, np.int64)
    for place in range(len(rows)):
        if state[2] >= most or state[1] + SPARE_NODES > len(counts):
            return place
        row, weight, spread = rows[place], row_weights[place], row_spreads[place]
        node, depth = state[0], 0
        while not is_leaf[node]:
            entry = _nearest_entry(row, node, counts, means)
            _add(node, entry, row, weight, spread, weights, means, spreads)
            path[depth], taken[depth] = node, entry
            depth += 1
            node = children[node, entry]
        fits, entry = False, _nearest_entry(row, node, counts, means)
        if counts[node]:
            own = weights[node, entry]
            apart = squared_distance(row, means[node, entry])
            wide = spreads[node, entry] + spread + apart * own * weight / (own + weight)
            fits = wide <= limit * (own + weight)
        if fits:
            _add(node, entry, row, weight, spread, weights, means, spreads)
            continue
        entry = counts[node]
        weights[node, entry], spreads[node, entry] = weight, spread
        means[node, entry] = row
        counts[node] += 1
        state[2] += 1
        while counts[node] > ENTRIES:
            new = state[1]
            state[1] += 1
            is_leaf[new] = is_leaf[node]
            _part(node, new, counts, children, weights, means, spreads)
            if not depth:
                root = state[1]
                state[0], state[1] = root, root + 1
                is_leaf[root], counts[root] = False, 2
                children[root, 0], children[root, 1] = node, new
                _sum_up(node, root, 0, counts, weights, means, spreads)
                _sum_up(new, root, 1, counts, weights, means, spreads)
                break
            depth -= 1
            parent, entry = path[depth], taken[depth]
            _sum_up(node, parent, entry, counts, weights, means, spreads)
            children[parent, counts[parent]] = new
            _sum_up(new, parent, counts[parent], counts, weights, means, spreads)
            counts[parent] += 1
            node = parent
    return len(rows)


@njit()
def join_costs(
    used: Any,
    counts: np.ndarray,
    is_leaf: np.ndarray,
    weights: np.ndarray,
    means: np.ndarray,
    spreads: np.ndarray,
    out: np.ndarray,
) -> Any:
    """Write the least mean squared deviation that each entry would have with one of its leaf.

    Args:
        used: nodes in use.
        counts: entries of nodes [M].
        is_leaf: [M].
        weights: rows of entries [M, E].
        means: [M, E, D].
        spreads: squared deviations of entries [M, E].
        out: as long as there are entries of leaves; written from its begin.

    Returns:
        How many were written: entries that are alone in their leaf have none.
    """
    done = 0
    for node in range(used):
        if not is_leaf[node] or counts[node] < 2:
            continue
        for one in range(counts[node]):
            least = np.inf
            for other in range(counts[node]):
                if one != other:
                    a, b = weights[node, one], weights[node, other]
                    apart = squared_distance(means[node, one], means[node, other])
                    wide = spreads[node, one] + spreads[node, other] + apart * a * b / (a + b)
                    least = min(least, wide / (a + b))
            out[done] = least
            done += 1
    return done
