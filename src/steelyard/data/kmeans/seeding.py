"""First centers of k-means."""

import numpy as np

from steelyard.data.kmeans.distances import nearest

__all__ = ["ROUNDS", "far_apart", "parallel_centers", "weighted_centers"]

ROUNDS = 5
"""Passes in which k-means|| draws candidates."""
_OVERSAMPLE, _TRIES, _STEPS = 2, 5, 30


def far_apart(
    points: np.ndarray,
    count: int,
    rng: np.random.Generator,
    shares: np.ndarray | None = None,
    *,
    greedy: bool = False,
) -> np.ndarray:
    """Draw centers one after the other, far from those before, in a pass over the points for each.

    Args:
        points: [N, D].
        count: centers K, 1 to N.
        rng: draws them.
        shares: how much each point counts [N]; None for all alike.
        greedy: draw 2 + ln K points for each center, and take the one that helps most.

    Returns:
        Centers [K, D]: each point had a chance in proportion to its squared distance from others.
    """
    if shares is None:
        chosen, weigh = [int(rng.integers(len(points)))], np.ones(len(points))
    else:
        chosen, weigh = [int(rng.choice(len(points), p=shares / shares.sum()))], shares
    distances = nearest(points, points[chosen])[1]
    while len(chosen) < count:
        total = (distances * weigh).sum()
        # All points stand on centers already: any will do.
        weights = distances * weigh / total if total > 0 else None
        if greedy:
            drawn = rng.choice(len(points), 2 + int(np.log(count)), p=weights)
            found = [np.minimum(distances, nearest(points, points[at : at + 1])[1]) for at in drawn]
            at = int(np.argmin([float((left * weigh).sum()) for left in found]))
            chosen.append(int(drawn[at]))
            distances = found[at]
            continue
        chosen.append(int(rng.choice(len(points), p=weights)))
        distances = np.minimum(distances, nearest(points, points[chosen[-1:]])[1])
    return points[chosen].copy()


def parallel_centers(points: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw candidates in few passes, many at once, and cluster these by the points they stand for.

    Args:
        points: [N, D].
        count: centers K, 1 to N.
        rng: draws them.

    Returns:
        Centers [K, D], after one pass and one for each of the rounds.

    Source: Bahmani et al. 2012 (arXiv 1203.6402), algorithm 2, with an oversampling of 2 K.
    """
    first = points[rng.integers(len(points))][None]
    candidates = [first]
    labels, distances = nearest(points, first)
    held = 1
    for _ in range(ROUNDS):
        total = float(distances.sum())
        if total <= 0:
            break
        chance = distances * (_OVERSAMPLE * count / total)
        drawn = points[np.flatnonzero(rng.random(len(points)) < chance)]
        if not len(drawn):
            continue
        own, apart = nearest(points, drawn)
        is_nearer = apart < distances
        labels[is_nearer], distances[is_nearer] = own[is_nearer] + held, apart[is_nearer]
        candidates.append(drawn)
        held += len(drawn)
    found = np.concatenate(candidates)
    if len(found) < count:
        # Few different points: any will do for the rest.
        more = points[rng.choice(len(points), count - len(found), replace=False)]
        return np.concatenate([found, more])
    weights = np.bincount(labels, minlength=len(found)).astype(np.float64)
    return weighted_centers(found, weights, count, rng).astype(points.dtype)


def weighted_centers(
    points: np.ndarray, weights: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the best of some clusterings of weighted points."""
    best, least = points[:count], np.inf
    for _ in range(_TRIES):
        centers = far_apart(points, count, rng, weights, greedy=True).astype(np.float64)
        before, error = np.inf, np.inf
        for _ in range(_STEPS):
            labels, distances = nearest(points, centers)
            error = float((weights * distances).sum())
            if before - error <= 1e-4 * error:
                break
            before = error
            sums = np.zeros_like(centers)
            np.add.at(sums, labels, points * weights[:, None])
            own = np.bincount(labels, weights, count)
            held = own > 0
            centers[held] = sums[held] / own[held, None]
        if error < least:
            best, least = centers, error
    return best
