"""What each way to search for one tenant of many has to look at for a recall.

The constants are fitted on generated vectors of 64 to 128 numbers, 100,000 in all, with 10 to 20
inner dimensions; `benchmarks.retrieve.tenancy` names the seeds and judges them on others.
"""

import math

from steelyard.cost.vector_search.tenant_work import TenantSearch

__all__ = ["CODED_WIDTH", "own_cells", "shared_cells", "tree_search"]

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
_TREE, _TREE_GROWTH = 1040.0, 0.54
_NODES, _NODES_GROWTH, _NODES_BY_PROBES = 9.4, 0.39, 0.5
_COMPARED, _COMPARED_GROWTH, _COMPARED_BY_PROBES = 172.0, 0.45, 0.2
_FEW_COMPARED, _FEW_SHARE = 45.0, 0.055
_OWN, _OWN_GROWTH, _OWN_LOCAL = 15.8, 0.03, 0.7
_SHARED, _SHARED_GROWTH, _SHARED_LOCAL = 32.5, 0.435, 0.08
_SHARED_CELLS, _CELLS_GROWTH = 632, 0.45


def tree_search(size: int, dim: int, recall: float, k: int) -> TenantSearch:
    """Return what a search in a tree does.

    Args:
        size: vectors of the tenant.
        dim: numbers of a vector.
        recall: share of the neighbours to find.
        k: neighbours.

    Returns:
        What it does; all vectors are compared where that is no more.
    """
    harder = _harder(recall, k)
    usual = _TREE * (size / _REFERENCE_SIZE) ** _TREE_GROWTH
    probes = max(usual * harder, float(k))
    if size <= _WHOLE or recall >= _CODE_RECALL or probes >= size:
        return TenantSearch(scanned=float(size), expanded=0.0, compared=0.0)
    is_coded = dim >= CODED_WIDTH
    if size <= _CODED_WHOLE:
        few = min((_FEW_COMPARED + _FEW_SHARE * size) * (k / _REFERENCE_K) ** 0.5, float(size))
        return TenantSearch(scanned=float(size), expanded=0.0, compared=few if is_coded else 0.0)
    grown = size / _REFERENCE_SIZE
    nodes = _NODES * grown**_NODES_GROWTH * harder**_NODES_BY_PROBES
    compared = _COMPARED * grown**_COMPARED_GROWTH * harder**_COMPARED_BY_PROBES
    return TenantSearch(
        scanned=probes, expanded=nodes, compared=min(compared, probes) if is_coded else 0.0
    )


def own_cells(size: int, nlist: int, locality: float, recall: float, k: int) -> float:
    """Return the cells to look into of an index of one tenant's vectors alone.

    Args:
        size: vectors of the tenant.
        nlist: cells.
        locality: share of them in a few clusters, 0 to 1.
        recall: share of the neighbours to find.
        k: neighbours.

    Returns:
        Cells, 1 to all.
    """
    usual = _OWN * (size / _REFERENCE_SIZE) ** _OWN_GROWTH * math.exp(-_OWN_LOCAL * locality)
    return _bounded(usual * _harder(recall, k), nlist, recall)


def shared_cells(
    size: int, total: int, nlist: int, locality: float, recall: float, k: int
) -> float:
    """Return the cells to look into of an index of all vectors, of which a bitmap admits some.

    Args:
        size: vectors of the tenant.
        total: vectors of all.
        nlist: cells.
        locality: as of `own_cells`.
        recall: as of `own_cells`.
        k: neighbours.

    Returns:
        Cells, 1 to all.
    """
    # The tenant's share decides how many cells hold as many of its vectors as are needed.
    share = 10 * size / total
    usual = _SHARED * share**-_SHARED_GROWTH * math.exp(-_SHARED_LOCAL * locality)
    grown = (nlist / _SHARED_CELLS) ** _CELLS_GROWTH
    return _bounded(usual * grown * _harder(recall, k), nlist, recall)


def _bounded(cells: float, nlist: int, recall: float) -> float:
    """Return 1 to all cells; all of them for a recall of 1."""
    return float(nlist) if recall >= 1 else min(max(cells, 1.0), float(nlist))


def _harder(recall: float, k: int) -> float:
    """Return how many times as much is looked at as for ten neighbours at a recall of .95."""
    missed = max(1 - recall, 1e-6)
    steep = ((1 - _REFERENCE_RECALL) / missed) ** _STEEPNESS
    return steep * (k / _REFERENCE_K) ** _K_GROWTH
