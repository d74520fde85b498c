"""Clusters around means: Lloyd's algorithm or small batches, also on a sphere."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from steelyard.errors import ConfigError, DataError
from steelyard.jit import njit

__all__ = ["Clusters", "kmeans", "nearest", "unit_rows"]

_BLOCK_VALUES = 1 << 22


@dataclass(frozen=True, slots=True)
class Clusters:
    """What k-means found.

    Attributes:
        centers: [K, D], in the precision of the work.
        labels: nearest center of each point, int64 [N].
        inertia: sum of squared distances to the nearest center.
        iterations: passes over the points, or batches.
    """

    centers: np.ndarray
    labels: np.ndarray
    inertia: float
    iterations: int


def kmeans(
    points: np.ndarray,
    count: int,
    *,
    seed: int = 0,
    metric: Literal["euclidean", "cosine"] = "euclidean",
    batch_size: int | None = None,
    iterations: int = 100,
    tolerance: float = 1e-6,
    start: Literal["far", "drawn"] | np.ndarray = "far",
    precision: Literal["float64", "float32"] = "float64",
) -> Clusters:
    """Place centers so that points lie close to the nearest.

    Args:
        points: finite numbers [N, D].
        count: centers K, 1 to N.
        seed: seed of the first centers and of batches.
        metric: "cosine" puts points and centers on the unit sphere.
        batch_size: points of a batch that moves the centers; None moves them by all points.
        iterations: most passes, or batches.
        tolerance: relative gain in inertia below which passes end; batches are not ended early.
        start: "far" draws first centers far from each other, a pass over the points for each;
            "drawn" takes points at random, which for thousands of centers is nearly as good;
            centers [K, D] of an earlier call are moved on.
        precision: precision of the work; "float32" takes half the memory and time.

    Returns:
        The clusters. No center is without points where there are that many different ones.

    Raises:
        ConfigError: a number is out of range.
        DataError: points are not finite, or have length 0 where "cosine" needs a direction.

    Source: Lloyd 1982; Arthur and Vassilvitskii 2007 (k-means++), section 2.2; Sculley 2010
        (web-scale k-means), algorithm 1.
    """
    points = _checked(points, count, iterations, batch_size, precision)
    if metric == "cosine":
        points = unit_rows(points)
    rng = np.random.default_rng(seed)
    if isinstance(start, np.ndarray):
        centers = start.astype(points.dtype)
    elif start == "far":
        centers = _far_apart(points, count, rng)
    else:
        centers = points[rng.choice(len(points), count, replace=False)]
    if batch_size is None:
        centers, done = _lloyd(points, centers, metric, iterations, tolerance)
    else:
        centers, done = _batches(points, centers, metric, iterations, batch_size, rng), iterations
    labels, distances = nearest(points, centers)
    return Clusters(centers, labels, float(distances.sum()), done)


def nearest(points: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest center of each point, a block of points at a time.

    Args:
        points: [N, D].
        centers: [K, D].

    Returns:
        Centers int64 [N], and squared distances float64 [N].
    """
    block = max(1, _BLOCK_VALUES // len(centers))
    labels = np.empty(len(points), dtype=np.int64)
    distances = np.empty(len(points))
    norms = np.einsum("kd,kd->k", centers, centers)
    for start in range(0, len(points), block):
        part = points[start : start + block]
        # |p - c|^2 without |p|^2, which does not change which center is nearest.
        partial = norms - 2 * part @ centers.T
        chosen = partial.argmin(axis=1)
        labels[start : start + block] = chosen
        found = partial[np.arange(len(part)), chosen] + np.einsum("nd,nd->n", part, part)
        distances[start : start + block] = np.maximum(found, 0)
    return labels, distances


def unit_rows(points: np.ndarray) -> np.ndarray:
    """Scale rows to length 1.

    Args:
        points: [N, D].

    Returns:
        float64 [N, D].

    Raises:
        DataError: a row is 0 and has no direction.
    """
    lengths = np.linalg.norm(points, axis=1)
    if not lengths.all():
        raise DataError(
            f"point {int(lengths.argmin())} has length 0 and so no direction",
            hint="leave it out, or use the euclidean metric",
        )
    return points / lengths[:, None]


def _checked(
    points: np.ndarray, count: int, iterations: int, batch_size: int | None, precision: str
) -> np.ndarray:
    """Return points in the precision of the work, or refuse the arguments."""
    points = np.asarray(points, dtype=precision)
    if points.ndim != 2 or not np.isfinite(points).all():
        raise DataError(f"points {list(points.shape)} are not finite numbers [N, D]")
    if not 1 <= count <= len(points) or iterations < 1 or (batch_size or 1) < 1:
        raise ConfigError(
            f"{count} centers of {len(points)} points, {iterations} iterations, batches of "
            f"{batch_size}",
            hint="give 1 to N centers, and at least 1 iteration and point of a batch",
        )
    return points


def _far_apart(points: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw first centers, each with a chance in proportion to its squared distance from others."""
    chosen = [int(rng.integers(len(points)))]
    distances = nearest(points, points[chosen])[1]
    while len(chosen) < count:
        total = distances.sum()
        # All points stand on centers already: any will do.
        weights = distances / total if total > 0 else None
        chosen.append(int(rng.choice(len(points), p=weights)))
        distances = np.minimum(distances, nearest(points, points[chosen[-1:]])[1])
    return points[chosen].copy()


def _lloyd(
    points: np.ndarray, centers: np.ndarray, metric: str, iterations: int, tolerance: float
) -> tuple[np.ndarray, int]:
    """Move centers to the means of their points until that gains little."""
    before = np.inf
    for done in range(1, iterations + 1):
        labels, distances = nearest(points, centers)
        inertia = float(distances.sum())
        if before - inertia <= tolerance * inertia:
            return centers, done
        before = inertia
        counts = np.bincount(labels, minlength=len(centers))
        sums = _cluster_sums(points, labels, len(centers))
        centers = (sums / np.maximum(counts, 1)[:, None]).astype(points.dtype)
        # A center that lost all points takes the one that is served worst.
        empty = np.flatnonzero(counts == 0)
        centers[empty] = points[np.argsort(-distances, kind="stable")[: len(empty)]]
        if metric == "cosine":
            centers = _on_sphere(centers)
    return centers, iterations


@njit()
def _cluster_sums(points: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """Add the points of each cluster up in their order, in float64 [count, D]."""
    sums = np.zeros((count, points.shape[1]))
    for place in range(len(points)):
        sums[labels[place]] += points[place]
    return sums


def _batches(
    points: np.ndarray,
    centers: np.ndarray,
    metric: str,
    iterations: int,
    batch_size: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Move each center to the running mean of the points it was given so far."""
    counts = np.zeros(len(centers))
    for _ in range(iterations):
        part = points[rng.integers(0, len(points), batch_size)]
        labels, _ = nearest(part, centers)
        here = np.bincount(labels, minlength=len(centers))
        counts += here
        sums = np.zeros_like(centers)
        np.add.at(sums, labels, part)
        moved = here > 0
        gain = (here[moved] / counts[moved])[:, None]
        centers[moved] += gain * (sums[moved] / here[moved][:, None] - centers[moved])
    return _on_sphere(centers) if metric == "cosine" else centers


def _on_sphere(centers: np.ndarray) -> np.ndarray:
    """Scale centers to length 1; one at the origin, between opposite points, stays."""
    lengths = np.linalg.norm(centers, axis=1, keepdims=True)
    return centers / np.where(lengths > 0, lengths, 1)
