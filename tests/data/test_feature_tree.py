"""Trees of cluster features: sums that hold, bounds that hold, and clusters that are found."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from steelyard.data.clustering import ClusterFeatureTree
from steelyard.data.kmeans import nearest
from steelyard.errors import ConfigError, DataError


def deviations(rows: np.ndarray) -> float:
    return float(((rows - rows.mean(axis=0)) ** 2).sum())


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 5), st.integers(2, 40), st.integers(1, 400))
def test_entries_hold_all_rows_within_the_limit(seed, width, most, count) -> None:
    rng = np.random.default_rng(seed)
    # Some rows are equal, and all lie far from 0: sums of squares would cancel.
    rows = rng.normal(size=(count, width)).round(1) + 1e6
    tree = ClusterFeatureTree(width, most)
    for part in np.array_split(rows, 3):
        tree.update(part)
    means, weights, spreads = tree.entries()
    assert tree.rows == weights.sum() == count
    assert len(means) <= most
    assert (spreads <= tree.limit * weights * (1 + 1e-9) + 1e-9).all()
    assert np.allclose(weights @ means / count, rows.mean(axis=0), rtol=1e-12)
    whole = spreads.sum() + (weights[:, None] * (means - rows.mean(axis=0)) ** 2).sum()
    assert whole == pytest.approx(deviations(rows), rel=1e-6, abs=1e-6)
    if not tree.limit:
        assert len(means) == len(np.unique(rows, axis=0))


def test_clusters_are_found_in_one_pass_also_of_merged_parts() -> None:
    rng = np.random.default_rng(1)
    middles = np.array([[0, 0], [9, 0], [0, 9], [9, 9]], float)
    rows = np.repeat(middles, 700, axis=0) + rng.normal(size=(2800, 2))
    # Rows in the order of their clusters: the worst for what is decided by the rows before.
    whole, parts = ClusterFeatureTree(2, 60), [ClusterFeatureTree(2, 60), ClusterFeatureTree(2, 60)]
    whole.update(rows)
    for part, own in zip(parts, np.array_split(rows, 2), strict=True):
        part.update(own)
    parts[0].merge(parts[1])
    least = nearest(rows, middles)[1].sum()
    for tree in (whole, parts[0]):
        assert tree.rows == 2800
        assert nearest(rows, tree.centers(4))[1].sum() < 1.02 * least
    assert len(whole.centers(500)) == len(whole.entries()[0]) <= 60


def test_what_a_tree_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="most"):
        ClusterFeatureTree(2, 1)
    tree = ClusterFeatureTree(2)
    with pytest.raises(DataError, match="no rows"):
        tree.centers(2)
    for rows in (np.zeros((3, 3)), np.array([[np.nan, 1.0]])):
        with pytest.raises(DataError, match="a tree of 2 columns"):
            tree.update(rows)
