"""Searches of tenants in native code: what it reads, and one call for a search."""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.native.library import ListFields, QuestionFields, TreeFields, address
from steelyard.retrieve.tenants.lists import TenantLists
from steelyard.retrieve.tenants.scanning import CODED_WHOLE, WHOLE
from steelyard.retrieve.tenants.sign_codes import ERRORS
from steelyard.retrieve.tenants.tree import ClusterTree
from steelyard.retrieve.tenants.vectors import VectorRows

__all__ = ["NativeTree"]

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
        self._query, self._counts = np.empty((1, dim), np.float32), np.empty(3, np.int64)
        self._lists: tuple[TenantLists, int] | None = None
        self._list_fields = ListFields()
        self._many, self._one = (self._question() for _ in range(2))
        self._one.queries, self._one.num_queries = address(self._query), 1
        self._one_place = ctypes.addressof(self._one)
        self._answer = np.empty((1, 0), np.float32), np.empty((1, 0), np.int64)

    def _question(self) -> QuestionFields:
        """Return a question of these vectors."""
        return QuestionFields(
            tree=ctypes.addressof(self._fields),
            lists=ctypes.addressof(self._list_fields),
            counts=address(self._counts),
        )

    def search(
        self, asked: Floats, lists: TenantLists, tenant: int, k: int, nprobe: int, coded: bool
    ) -> tuple[Floats, Ids, list[int], int]:
        """Search one list.

        Args:
            asked: float32 [Q, D], or one query [D] of any kind of number.
            lists: lists of tenants.
            tenant: number of one that has a row at least.
            k: neighbours.
            nprobe: rows to look at.
            coded: whether codes tell which vectors are compared.

        Returns:
            Distances and numbers [Q, K]; rows looked at, nodes entered and vectors compared; the
            first query that is not finite, -1 for none.
        """
        if self._lists is None or self._lists != (lists, lists.version):
            self._take_lists(lists)
        search = self._library.steelyard_search_tenant
        if asked.ndim == 1 or len(asked) == 1:
            if k != self._one.k:
                self._take_k(k)
            self._query[0] = asked
            wrong = search(self._one_place, tenant, nprobe, coded)
            distances, ids = self._answer
            return distances.copy(), ids.copy(), self._counts.tolist(), wrong
        count, many = len(asked), self._many
        distances, ids = np.empty((count, k), np.float32), np.empty((count, k), np.int64)
        many.queries, many.num_queries, many.k = address(asked), count, k
        many.distances, many.ids = address(distances), address(ids)
        wrong = search(ctypes.addressof(many), tenant, nprobe, coded)
        return distances, ids, self._counts.tolist(), wrong

    def _take_lists(self, lists: TenantLists) -> None:
        """Look at where lists lie."""
        names = ("rows", "lengths", "places", "chunks", "keys")
        for name, values in zip(names, lists.arrays(), strict=True):
            setattr(self._list_fields, name, address(values))
        self._lists = (lists, lists.version)

    def _take_k(self, k: int) -> None:
        """Make room for the answer to one query."""
        self._answer = np.empty((1, k), np.float32), np.empty((1, k), np.int64)
        self._one.distances, self._one.ids = (address(part) for part in self._answer)
        self._one.k = k
