"""Clusters: first centers and bounds of k-means, mixtures, density, and tables in clusters."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from steelyard.data.clustering import (
    ClusterOptions,
    GaussianMixture,
    cluster_table,
    davies_bouldin,
    density_clusters,
    fit_mixture,
    silhouette,
    usual_radius,
)
from steelyard.data.kmeans import kmeans, nearest
from steelyard.data.table import DataTable
from steelyard.errors import CapacityError, ConfigError, DataError


def blobs(count: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centers = np.array([[0, 0], [8, 0], [0, 8], [8, 8]], float)
    own = rng.integers(0, 4, count)
    return (centers[own] + rng.normal(size=(count, 2))).astype(np.float32), own


def agree(found: np.ndarray, own: np.ndarray) -> bool:
    pairs = {(int(a), int(b)) for a, b in zip(found, own, strict=True)}
    return len(pairs) == len(np.unique(own)) == len({a for a, _ in pairs})


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 8), st.integers(1, 6))
def test_bounds_change_nothing(seed: int, count: int, width: int) -> None:
    points = np.random.default_rng(seed).normal(size=(120, width))
    start = points[:count].copy()
    # One more pass of Lloyd's finds that nothing changes any more.
    plain = kmeans(points, count, start=start, tolerance=0.0, iterations=200)
    bounded = kmeans(points, count, start=start, tolerance=0.0, iterations=200, bounds=True)
    assert np.array_equal(plain.labels, bounded.labels)
    assert np.allclose(plain.centers, bounded.centers)


def test_candidates_of_few_passes_are_as_good_as_centers_one_by_one() -> None:
    rng = np.random.default_rng(1)
    middles = rng.normal(size=(30, 4)) * 6
    points = middles[rng.integers(0, 30, 3000)] + rng.normal(size=(3000, 4))
    slow = [kmeans(points, 30, seed=seed) for seed in range(3)]
    fast = [
        kmeans(points, 30, seed=seed, start="parallel", sample=1000, bounds=True)
        for seed in range(3)
    ]
    assert min(item.inertia for item in fast) < 1.02 * min(item.inertia for item in slow)
    assert max(item.passes for item in fast) < min(item.passes for item in slow) / 2


def test_few_different_points_have_centers_too() -> None:
    points = np.repeat(np.eye(3), 4, axis=0)
    found = kmeans(points, 5, start="parallel", bounds=True)
    assert found.inertia == pytest.approx(0, abs=1e-9)
    assert found.centers.shape == (5, 3)


def test_bounds_with_batches_are_refused() -> None:
    for words in ({"batch_size": 5}, {"metric": "cosine"}):
        with pytest.raises(ConfigError, match="bounds"):
            kmeans(np.eye(4), 2, bounds=True, **words)


def test_a_step_of_a_mixture_is_that_of_the_formula() -> None:
    points, _ = blobs(200)
    rows = points.astype(float)
    mixture = GaussianMixture(
        shares=np.array([0.4, 0.6]),
        means=np.array([[1.0, 1.0], [6.0, 5.0]]),
        covariances=np.stack([2 * np.eye(2), [[3.0, 1.0], [1.0, 2.0]]]),
    )
    from scipy.stats import multivariate_normal

    dense = np.stack(
        [
            share * multivariate_normal(mean, spread).pdf(rows)
            for share, mean, spread in zip(
                mixture.shares, mixture.means, mixture.covariances, strict=True
            )
        ],
        axis=1,
    )
    assert np.allclose(np.exp(mixture.densities(rows)), dense)
    own = dense / dense.sum(axis=1, keepdims=True)
    whole, part = mixture.add_up(rows), mixture.add_up(rows[:70])
    part.merge(mixture.add_up(rows[70:]))
    for sums in (whole, part):
        assert np.allclose(sums.counts, own.sum(axis=0))
        assert np.allclose(sums.sums, own.T @ rows)
        assert np.allclose(sums.products[1], (rows * own[:, 1:]).T @ rows)
        assert sums.likelihood == pytest.approx(float(np.log(dense.sum(axis=1)).sum()))
    labels, shares = mixture.assign(rows)
    assert np.array_equal(labels, own.argmax(axis=1))
    assert np.allclose(shares, own.max(axis=1))


@pytest.mark.parametrize("shape", ["full", "diagonal"])
def test_mixtures_find_their_parts(shape) -> None:
    points, own = blobs()
    found = fit_mixture(points, 4, shape=shape)
    assert (
        found.assign(points.astype(float))[0][own == 0]
        == found.assign(points[own == 0].astype(float))[0]
    ).all()
    assert np.allclose(sorted(found.shares), np.sort(np.bincount(own) / len(own)), atol=0.02)
    assert found.bic(len(points)) < fit_mixture(points, 2, shape=shape).bic(len(points))
    with pytest.raises(ConfigError, match="parts"):
        fit_mixture(points[:3], 4)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(2, 6))
def test_density_is_that_of_comparing_all_pairs(seed: int, width: int, least: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 12, (60, width)).astype(np.float32) + 0.25
    radius = float(rng.choice([1.0, 1.5, 2.3]))
    found = density_clusters(points, radius, least)
    near = ((points[:, None] - points) ** 2).sum(axis=2) <= radius**2
    core = near.sum(axis=1) >= least
    assert np.array_equal(found.is_core, core)
    labels = np.full(60, -1)
    count = 0
    for start in range(60):
        if core[start] and labels[start] < 0:
            waiting = [start]
            while waiting:
                place = waiting.pop()
                if labels[place] < 0:
                    labels[place] = count
                    waiting += np.flatnonzero(near[place] & core & (labels < 0)).tolist()
            count += 1
    assert found.count == count
    assert agree(found.labels[core], labels[core]) or not core.any()
    for place in np.flatnonzero(~core):
        around = near[place] & core
        assert (found.labels[place] in found.labels[around]) == bool(around.any())
    sizes = np.bincount(found.labels[found.labels >= 0], minlength=count)
    assert sizes.tolist() == sorted(sizes.tolist(), reverse=True)
    order = rng.permutation(60)
    again = density_clusters(points[order], radius, least)
    assert np.array_equal(again.is_core, core[order])
    assert np.array_equal(again.labels < 0, found.labels[order] < 0)


def test_density_refuses_what_it_cannot_do() -> None:
    points = np.random.default_rng(0).random((80_000, 3)).astype(np.float32)
    with pytest.raises(CapacityError, match="numbers to compare"):
        density_clusters(np.tile(points, (4, 1)), 2.0)
    with pytest.raises(ConfigError, match="radius"):
        density_clusters(points[:5], 0.0)
    with pytest.raises(DataError, match="not finite"):
        density_clusters(np.array([[np.nan]], np.float32), 1.0)
    assert 0 < usual_radius(points[:2000], 10) < 0.5


def test_quality_is_that_of_the_definitions() -> None:
    points, own = blobs(80)
    apart = np.sqrt(((points[:, None] - points).astype(float) ** 2).sum(axis=2))
    values = []
    for row in range(80):
        means = [apart[row][own == k].mean() for k in range(4)]
        size = (own == own[row]).sum()
        inside = means[own[row]] * size / (size - 1)
        beyond = min(mean for k, mean in enumerate(means) if k != own[row])
        values.append((beyond - inside) / max(inside, beyond))
    assert silhouette(points, own) == pytest.approx(np.mean(values), abs=1e-5)
    centers = np.stack([points[own == k].mean(axis=0) for k in range(4)])
    wide = [np.linalg.norm(points[own == k] - centers[k], axis=1).mean() for k in range(4)]
    slow = np.mean(
        [
            max(
                (wide[a] + wide[b]) / np.linalg.norm(centers[a] - centers[b])
                for b in range(4)
                if b != a
            )
            for a in range(4)
        ]
    )
    assert davies_bouldin(points, own, centers) == pytest.approx(slow, rel=1e-4)
    assert np.isnan(silhouette(points, np.zeros(80, int)))


@pytest.mark.parametrize("method", ["kmeans", "mixture", "density", "birch"])
def test_tables_are_clustered(tmp_path: Path, method) -> None:
    points, own = blobs()
    shop = np.where(own == 2, "north", "south")
    data = pl.DataFrame(
        {"id": np.arange(600), "x": points[:, 0] * 100, "y": points[:, 1], "shop": shop}
    )
    options = ClusterOptions(method=method, clusters=4, leave_out=["id"], radius=0.5)
    found = cluster_table(DataTable.scan(data), options, tmp_path / "work")
    assert found.columns == ["x", "y", "shop"]
    kept = found.labels >= 0
    assert kept.mean() > 0.95
    assert agree(found.labels[kept], own[kept])
    assert found.silhouette > 0.6
    at = int(found.labels[kept & (own == 1)][0])
    assert found.middles[at, 0] == pytest.approx(800, abs=40)
    assert np.isnan(found.middles[at, 2])
    assert found.sizes.sum() == kept.sum()
    batch = next(found.batches())
    assert batch.schema.names == ["cluster", "strength"]
    assert len(batch) == 600
    assert not (tmp_path / "work").exists()


def test_clusters_that_cannot_be_are_refused(tmp_path: Path) -> None:
    table = DataTable.scan(pl.DataFrame({"x": [1.0, 2.0, 3.0]}))
    with pytest.raises(DataError, match="3 rows make no 4 clusters"):
        cluster_table(table, ClusterOptions(clusters=4), tmp_path / "work")
    with pytest.raises(ConfigError, match="no column 'y'"):
        cluster_table(table, ClusterOptions(leave_out=["y"]), tmp_path / "work")
    with pytest.raises(ConfigError, match="clusters"):
        ClusterOptions(clusters=0)
    assert not (tmp_path / "work").exists()
    labels, squares = nearest(np.array([[0.0], [3.0]]), np.array([[1.0], [2.5]]))
    assert labels.tolist() == [0, 1]
    assert squares.tolist() == [1.0, 0.25]
