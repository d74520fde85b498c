"""k-means: Lloyd's algorithm or small batches, also on a sphere."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from steelyard.data.kmeans.bounded import bounded_lloyd
from steelyard.data.kmeans.distances import nearest, unit_rows
from steelyard.data.kmeans.seeding import ROUNDS, far_apart, parallel_centers
from steelyard.errors import ConfigError, DataError
from steelyard.jit import njit

__all__ = ["Clusters", "kmeans"]

_BLOCK_VALUES = 1 << 22


@dataclass(frozen=True, slots=True)
class Clusters:
    """What k-means found.

    Attributes:
        centers: [K, D], in the precision of the work.
        labels: nearest center of each point, int64 [N].
        inertia: sum of squared distances to the nearest center.
        iterations: passes over the points, or batches.
        passes: times that all points were read, with first centers and labels; a sample or batches
            count by their share of the points.
    """

    centers: np.ndarray
    labels: np.ndarray
    inertia: float
    iterations: int
    passes: float = 0.0


def kmeans(
    points: np.ndarray,
    count: int,
    *,
    seed: int = 0,
    metric: Literal["euclidean", "cosine"] = "euclidean",
    batch_size: int | None = None,
    iterations: int = 100,
    tolerance: float = 1e-6,
    start: Literal["far", "drawn", "parallel"] | np.ndarray = "far",
    precision: Literal["float64", "float32"] = "float64",
    bounds: bool = False,
    sample: int = 0,
    tries: int = 1,
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
            "parallel" draws about 2 K points at once in each of five passes and clusters these;
            centers [K, D] of an earlier call are moved on.
        precision: precision of the work; "float32" takes half the memory and time, and reads
            points of a mapped file where they are.
        bounds: keep bounds of distances between passes, so that points whose center cannot have
            changed are not looked at: the same centers, faster where there are few columns.
            Passes then end when centers move by less than the tolerance.
        sample: points that move the centers first, drawn once; 0 for none. Few passes over all
            points are left to do then.
        tries: clusterings of the sample, the best of which goes on; those after the first begin
            with centers of their own.

    Returns:
        The clusters. No center is without points where there are that many different ones.

    Raises:
        ConfigError: a number is out of range.
        DataError: points are not finite, or have length 0 where "cosine" needs a direction.

    Source: Lloyd 1982; Bahmani et al. 2012 (arXiv 1203.6402, k-means||), algorithm 2; Hamerly 2010
        ("Making k-means even faster"), algorithm 1; Arthur and Vassilvitskii 2007
        (k-means++), section 2.2; Sculley 2010 (web-scale k-means), algorithm 1.
    """
    points = _checked(points, count, iterations, batch_size, precision)
    if tries < 1 or sample < 0:
        raise ConfigError(f"{tries} tries with a sample of {sample}", hint="1 or more, 0 or more")
    if metric == "cosine":
        points = unit_rows(points)
    if bounds and (metric == "cosine" or batch_size is not None):
        raise ConfigError(
            f"bounds with metric {metric!r} and batches of {batch_size}",
            hint="bounds are kept by full passes with the euclidean metric",
        )
    rng = np.random.default_rng(seed)
    centers, passes = _first_centers(points, count, start, rng)
    if sample and sample < len(points):
        drawn = points[np.sort(rng.choice(len(points), max(sample, count), replace=False))]
        centers = _best_of_sample(drawn, centers, metric, iterations, tolerance, tries, rng)
        passes += len(drawn) / len(points)
    if batch_size is not None:
        centers, done = _batches(points, centers, metric, iterations, batch_size, rng), iterations
        passes += iterations * batch_size / len(points)
    else:
        move = bounded_lloyd if bounds else _lloyd
        centers, done = move(points, centers, metric, iterations, tolerance)
        passes += done
    labels, distances = nearest(points, centers)
    return Clusters(centers, labels, float(distances.sum()), done, passes + 1)


def _best_of_sample(
    drawn: np.ndarray,
    centers: np.ndarray,
    metric: str,
    iterations: int,
    tolerance: float,
    tries: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the best centers of some clusterings of a sample, the first of which is given some."""
    best, least = centers, np.inf
    for turn in range(tries):
        first = far_apart(drawn, len(centers), rng, greedy=True) if turn else centers
        made, _ = _lloyd(drawn, first, metric, iterations, tolerance)
        error = float(nearest(drawn, made)[1].sum())
        if error < least:
            best, least = made, error
    return best


def _first_centers(
    points: np.ndarray, count: int, start: str | np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    """Return first centers, and the passes that they took."""
    if isinstance(start, np.ndarray):
        return start.astype(points.dtype), 0.0
    if start == "far":
        return far_apart(points, count, rng), float(count)
    if start == "parallel":
        return parallel_centers(points, count, rng), 1.0 + ROUNDS
    return points[rng.choice(len(points), count, replace=False)], count / len(points)


def _checked(
    points: np.ndarray, count: int, iterations: int, batch_size: int | None, precision: str
) -> np.ndarray:
    """Return points in the precision of the work, or refuse the arguments."""
    points = np.asarray(points, dtype=precision)
    if points.ndim != 2 or not _is_finite(points):
        raise DataError(f"points {list(points.shape)} are not finite numbers [N, D]")
    if not 1 <= count <= len(points) or iterations < 1 or (batch_size or 1) < 1:
        raise ConfigError(
            f"{count} centers of {len(points)} points, {iterations} iterations, batches of "
            f"{batch_size}",
            hint="give 1 to N centers, and at least 1 iteration and point of a batch",
        )
    return points


def _is_finite(points: np.ndarray) -> bool:
    """Return whether all numbers are finite, some rows at a time."""
    step = max(1, _BLOCK_VALUES // max(points.shape[1], 1))
    blocks = (points[first : first + step] for first in range(0, len(points), step))
    return all(np.isfinite(block).all() for block in blocks)


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
        if len(empty):
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
