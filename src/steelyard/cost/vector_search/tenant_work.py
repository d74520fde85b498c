"""Units of work of a query for one tenant: scans, trees, bitmaps, an index of its own."""

import math
from dataclasses import dataclass

__all__ = [
    "SEARCHES",
    "TenantSearch",
    "filter_work",
    "own_work",
    "scan_work",
    "tree_build_work",
    "tree_work",
]

SEARCHES = ("tenant scan", "tenant tree", "tenant filter", "tenant own")
"""Names of the four in rates of searches."""
_TREE_SAMPLE = 100_000
_CACHED = (1e6, 12e6)
"""Bytes up to which what queries touch stays in the near caches, and in the next."""
_PAGES, _PAGE_BYTES = (64.0, 3000.0), 4096.0
"""Pages whose places a core knows at once, and those that it finds soon."""
_BRANCHING, _SHORTLIST, _LEAF = 16, 128, 72
"""Children of a node of a tree, vectors of a tenant below one that are looked at in one go, and
vectors of a usual leaf."""


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


def scan_work(size: float, dim: int, beside: float, total: float) -> dict[str, float]:
    """Count the work of comparing all vectors of a tenant, where they lie among others'.

    Args:
        size: vectors of the tenant.
        dim: numbers of a vector.
        beside: share of them that stand right behind another of the tenant in memory.
        total: vectors of all.

    Returns:
        Units by part: "call" 1, "rows" vectors, "bytes" of vectors, those "beyond near" caches
        from one query to the next, and those "far" from all; of these two "scattered" and
        "scattered far" those that stand alone, and "pages" and "far pages" vectors that do.
    """
    read = _by_cache(4.0 * size * dim, 4.0 * size * dim)
    alone = _scattered(read, size, beside, _pages(size, dim, beside, total))
    return {"call": 1.0, "rows": float(size), **read, **alone}


def tree_work(
    done: TenantSearch, size: float, dim: int, beside: float, total: float
) -> dict[str, float]:
    """Count the work of a search in a tree.

    Args:
        done: what it does.
        size: vectors of the tenant.
        dim: numbers of a vector.
        beside: as of `scan_work`.
        total: as of `scan_work`.

    Returns:
        Units by part: "call" 1, "turn" numbers of the rotation that a query needs for codes,
        "nodes" nodes, "centers" bytes of their children, "ranges" of the tenant's vectors below a
        node that are looked at in one go, "codes" codes, "words" words of codes,
        "bytes" and the like of vectors that are compared, as of `scan_work`.
    """
    words = -(-dim // 64) + 1
    is_coded = done.compared > 0
    again = done.compared if is_coded else done.scanned
    codes = done.scanned if is_coded else 0.0
    read = _by_cache(4.0 * again * dim, 4.0 * size * dim)
    return {
        "call": 1.0,
        "turn": float(dim * dim) if is_coded else 0.0,
        "nodes": done.expanded,
        "centers": 4.0 * done.expanded * _BRANCHING * dim,
        "ranges": done.scanned / _range(size, beside, total) if done.expanded else 1.0,
        "codes": codes,
        "words": codes * words,
        **read,
        **_scattered(read, again, beside, _pages(size, dim, beside, total)),
    }


def tree_build_work(count: int, dim: int) -> dict[str, float]:
    """Count the work of building a tree and hanging all vectors in it; grants take no time beside.

    Args:
        count: vectors.
        dim: numbers of a vector.

    Returns:
        Units by part: "tree sample" numbers of the vectors that the tree is trained on, "tree rows"
        numbers of all.
    """
    return {
        "tree sample": float(min(count, _TREE_SAMPLE) * dim),
        "tree rows": float(count * dim),
    }


def filter_work(
    cells: float,
    nlist: int,
    visited: float,
    compared: float,
    size: float,
    dim: int,
    total: float,
) -> dict[str, float]:
    """Count the work of a search of cells that looks at a bitmap first.

    Args:
        cells: cells that are looked into.
        nlist: cells that there are.
        visited: rows in them.
        compared: rows that the bitmap admits.
        size: vectors of the tenant.
        dim: numbers of a vector.
        total: vectors of all.

    Returns:
        Units by part: as of `own_work`, with "visited" rows whose bit is looked at, and what is
        "scattered" as of `scan_work`: those that are admitted lie among others.
    """
    found = own_work(cells, nlist, compared, size, dim)
    beside = compared / max(visited, 1.0)
    scattered = _scattered(found, compared, beside, _pages(size, dim, beside, total))
    return {**found, **scattered, "visited": visited}


def own_work(cells: float, nlist: int, rows: float, size: float, dim: int) -> dict[str, float]:
    """Count the work of a search of an index of one tenant's vectors.

    Args:
        cells: cells that are looked into; 1 of an index without any.
        nlist: cells that there are.
        rows: vectors that are compared.
        size: vectors of the tenant.
        dim: numbers of a vector.

    Returns:
        Units by part: "call" 1, "centers" numbers of centers, "picks" cells that are kept while
        the nearest are looked for times the depth of their heap, "cells" cells, "rows" vectors,
        "bytes", "beyond near" and "far" of them, as of `scan_work`: they lie beside each other.
    """
    return {
        "call": 1.0,
        "centers": float(nlist * dim) if nlist > 1 else 0.0,
        "picks": _picks(cells, nlist),
        "cells": cells,
        "rows": rows,
        **_by_cache(4.0 * rows * dim, 4.0 * size * dim),
    }


def _by_cache(read: float, held: float) -> dict[str, float]:
    """Return bytes that a query reads, those that no near cache keeps, and those that none does.

    What is further away is among both, so that a fit never finds it faster than what is near.
    """
    near, middle = (min(1.0, cached / max(held, 1.0)) for cached in _CACHED)
    return {"bytes": read, "beyond near": read * (1 - near), "far": read * (1 - middle)}


def _scattered(
    read: dict[str, float], rows: float, beside: float, pages: float
) -> dict[str, float]:
    """Return what stands alone of vectors that a query compares, each on a page of its own."""
    alone = max(1 - beside, 0.0)
    unknown, far = (1 - min(1.0, known / max(pages, 1.0)) for known in _PAGES)
    return {
        "scattered": alone * read["beyond near"],
        "scattered far": alone * read["far"],
        "pages": alone * rows * unknown,
        "far pages": alone * rows * far,
    }


def _pages(size: float, dim: int, beside: float, total: float) -> float:
    """Return the pages on which a tenant's vectors stand alone, of those that hold all vectors."""
    return min((1 - beside) * size, 4.0 * total * dim / _PAGE_BYTES)


def _range(size: float, beside: float, total: float) -> float:
    """Return how many vectors of a tenant lie below a node that is looked at in one go."""
    node = total
    # A search goes down until a node has few of the tenant's vectors; no leaf is cut.
    while node * beside > _SHORTLIST and node > _SHORTLIST:
        node /= _BRANCHING
    return max(1.0, min(max(node, min(_LEAF, total)) * beside, size))


def _picks(cells: float, nlist: int) -> float:
    """Return how often a heap of the nearest cells changes, and is sorted, times its depth."""
    if nlist <= 1:
        return 0.0
    # Of centers in no order, the n-th enters a heap of c cells with probability c / n.
    taken = cells * (1 + math.log(max(nlist / cells, 1.0)))
    return (taken + cells) * math.log2(cells + 1)
