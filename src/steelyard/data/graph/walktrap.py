"""Communities of a small graph by short random walks."""

import numpy as np
from numpy.typing import NDArray

from steelyard.data.graph.csr import CSRGraph
from steelyard.data.graph.leiden import numbered
from steelyard.errors import CapacityError, ConfigError, DataError
from steelyard.jit import njit

__all__ = ["walktrap"]

MOST_NODES = 5000
"""Nodes at most: the walks of all nodes are a square matrix."""


@njit()
def _gap(walks: np.ndarray, sizes: np.ndarray, one: int, other: int) -> float:
    """Return how much merging two communities adds to the squared distances within."""
    total = 0.0
    for place in range(walks.shape[1]):
        step = walks[one, place] - walks[other, place]
        total += step * step
    return total * sizes[one] * sizes[other] / (sizes[one] + sizes[other])


@njit()
def _nearest(gaps: np.ndarray, row: int) -> int:
    best = 0
    for other in range(len(gaps)):
        if gaps[row, other] < gaps[row, best]:
            best = other
    return best


@njit()
def _merge_all(walks: np.ndarray, ties: np.ndarray, shares: np.ndarray, merges: np.ndarray) -> int:
    """Merge the two neighbouring communities of the smallest gap; return the best level.

    `ties` are shares of all weight between communities, `shares` those of their ends.
    """
    count = len(walks)
    sizes = np.ones(count)
    gaps = np.full((count, count), np.inf)
    for one in range(count):
        for other in range(one):
            if ties[one, other] > 0:
                gaps[one, other] = gaps[other, one] = _gap(walks, sizes, one, other)
    nearest = np.array([_nearest(gaps, row) for row in range(count)])
    quality, best, level = 0.0, 0.0, 0
    for turn in range(count - 1):
        one = 0
        for row in range(count):
            if gaps[row, nearest[row]] < gaps[one, nearest[one]]:
                one = row
        other = nearest[one]
        if gaps[one, other] == np.inf:
            return level
        one, other = min(one, other), max(one, other)
        merges[turn, 0], merges[turn, 1] = one, other
        quality += 2 * (ties[one, other] - shares[one] * shares[other])
        together = sizes[one] + sizes[other]
        for place in range(walks.shape[1]):
            walks[one, place] = (
                sizes[one] * walks[one, place] + sizes[other] * walks[other, place]
            ) / together
        sizes[one] = together
        shares[one] += shares[other]
        for row in range(count):
            gaps[row, other] = gaps[other, row] = np.inf
            if row != one and row != other:
                ties[one, row] += ties[other, row]
                ties[row, one] = ties[one, row]
            ties[row, other] = ties[other, row] = 0.0
        for row in range(count):
            if row != one and ties[one, row] > 0:
                gaps[one, row] = gaps[row, one] = _gap(walks, sizes, one, row)
        for row in range(count):
            if row == one or nearest[row] == one or nearest[row] == other:
                nearest[row] = _nearest(gaps, row)
            elif gaps[row, one] < gaps[row, nearest[row]]:
                nearest[row] = one
        if quality > best:
            best, level = quality, turn + 1
    return level


def walktrap(graph: CSRGraph, *, steps: int = 4) -> NDArray[np.int64]:
    """Find communities by merging nodes from which short walks end alike.

    The level of the merging tree with the highest modularity is returned. Each node has a loop of
    the mean weight of its ties, without which walks of even and odd length differ.

    Args:
        graph: graph of one kind of nodes, weights not below 0.
        steps: length of the walks, at least 1.

    Returns:
        Community of each node, from 0 on, the largest first, [N].

    Raises:
        ConfigError: no step.
        DataError: rows and columns differ, or a weight is below 0.
        CapacityError: more than 5,000 nodes.

    Source: Pons and Latapy 2005, arXiv physics/0512106.
    """
    if steps < 1:
        raise ConfigError(f"walks of {steps} steps", hint="give 1 or more; 4 is usual")
    if len(graph) > MOST_NODES:
        raise CapacityError(
            f"{len(graph):,} nodes, and {MOST_NODES:,} are the most for walktrap",
            hint="use leiden for large graphs",
        )
    if graph.num_columns != len(graph):
        raise DataError("rows and columns of the graph differ", hint="give one kind of nodes")
    weights = np.ones(graph.num_edges) if graph.weights is None else graph.weights
    if len(weights) and weights.min() < 0:
        raise DataError("a graph with a weight below 0", hint="leave such edges out")
    count = len(graph)
    ties = np.zeros((count, count))
    ties[np.repeat(np.arange(count), graph.degrees), graph.targets] = weights
    strength = ties.sum(axis=1)
    if not strength.sum():
        return np.arange(count)
    degrees = np.maximum(graph.degrees, 1)
    # A node without ties walks to itself alone.
    loops = np.where(strength > 0, strength / degrees, 1.0)
    chances = (ties + np.diag(loops)) / (strength + loops)[:, None]
    walks = np.linalg.matrix_power(chances, steps) / np.sqrt(strength + loops)
    merges = np.zeros((max(count - 1, 0), 2), np.int64)
    total = strength.sum()
    level = _merge_all(np.ascontiguousarray(walks), ties / total, strength / total, merges)
    labels = np.arange(count)
    for one, other in merges[:level]:
        labels[labels == other] = one
    return numbered(labels)
