"""Native searches of tenants beside those of the other way."""

import ctypes
import itertools

import numpy as np

from steelyard.retrieve.index import Hits
from steelyard.retrieve.tenants import tree_index
from steelyard.retrieve.tenants.native import NativeTree
from steelyard.retrieve.tenants.scanning import WHOLE

__all__ = ["difference"]

_ROWS, _DIM = 5000, 70


def difference(library: ctypes.CDLL) -> float:
    """Return how many results of native searches differ from those of the other way.

    Args:
        library: compiled code.

    Returns:
        Numbers that differ, and distances that differ by more than rounding.
    """
    rng = np.random.default_rng(0)
    middles = rng.integers(0, 64, (40, _DIM))
    vectors = middles[rng.integers(0, 40, _ROWS)] + rng.integers(0, 16, (_ROWS, _DIM))
    asked = vectors[:8] + rng.integers(0, 4, (8, _DIM))
    wrong = 0
    for metric in ("l2", "ip"):
        index = tree_index.ClusterTreeIndex(_DIM, metric=metric, leaf_size=64)
        index.train(vectors[:1000], expected=_ROWS)
        index.add(vectors)
        index.grant(rng.choice(_ROWS, 90, replace=False), "few")
        index.grant(np.arange(_ROWS), "all")
        index.grant(rng.choice(_ROWS, 1500, replace=False), "some")
        for tenant, nprobe in itertools.product(("few", "some", "all"), (1, 300, 2500, 10**9)):
            number = index._tenants[tenant]
            size = int(index.lists.sizes[number])
            coded = WHOLE < size and nprobe < size
            given = (asked.astype(np.float32), 9, index.lists, number, nprobe, coded)
            wrong += _apart(index._stepped(*given), _native(library, index, given))
    return float(wrong)


def _native(library: ctypes.CDLL, index: "tree_index.ClusterTreeIndex", given: tuple) -> Hits:
    """Search by native code."""
    asked, k, lists, number, nprobe, coded = given
    assert index.tree is not None
    tree = NativeTree(
        library,
        index.tree,
        index.rows,
        index._spread,
        is_l2=index.metric == "l2",
        shortlist=index.shortlist,
        boost=tree_index._BOOST,
    )
    distances, ids, counts, _ = tree.search(asked, lists, number, k, nprobe, coded)
    stats = tree_index.SearchStats(
        scanned=counts[0], probed=counts[1], reranked=counts[2] if coded else 0
    )
    return Hits(ids=ids, distances=distances, stats=stats)


def _apart(one: Hits, two: Hits) -> int:
    """Count what differs."""
    near = np.isclose(one.distances, two.distances, rtol=1e-5) | (one.distances == two.distances)
    is_same = one.stats.scanned == two.stats.scanned and one.stats.probed == two.stats.probed
    return int((one.ids != two.ids).sum() + (~near).sum()) + (not is_same)
