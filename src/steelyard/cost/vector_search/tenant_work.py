"""Units of work of a query for one tenant: plain scans, trees, and cells with a bitmap."""

from dataclasses import dataclass

__all__ = ["SEARCHES", "TenantSearch", "filter_work", "scan_work", "tree_work"]

SEARCHES = ("tenant scan", "tenant tree", "tenant filter")
"""Names of the three in rates of searches."""
_CACHED = (1e6, 12e6)
"""Bytes of a tenant's vectors up to which a scan finds them in the near caches, and the next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantSearch:
    """What a search in a tree does for a query, on average.

    Attributes:
        scanned: vectors or codes that are looked at.
        expanded: nodes whose children are compared.
        compared: whole vectors that are compared after their codes; 0 where codes are not used.
    """

    scanned: float
    expanded: float
    compared: float


def scan_work(size: float, dim: int) -> dict[str, float]:
    """Count the work of comparing all vectors of a tenant, where they lie among others'.

    Args:
        size: vectors of the tenant.
        dim: numbers of a vector.

    Returns:
        Units by part: "call" 1, "rows" vectors, "near", "middle" and "far" bytes of vectors by
        the caches that hold them from one query to the next.
    """
    total = 4.0 * size * dim
    near, middle = min(total, _CACHED[0]), min(total, _CACHED[1])
    return {
        "call": 1.0,
        "rows": size,
        "near": near,
        "middle": middle - near,
        "far": total - middle,
    }


def tree_work(done: TenantSearch, dim: int, branching: int = 16) -> dict[str, float]:
    """Count the work of a search in a tree.

    Args:
        done: what it does.
        dim: numbers of a vector.
        branching: children of a node.

    Returns:
        Units by part: "call" 1, "turn" numbers of the rotation that a query needs for codes,
        "nodes" nodes, "centers" bytes of their children, "codes" codes, "words" words of codes,
        "again" bytes of vectors.
    """
    words = -(-dim // 64) + 1
    is_coded = done.compared > 0
    again = done.compared if is_coded else done.scanned
    codes = done.scanned if is_coded else 0.0
    return {
        "call": 1.0,
        "turn": float(dim * dim) if is_coded else 0.0,
        "nodes": done.expanded,
        "centers": 4.0 * done.expanded * branching * dim,
        "codes": codes,
        "words": codes * words,
        "again": 4.0 * again * dim,
    }


def filter_work(
    cells: float, nlist: int, visited: float, compared: float, dim: int
) -> dict[str, float]:
    """Count the work of a search of cells that looks at a bitmap first.

    Args:
        cells: cells that are looked into.
        nlist: cells that there are.
        visited: rows in them.
        compared: rows that the bitmap admits.
        dim: numbers of a vector.

    Returns:
        Units by part: "call" 1, "centers" numbers of centers, "cells" cells, "rows" rows whose bit
        is looked at, "compared" vectors, "bytes" their bytes.
    """
    return {
        "call": 1.0,
        "centers": float(nlist * dim),
        "cells": cells,
        "rows": visited,
        "compared": compared,
        "bytes": 4.0 * compared * dim,
    }
