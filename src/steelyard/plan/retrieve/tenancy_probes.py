"""What each way to search for one tenant of many has to look at for a recall.

The constants are fitted on counts of work alone, never on times: generated vectors of 64 to 128
numbers, 20,000 and 100,000 in all, with 10 to 20 inner dimensions. `benchmarks.retrieve.tenancy`
names the seeds and judges them on others. Vectors of more inner dimensions need more of all three:
from 10 to 18 the codes of a tree and the cells of an own index double.
"""

import math

from steelyard.cost.vector_search.tenant_work import TenantSearch

__all__ = [
    "CODED_WIDTH",
    "admitted_more",
    "beside",
    "closeness",
    "own_cells",
    "shared_cells",
    "tree_search",
]

_WHOLE, _CODED_WHOLE = 256, 2048
"""Vectors of a tenant up to which a tree compares all, or all codes."""
CODED_WIDTH = 32
"""Numbers of a vector from which on there are codes."""
_CODE_RECALL = 0.999
"""Recall from which on codes are not trusted, and every vector is compared."""
_REFERENCE_SIZE, _REFERENCE_RECALL, _REFERENCE_K = 1e4, 0.95, 10
_STEEPNESS = 0.556
"""Exponent of the share that may be missed, as of `plan.retrieve.probing`."""
_K_GROWTH = 0.3
_REFERENCE_DIM = 96
_TREE, _TREE_GROWTH = 1100.0, 0.57
_NODES, _NODES_GROWTH, _NODES_BY_PROBES = 8.1, 0.37, 0.5
_COMPARED, _COMPARED_GROWTH, _COMPARED_BY_PROBES = 175.0, 0.45, 0.2
_COMPARED_BY_DIM = 0.95
"""Exponent of narrower vectors: codes of fewer bits leave more to compare."""
_FEW_SIZE, _FEW_COMPARED, _FEW_GROWTH, _FEW_BY_DIM = 1000, 77.0, 0.4, 0.77
_OWN, _OWN_GROWTH, _OWN_LOCAL = 16.3, 0.03, 0.5
_SHARED_SHARE, _SHARED, _SHARED_GROWTH, _SHARED_BEND = 0.1, 32.0, 0.376, 0.019
_TREE_HARD, _NODES_HARD, _COMPARED_HARD, _FEW_HARD, _SHARED_HARD = 0.86, 0.68, 0.45, 0.37, 0.67
"""Exponents of how many more cells an own index of the same vectors needs."""
_ADMITTED_LOCAL, _BESIDE_LOCAL = 0.1, 0.06


def tree_search(size: int, dim: int, recall: float, k: int, hard: float) -> TenantSearch:
    """Return what a search in a tree does.

    Args:
        size: vectors of the tenant.
        dim: numbers of a vector.
        recall: share of the neighbours to find.
        k: neighbours.
        hard: cells that the vectors need for a recall over those that usual ones need.

    Returns:
        What it does; all vectors are compared where that is no more.
    """
    harder = _harder(recall, k)
    usual = _TREE * (size / _REFERENCE_SIZE) ** _TREE_GROWTH * hard**_TREE_HARD
    probes = max(usual * harder, float(k))
    if size <= _WHOLE or recall >= _CODE_RECALL or probes >= size:
        return TenantSearch(scanned=float(size), expanded=0.0, compared=0.0)
    is_coded, narrower = dim >= CODED_WIDTH, _REFERENCE_DIM / dim
    if size <= _CODED_WHOLE:
        few = _FEW_COMPARED * (size / _FEW_SIZE) ** _FEW_GROWTH * narrower**_FEW_BY_DIM
        few = min(few * (k / _REFERENCE_K) ** 0.5 * hard**_FEW_HARD, float(size))
        return TenantSearch(scanned=float(size), expanded=0.0, compared=few if is_coded else 0.0)
    grown = size / _REFERENCE_SIZE
    nodes = _NODES * grown**_NODES_GROWTH * harder**_NODES_BY_PROBES * hard**_NODES_HARD
    compared = _COMPARED * grown**_COMPARED_GROWTH * harder**_COMPARED_BY_PROBES
    compared *= narrower**_COMPARED_BY_DIM * hard**_COMPARED_HARD
    return TenantSearch(
        scanned=probes, expanded=nodes, compared=min(compared, probes) if is_coded else 0.0
    )


def own_cells(
    size: int, nlist: int, close: float, recall: float, k: int, hard: float = 1.0
) -> float:
    """Return the cells to look into of an index of one tenant's vectors alone.

    Args:
        size: vectors of the tenant.
        nlist: cells.
        close: of `closeness`.
        recall: share of the neighbours to find.
        k: neighbours.
        hard: as of `tree_search`.

    Returns:
        Cells, 1 to all.
    """
    usual = hard * _OWN * (size / _REFERENCE_SIZE) ** _OWN_GROWTH * math.exp(-_OWN_LOCAL * close)
    return _bounded(usual * _harder(recall, k), nlist, recall)


def shared_cells(share: float, nlist: int, recall: float, k: int, hard: float) -> float:
    """Return the cells to look into of an index of all vectors, of which a bitmap admits some.

    Args:
        share: vectors of the tenant over those of all. It decides how many cells hold as many of
            its vectors as are needed; with twice the root of all as cells, their number does not.
        nlist: cells.
        recall: as of `own_cells`.
        k: neighbours.
        hard: as of `tree_search`.

    Returns:
        Cells, 1 to all.
    """
    fewer = math.log(share / _SHARED_SHARE)
    usual = _SHARED * math.exp(-_SHARED_GROWTH * fewer + _SHARED_BEND * fewer**2)
    return _bounded(usual * _harder(recall, k) * hard**_SHARED_HARD, nlist, recall)


def closeness(locality: float, share: float) -> float:
    """Return how much closer together a tenant's vectors lie than all vectors do, 0 to 1.

    Args:
        locality: share of them in a few clusters.
        share: vectors of the tenant over those of all; who sees nearly all sees clusters whole.

    Returns:
        0 for anywhere, 1 for close together.
    """
    return locality * (1 - share)


def admitted_more(close: float) -> float:
    """Return how many times as many vectors a bitmap admits in the cells near a query as in others.

    Args:
        close: of `closeness`.

    Returns:
        1 or more.
    """
    return math.exp(_ADMITTED_LOCAL * close)


def beside(share: float, close: float) -> float:
    """Return the share of a tenant's vectors that stand right behind another of it in memory.

    Args:
        share: vectors of the tenant over those of all.
        close: of `closeness`.

    Returns:
        A share, 0 to 1.
    """
    return min(share + _BESIDE_LOCAL * close, 1.0)


def _bounded(cells: float, nlist: int, recall: float) -> float:
    """Return 1 to all cells; all of them for a recall of 1."""
    return float(nlist) if recall >= 1 else min(max(cells, 1.0), float(nlist))


def _harder(recall: float, k: int) -> float:
    """Return how many times as much is looked at as for ten neighbours at a recall of .95."""
    missed = max(1 - recall, 1e-6)
    steep = ((1 - _REFERENCE_RECALL) / missed) ** _STEEPNESS
    return steep * (k / _REFERENCE_K) ** _K_GROWTH
