"""How hard examples are, from logits or embeddings; higher scores are harder.

Scores of several nets are averaged: one net's are noise, and after training they are near 0 for
most examples, so early checkpoints tell more.
"""

import numpy as np

from steelyard.data.kmeans import kmeans, nearest, unit_rows
from steelyard.errors import ConfigError, DataError

__all__ = ["el2n", "entropy", "forgetting", "margin", "prototype_distance", "stability"]


def el2n(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the length of the error vector of the probabilities.

    Args:
        logits: finite numbers [N, C].
        labels: right classes, integers [N].

    Returns:
        float64 [N], 0 to sqrt(2).

    Raises:
        DataError: logits are not finite, or labels do not fit them.

    Source: Paul et al. 2021 (arXiv 2107.07075), definition 2.2.
    """
    errors = _probabilities(logits)
    rows = np.arange(len(errors))
    errors[rows, _labels(labels, errors)] -= 1
    return np.linalg.norm(errors, axis=1)


def margin(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the probability of the likeliest wrong class minus that of the right one.

    Args:
        logits: finite numbers [N, C], C at least 2.
        labels: right classes, integers [N].

    Returns:
        float64 [N], -1 to 1; above 0 where the answer is wrong.

    Raises:
        DataError: logits are not finite, or labels do not fit them.
    """
    shares = _probabilities(logits)
    rows, right = np.arange(len(shares)), _labels(labels, shares)
    own = shares[rows, right]
    # Below every probability, so that the maximum is one of the wrong classes.
    shares[rows, right] = -1
    return shares.max(axis=1) - own


def entropy(logits: np.ndarray) -> np.ndarray:
    """Return the entropy of the probabilities in nats; labels are not needed.

    Args:
        logits: finite numbers [N, C], or [S, N, C] of S nets, whose probabilities are averaged.

    Returns:
        float64 [N], 0 to ln C.

    Raises:
        DataError: logits are not finite.
    """
    logits = np.asarray(logits)
    nets = logits if logits.ndim == 3 else logits[None]
    shares = np.mean([_probabilities(net) for net in nets], axis=0)
    return -np.sum(shares * np.log(np.maximum(shares, 1e-300)), axis=1)


def forgetting(forgotten: np.ndarray, learned: np.ndarray) -> np.ndarray:
    """Return how hard examples are by how often a training forgot them.

    Args:
        forgotten: times each was answered rightly at one visit and wrongly at the next, integers
            [N].
        learned: whether it was ever answered rightly, bool [N].

    Returns:
        float64 [N]; one that was never learned is harder than all that were.

    Raises:
        DataError: counts are negative, or the two have different shapes.

    Source: Toneva et al. 2019 (arXiv 1812.05159), section 3.
    """
    forgotten, learned = np.asarray(forgotten), np.asarray(learned, dtype=bool)
    if forgotten.ndim != 1 or forgotten.shape != learned.shape or (forgotten < 0).any():
        raise DataError(
            f"forgotten {list(forgotten.shape)} and learned {list(learned.shape)} are not counts "
            "[N] and whether [N]",
            hint="give both for the same examples",
        )
    return np.where(learned, forgotten, forgotten.max(initial=0) + 1).astype(np.float64)


def prototype_distance(
    embeddings: np.ndarray,
    *,
    labels: np.ndarray | None = None,
    count: int | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Return the cosine distance of each example to the nearest prototype, or to its class's mean.

    Args:
        embeddings: finite numbers [N, D], no row 0.
        labels: classes, integers [N]: prototypes are their means.
        count: prototypes found by k-means where there are no labels; about the number of classes.
        seed: seed of the k-means.

    Returns:
        float64 [N], 0 to 2.

    Raises:
        ConfigError: not exactly one of `labels` and `count` is given.
        DataError: embeddings are malformed, or labels are not one per example.

    Source: Sorscher et al. 2022 (arXiv 2206.14486), section 6.
    """
    if (labels is None) == (count is None):
        raise ConfigError(
            "prototypes need either labels or their count", hint="give labels=... or count=..."
        )
    points = unit_rows(np.asarray(embeddings, dtype=np.float64))
    if labels is None:
        centers = kmeans(points, count or 0, seed=seed, metric="cosine").centers
        # Squared distance of unit rows is 2 (1 - cosine).
        return nearest(points, centers)[1] / 2
    if len(labels) != len(points):
        raise DataError(f"{len(labels)} labels for {len(points)} embeddings")
    _, place = np.unique(labels, return_inverse=True)
    sums = np.zeros((int(place.max()) + 1, points.shape[1]))
    np.add.at(sums, place, points)
    return 1 - np.einsum("nd,nd->n", points, unit_rows(sums)[place])


def stability(scores: np.ndarray) -> float:
    """Return the rank correlation of the mean scores of two halves of the nets.

    Args:
        scores: scores of the same examples by S nets [S, N], S at least 2.

    Returns:
        Spearman's correlation; below 0.8 take more nets.

    Raises:
        DataError: there are fewer than two nets or examples.
    """
    from scipy.stats import rankdata

    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 2 or min(scores.shape) < 2:
        raise DataError(
            f"scores {list(scores.shape)} are not of 2 or more nets and examples",
            hint="score with nets of other seeds",
        )
    half = len(scores) // 2
    ranks = [rankdata(part.mean(axis=0)) for part in (scores[:half], scores[half:])]
    return float(np.corrcoef(*ranks)[0, 1])


def _probabilities(logits: np.ndarray) -> np.ndarray:
    """Return the softmax of rows in float64."""
    logits = np.asarray(logits, dtype=np.float64)
    if logits.ndim != 2 or not np.isfinite(logits).all():
        raise DataError(
            f"logits {list(logits.shape)} are not finite numbers [N, C]",
            hint="leave out steps whose loss is not finite",
        )
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def _labels(labels: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return labels that fit the logits."""
    labels = np.asarray(labels)
    if labels.shape != shares.shape[:1] or labels.dtype.kind not in "iu":
        raise DataError(
            f"labels {labels.dtype} {list(labels.shape)} for logits {list(shares.shape)}",
            hint="give one class number for each row",
        )
    if len(labels) and not (labels.min() >= 0 and labels.max() < shares.shape[1]):
        raise DataError(f"label {labels.max()} of {shares.shape[1]} classes", hint="count from 0")
    return labels
