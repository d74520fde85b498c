"""Searches of tenants in native code: what it reads, and one call for a search."""

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import BackendError
from steelyard.native import switched_off, verdict
from steelyard.retrieve.native.library import ListFields, TreeFields, address, load_library
from steelyard.retrieve.tenants.lists import TenantLists
from steelyard.retrieve.tenants.scanning import CODED_WHOLE, WHOLE
from steelyard.retrieve.tenants.sign_codes import ERRORS
from steelyard.retrieve.tenants.tree import ClusterTree
from steelyard.retrieve.tenants.vectors import VectorRows

__all__ = ["NativeTree", "tenant_library"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


class NativeTree:
    """Vectors and their tree as native code sees them, until one of them changes.

    Room for one query and its answer is kept, so that a single search asks no address again; the
    caller lets one search run at a time.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        tree: ClusterTree,
        rows: VectorRows,
        spread: Floats,
        *,
        is_l2: bool,
        shortlist: int,
        boost: float,
    ) -> None:
        """Take what is searched.

        Args:
            library: compiled code.
            tree: the tree.
            rows: vectors, with codes where they are kept.
            spread: what scores of nodes are lowered by.
            is_l2: squared distances, else inner products.
            shortlist: rows below a node that are compared without going further down.
            boost: share of the spread.
        """
        self._library = library
        self._kept: dict[str, NDArray[Any]] = {
            "centers": tree.centers,
            "first_child": tree.first_child,
            "num_children": tree.num_children,
            "last_leaf": tree.last_leaf,
            "spread": spread,
            "vectors": rows.vectors,
            "leaves": rows.leaves,
            "numbers": rows.numbers,
            "records": rows.records,
            "rotation": np.empty(0) if rows.coder is None else rows.coder.rotation,
        }
        self._kept = {name: np.ascontiguousarray(kept) for name, kept in self._kept.items()}
        dim = tree.centers.shape[1]
        self._fields = TreeFields(
            dim=dim,
            is_l2=is_l2,
            shortlist=shortlist,
            whole=WHOLE,
            coded_whole=CODED_WHOLE,
            boost=boost,
            errors=ERRORS,
            **{name: address(kept) for name, kept in self._kept.items()},
        )
        self._place = ctypes.addressof(self._fields)
        self._query, self._counts = np.empty((1, dim), np.float32), np.empty(3, np.int64)
        self._query_place, self._counts_place = address(self._query), address(self._counts)
        self._lists: tuple[TenantLists, int] | None = None
        self._list_fields = ListFields()
        self._answer: tuple[int, Floats, Ids, int, int] | None = None

    def search(
        self, asked: Floats, lists: TenantLists, tenant: int, k: int, nprobe: int, coded: bool
    ) -> tuple[Floats, Ids, list[int], int]:
        """Search one list.

        Args:
            asked: float32 [Q, D].
            lists: lists of tenants.
            tenant: number of one that has a row at least.
            k: neighbours.
            nprobe: rows to look at.
            coded: whether codes tell which vectors are compared.

        Returns:
            Distances and numbers [Q, K]; rows looked at, nodes entered and vectors compared; the
            first query that is not finite, -1 for none.
        """
        count = len(asked)
        if self._lists is None or self._lists != (lists, lists.version):
            names = ("rows", "lengths", "places", "chunks", "keys")
            for name, values in zip(names, lists.arrays(), strict=True):
                setattr(self._list_fields, name, address(values))
            self._lists = (lists, lists.version)
        if count == 1:
            if self._answer is None or self._answer[0] != k:
                room = np.empty((1, k), np.float32), np.empty((1, k), np.int64)
                self._answer = (k, *room, address(room[0]), address(room[1]))
            _, distances, ids, first, second = self._answer
            self._query[0] = asked[0]
            query = self._query_place
        else:
            distances, ids = np.empty((count, k), np.float32), np.empty((count, k), np.int64)
            query, first, second = address(asked), address(distances), address(ids)
        wrong = self._library.steelyard_search_tenant(
            *(self._place, ctypes.addressof(self._list_fields), query, count, tenant, k, nprobe),
            *(coded, first, second, self._counts_place),
        )
        if count == 1:
            distances, ids = distances.copy(), ids.copy()
        return distances, ids, self._counts.tolist(), wrong


@cache
def tenant_library() -> ctypes.CDLL | None:
    """Load the library; None without a compiler, switched off, or where it finds others."""
    if switched_off():
        return None
    from steelyard.retrieve.tenants.trial import difference

    try:
        library = load_library()
    except BackendError:
        return None
    return library if not verdict(library, "tenants", lambda: difference(library), 0.5) else None
