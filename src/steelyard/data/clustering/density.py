"""Clusters by density: rows with enough neighbours, and what can be reached from them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.nearest import nearest_rows
from steelyard.data.features.pca import PrincipalComponents
from steelyard.data.kmeans.distances import squared_distance
from steelyard.data.sketch import Covariance
from steelyard.errors import CapacityError, ConfigError, DataError
from steelyard.jit import njit

__all__ = ["DensityClusters", "density_clusters", "usual_radius"]

_AXES = 3
_MOST_PAIRS = 2e11
"""Pairs of rows that are compared at most, times their columns."""
_PROBED = 256


@dataclass(frozen=True, kw_only=True)
class DensityClusters:
    """Rows by cluster.

    Attributes:
        labels: cluster of each row, the largest first; -1 for rows that are in none [N].
        is_core: rows that have enough neighbours [N].
        radius: distance within which rows are neighbours.
        count: clusters.
    """

    labels: NDArray[np.int64]
    is_core: NDArray[np.bool_]
    radius: float
    count: int


def usual_radius(features: NDArray[np.float32], least: int, seed: int = 0) -> float:
    """Return the distance within which nine of ten rows have enough neighbours.

    Args:
        features: [N, D].
        least: neighbours that are enough, the row itself among them.
        seed: seed of the 256 rows that are looked at.

    Returns:
        The distance.

    Source: Ester et al. 1996 (DBSCAN), section 4.2: the sorted graph of distances to the k-th
        neighbour, cut at the share of noise that is expected.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.choice(len(features), min(_PROBED, len(features)), replace=False)
    count = min(least, len(features))
    _, squares = nearest_rows(features, features[drawn], count)
    return float(np.quantile(np.sqrt(squares[:, -1]), 0.9))


def density_clusters(
    features: NDArray[np.float32], radius: float, least: int = 10
) -> DensityClusters:
    """Cluster rows by density. The result does not depend on the order of the rows.

    Rows are put in cells of a grid over their three main directions. Distances along these are no
    longer than in all columns, so that all neighbours of a row lie in its cell or those beside it.

    Args:
        features: finite numbers, in memory [N, D].
        radius: distance within which rows are neighbours, above 0.
        least: neighbours, the row itself among them, that make a row part of a cluster's core.

    Returns:
        The clusters. A row at the edge of several belongs to that of the nearest core row.

    Raises:
        ConfigError: a number is out of range.
        DataError: features are not finite.
        CapacityError: so many rows lie within the radius that it would take hours.

    Source: Ester et al. 1996 (DBSCAN); Gunawan 2013, "A faster algorithm for DBSCAN", for cells.
    """
    points = np.ascontiguousarray(features, np.float32)
    if not radius > 0 or least < 1:
        raise ConfigError(f"a radius of {radius:g} and {least} neighbours", hint="above 0, 1")
    if not np.isfinite(points).all():
        raise DataError("features are not finite", hint="leave out columns that are not")
    order, starts, beside = _cells(points, radius)
    sizes = np.diff(starts)
    around = np.where(beside >= 0, sizes[np.maximum(beside, 0)], 0).sum(axis=1)
    work = float((sizes * around).sum()) * points.shape[1]
    if work > _MOST_PAIRS:
        raise CapacityError(
            f"a radius of {radius:g} makes {work:.1e} numbers to compare",
            hint="give a smaller one, or fewer columns, such as --reduce pca:3",
        )
    sorted_points = points[order]
    cells = np.repeat(np.arange(len(sizes)), sizes)
    limit = np.float64(radius) ** 2
    counts = _count_neighbours(sorted_points, cells, starts, beside, limit, least)
    is_core = counts >= least
    parents = np.arange(len(points))
    _join(sorted_points, cells, starts, beside, limit, is_core, parents)
    found = np.empty(len(points), np.int64)
    found[order] = parents
    cores = np.empty(len(points), bool)
    cores[order] = is_core
    labels = _numbered(found)
    return DensityClusters(
        labels=labels, is_core=cores, radius=radius, count=int(labels.max(initial=-1)) + 1
    )


def _cells(
    points: NDArray[np.float32], radius: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return rows in the order of their cells, where cells begin, and the cells beside each."""
    axes = min(_AXES, points.shape[1])
    spread = Covariance(points.shape[1])
    spread.update(points)
    along = points.astype(np.float64)
    if len(points) > 1:
        along = PrincipalComponents.of(spread, axes).apply(points)
    # Rounding must not part neighbours: cells are wider than the radius by a little.
    cells = np.floor((along[:, :axes] - along[:, :axes].min(axis=0)) / (radius * 1.0001))
    unique, places = np.unique(cells.astype(np.int64), axis=0, return_inverse=True)
    places = places.reshape(-1)
    order = np.argsort(places, kind="stable")
    starts = np.searchsorted(places[order], np.arange(len(unique) + 1))
    steps = np.stack(np.meshgrid(*[[-1, 0, 1]] * axes, indexing="ij"), axis=-1).reshape(-1, axes)
    index = {tuple(cell): place for place, cell in enumerate(unique.tolist())}
    beside = np.array(
        [[index.get(tuple(near), -1) for near in (cell + steps).tolist()] for cell in unique]
    )
    return order, starts, beside


@njit()
def _count_neighbours(
    points: np.ndarray,
    cells: np.ndarray,
    starts: np.ndarray,
    beside: np.ndarray,
    limit: Any,
    enough: Any,
) -> np.ndarray:
    """Count the neighbours of each row, at most as many as are enough [N]."""
    found = np.zeros(len(points), np.int64)
    for place in range(len(points)):
        for cell in beside[cells[place]]:
            if cell < 0 or found[place] >= enough:
                continue
            for other in range(starts[cell], starts[cell + 1]):
                if squared_distance(points[place], points[other]) <= limit:
                    found[place] += 1
                    if found[place] >= enough:
                        break
    return found


@njit()
def _root(parents: np.ndarray, place: Any) -> Any:
    """Return the row that stands for a row's cluster."""
    while parents[place] != place:
        parents[place] = parents[parents[place]]
        place = parents[place]
    return place


@njit()
def _join(
    points: np.ndarray,
    cells: np.ndarray,
    starts: np.ndarray,
    beside: np.ndarray,
    limit: Any,
    is_core: np.ndarray,
    parents: np.ndarray,
) -> None:
    """Write into `parents` the row that stands for the cluster of each row, -1 for none."""
    for place in range(len(points)):
        if not is_core[place]:
            continue
        for cell in beside[cells[place]]:
            if cell < 0:
                continue
            for other in range(starts[cell], starts[cell + 1]):
                if other >= place or not is_core[other]:
                    continue
                one, two = _root(parents, place), _root(parents, other)
                if one != two and squared_distance(points[place], points[other]) <= limit:
                    parents[max(one, two)] = min(one, two)
    for place in range(len(points)):
        if is_core[place]:
            parents[place] = _root(parents, place)
    for place in range(len(points)):
        if is_core[place]:
            continue
        nearest, least = -1, limit
        for cell in beside[cells[place]]:
            if cell < 0:
                continue
            for other in range(starts[cell], starts[cell + 1]):
                if is_core[other]:
                    apart = squared_distance(points[place], points[other])
                    if apart <= least and (apart < least or nearest < 0):
                        nearest, least = other, apart
        parents[place] = parents[nearest] if nearest >= 0 else -1


def _numbered(found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return clusters by their size, those of one size by their first row; -1 stays."""
    names, firsts, sizes = np.unique(found, return_index=True, return_counts=True)
    is_cluster = names >= 0
    names, firsts, sizes = names[is_cluster], firsts[is_cluster], sizes[is_cluster]
    order = np.lexsort((firsts, -sizes))
    numbers = np.empty(len(names), np.int64)
    numbers[order] = np.arange(len(names))
    if not len(names):
        return np.full(len(found), -1)
    places = np.minimum(np.searchsorted(names, found), len(names) - 1)
    return np.where(found < 0, -1, numbers[places])
