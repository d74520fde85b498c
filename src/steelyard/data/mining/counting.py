"""What one pass over a table of baskets counts: items, and given candidates."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.mining.baskets import Baskets, baskets_of_lists
from steelyard.data.mining.preparing import Prepared, arranged, count_items
from steelyard.data.mining.subsets import CandidateTree, count_candidates
from steelyard.data.stages import hash_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CandidateCounts", "ItemCounts", "coded"]


@dataclass(slots=True)
class _Items:
    """Items with their baskets.

    Attributes:
        labels: items, ascending.
        counts: baskets that hold each.
        num_baskets: baskets.
    """

    labels: NDArray[Any]
    counts: NDArray[np.int64]
    num_baskets: int


@dataclass(frozen=True, slots=True)
class ItemCounts:
    """How many baskets hold each item; a `Fold` whose result has `labels` and `counts`.

    Attributes:
        column: lists of items.
    """

    column: str

    @property
    def name(self) -> str:
        """What it is called in results."""
        return f"items of {self.column}"

    def init(self, schema: "pa.Schema") -> _Items:
        """Return the state before any basket."""
        import pyarrow as pa

        is_number = pa.types.is_integer(schema.field(self.column).type.value_type)
        return _Items(np.zeros(0, np.int64 if is_number else "U1"), np.zeros(0, np.int64), 0)

    def update(self, state: _Items, batch: "pa.RecordBatch") -> None:
        """Count the items of some baskets."""
        found = baskets_of_lists(batch[self.column], self.column)
        counts = count_items(found.begins, found.items, len(found.labels))
        self.merge(state, _Items(found.labels, counts, len(found)))

    def merge(self, state: _Items, later: _Items) -> None:
        """Take in other counts."""
        parts = [part for part in (state, later) if len(part.labels)]
        state.num_baskets += later.num_baskets
        if not parts:
            return
        labels, places = np.unique(
            np.concatenate([part.labels for part in parts]), return_inverse=True
        )
        counts = np.zeros(len(labels), np.int64)
        np.add.at(counts, places, np.concatenate([part.counts for part in parts]))
        state.labels, state.counts = labels, counts

    def finish(self, state: _Items) -> _Items:
        """Return the counts."""
        return state

    def sections(self, state: _Items) -> dict[str, NDArray[Any]]:
        """Return the counts as arrays."""
        baskets = np.array([state.num_baskets])
        return {"labels": state.labels, "counts": state.counts, "baskets": baskets}

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> _Items:
        """Return the counts of arrays."""
        del schema
        return _Items(sections["labels"], sections["counts"], int(sections["baskets"][0]))


def coded(baskets: Baskets, labels: NDArray[Any]) -> Prepared:
    """Return baskets with items numbered by their place among labels; others are dropped.

    Args:
        baskets: the baskets.
        labels: item by number, in any order.

    Returns:
        The baskets; an item's code is its number.
    """
    order = np.argsort(labels, kind="stable")
    numbers = np.full(len(baskets.labels), -1, np.int32)
    if len(labels):
        at = np.minimum(np.searchsorted(labels[order], baskets.labels), len(labels) - 1)
        is_there = labels[order][at] == baskets.labels
        numbers[is_there] = order[at[is_there]]
    own = count_items(baskets.begins, baskets.items, len(numbers))
    supports = np.zeros(len(labels), np.int64)
    supports[numbers[numbers >= 0]] = own[numbers >= 0]
    codes = np.arange(len(labels), dtype=np.int32)
    return arranged(baskets.begins, baskets.items, numbers, codes, supports)


@dataclass(frozen=True, slots=True)
class CandidateCounts:
    """How many baskets hold each of some itemsets; a `Fold`.

    Attributes:
        column: lists of items.
        labels: item by number.
        tree: the itemsets.
    """

    column: str
    labels: NDArray[Any]
    tree: CandidateTree

    @property
    def name(self) -> str:
        """What it is called in results; two sets of candidates have two names."""
        tree = self.tree
        told = hash_of(self.labels.tolist(), tree.parents.tolist(), tree.items.tolist())
        return f"candidates {told[:16]} of {self.column}"

    def init(self, schema: "pa.Schema") -> NDArray[np.int64]:
        """Return the state before any basket."""
        del schema
        return np.zeros(len(self.tree.items), np.int64)

    def update(self, state: NDArray[np.int64], batch: "pa.RecordBatch") -> None:
        """Count in some baskets."""
        ready = coded(baskets_of_lists(batch[self.column], self.column), self.labels)
        tree = self.tree
        state += count_candidates(
            ready.row_begins, ready.row_items, tree.items, tree.firsts, tree.lasts, tree.num_roots
        )

    def merge(self, state: NDArray[np.int64], later: NDArray[np.int64]) -> None:
        """Take in other counts."""
        state += later

    def finish(self, state: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the counts by node of the tree."""
        return state

    def sections(self, state: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the counts as arrays."""
        return {"counts": state}

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
        """Return the counts of arrays."""
        del schema
        return sections["counts"].copy()
