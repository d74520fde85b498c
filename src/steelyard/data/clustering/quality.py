"""How well clusters are apart."""

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.store import blocks_of

__all__ = ["davies_bouldin", "silhouette"]

_SAMPLE = 2000


def silhouette(features: NDArray[np.floating], labels: NDArray[np.int64], seed: int = 0) -> float:
    """Return how much nearer rows are to their own cluster than to the next, on a sample of 2,000.

    Args:
        features: [N, D].
        labels: cluster of each row; rows of none, -1, are left out [N].
        seed: seed of the sample.

    Returns:
        -1 to 1; NaN with fewer than two clusters.

    Source: Rousseeuw 1987.
    """
    places = np.flatnonzero(labels >= 0)
    if len(places) > _SAMPLE:
        places = np.sort(np.random.default_rng(seed).choice(places, _SAMPLE, replace=False))
    rows, own = np.asarray(features[places], np.float64), labels[places]
    names, numbers, sizes = np.unique(own, return_inverse=True, return_counts=True)
    if len(names) < 2:
        return float("nan")
    squares = np.einsum("nd,nd->n", rows, rows)
    apart = np.sqrt(np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0))
    np.fill_diagonal(apart, 0.0)
    sums = np.stack([apart[:, numbers == k].sum(axis=1) for k in range(len(names))], axis=1)
    at = np.arange(len(rows))
    inside = sums[at, numbers] / np.maximum(sizes[numbers] - 1, 1)
    means = sums / sizes
    means[at, numbers] = np.inf
    beyond = means.min(axis=1)
    found = (beyond - inside) / np.maximum(np.maximum(beyond, inside), 1e-300)
    # A row that is alone in its cluster has no inside.
    return float(np.where(sizes[numbers] == 1, 0.0, found).mean())


def davies_bouldin(
    features: NDArray[np.floating], labels: NDArray[np.int64], centers: NDArray[np.floating]
) -> float:
    """Return how wide clusters are over how far they are apart, for the worst neighbour of each.

    Args:
        features: [N, D], read once, some rows at a time.
        labels: cluster of each row; rows of none, -1, are left out [N].
        centers: [K, D].

    Returns:
        0 or more, less is better; NaN with fewer than two clusters that have rows.

    Source: Davies and Bouldin 1979.
    """
    sums, counts, first = np.zeros(len(centers)), np.zeros(len(centers)), 0
    for block in blocks_of(features):
        own = labels[first : first + len(block)]
        kept = own >= 0
        apart = np.linalg.norm(block[kept] - centers[own[kept]], axis=1)
        sums += np.bincount(own[kept], apart, len(centers))
        counts += np.bincount(own[kept], minlength=len(centers))
        first += len(block)
    held = counts > 0
    if held.sum() < 2:
        return float("nan")
    widths, middles = sums[held] / counts[held], centers[held]
    gaps = np.linalg.norm(middles[:, None] - middles[None], axis=2)
    np.fill_diagonal(gaps, np.inf)
    ratios = (widths[:, None] + widths) / np.maximum(gaps, 1e-300)
    return float(ratios.max(axis=1).mean())
