"""Native searches of tenants beside those of the other way."""

import ctypes
import itertools

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.index import Hits, Metric
from steelyard.retrieve.tenants.lists import TenantLists
from steelyard.retrieve.tenants.scanning import WHOLE
from steelyard.retrieve.tenants.sign_codes import SignCodes
from steelyard.retrieve.tenants.tree import train_tree
from steelyard.retrieve.tenants.tree_searcher import TreeSearcher
from steelyard.retrieve.tenants.vectors import VectorRows

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
        searcher, lists = _tree_of(vectors.astype(np.float32), metric), TenantLists()
        for count in (90, _ROWS, 1500):
            seen = np.sort(rng.choice(_ROWS, count, replace=False)).astype(np.int32)
            lists.grant(lists.add_tenant(), seen, searcher.rows.leaves)
        for tenant, nprobe in itertools.product(range(3), (1, 300, 2500, 10**9)):
            size = int(lists.sizes[tenant])
            coded = size > WHOLE and nprobe < size
            given = (asked.astype(np.float32), 9, lists, tenant, nprobe, coded)
            wrong += _apart(searcher.by_kernel(*given), searcher.by_library(library, *given))
    return float(wrong)


def _tree_of(vectors: NDArray[np.float32], metric: Metric) -> TreeSearcher:
    """Return what searches vectors in a tree of a fifth of them, with codes."""
    tree = train_tree(vectors[: _ROWS // 5], branching=16, leaf_size=64, expected=_ROWS)
    rows, leaves = VectorRows(_DIM), tree.leaves_of(vectors)
    order = np.argsort(leaves, kind="stable")
    rows.add(vectors[order], np.arange(_ROWS), leaves[order])
    rows.take_coder(SignCodes(tree.centers[0]))
    return TreeSearcher(tree, rows, metric, 128)


def _apart(one: Hits, two: Hits) -> int:
    """Count what differs."""
    near = np.isclose(one.distances, two.distances, rtol=1e-5) | (one.distances == two.distances)
    is_same = one.stats.scanned == two.stats.scanned and one.stats.probed == two.stats.probed
    return int((one.ids != two.ids).sum() + (~near).sum()) + (not is_same)
