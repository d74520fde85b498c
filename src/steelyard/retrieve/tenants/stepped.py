"""Searches of tenants by numba's code, for machines without a compiler."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.index import Hits, SearchStats
from steelyard.retrieve.tenants.lists import TenantLists
from steelyard.retrieve.tenants.scanning import search_tenant
from steelyard.retrieve.tenants.sign_codes import ERRORS
from steelyard.retrieve.tenants.tree import ClusterTree
from steelyard.retrieve.tenants.vectors import VectorRows

__all__ = ["HeldVectors", "stepped_search"]

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class HeldVectors:
    """What a search reads.

    Attributes:
        tree: the tree.
        rows: vectors, with codes where they are kept.
        spread: what scores of nodes are lowered by.
        room: scores and entries of nodes, one for each node.
        is_l2: squared distances, else inner products.
    """

    tree: ClusterTree
    rows: VectorRows
    spread: Floats
    room: tuple[Floats, NDArray[np.int64]]
    is_l2: bool


def stepped_search(
    held: HeldVectors,
    asked: Floats,
    lists: TenantLists,
    number: int,
    k: int,
    nprobe: int,
    shortlist: int,
    boost: float,
    coded: bool,
) -> Hits:
    """Search one list.

    Args:
        held: what is searched.
        asked: float32 [Q, D], finite.
        lists: lists of tenants.
        number: number of one that has a row at least.
        k: neighbours.
        nprobe: rows to look at.
        shortlist: rows below a node that are looked at without going further down.
        boost: share of the spread.
        coded: whether codes tell which vectors are compared.

    Returns:
        The hits.
    """
    tree, rows, records = held.tree, held.rows, held.rows.records
    rotation = np.empty((0, 0), np.float32) if rows.coder is None else rows.coder.rotation
    nodes = (tree.centers, tree.first_child, tree.num_children, tree.last_leaf, held.spread)
    found, numbers, scanned, expanded, compared = search_tenant(
        asked,
        number,
        k,
        nprobe,
        shortlist,
        np.float32(boost),
        held.is_l2,
        coded,
        np.float32(ERRORS),
        (*nodes, rotation),
        lists.arrays(),
        (rows.vectors, rows.leaves, rows.numbers, records, records.view(np.float32)),
        *held.room,
    )
    stats = SearchStats(
        scanned=int(scanned), probed=int(expanded), reranked=int(compared) if coded else 0
    )
    return Hits(ids=numbers, distances=found if held.is_l2 else -found, stats=stats)
