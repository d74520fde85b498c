"""Lists of what conditions admit, kept ready for those that come again."""

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.tenants.lists import TenantLists
from steelyard.retrieve.tenants.predicates import TenantCondition

__all__ = ["ConditionLists"]

_KEPT = 64
"""Conditions come from users: only so many lists are kept."""


class ConditionLists:
    """Lists by condition, those that were not asked for the longest go first."""

    def __init__(self) -> None:
        """Begin without lists."""
        self._found: OrderedDict[TenantCondition, TenantLists] = OrderedDict()

    def get(
        self,
        condition: TenantCondition,
        rows_of: Callable[[str], NDArray[np.int32]],
        everything: Callable[[], NDArray[np.int32]],
        leaves: NDArray[np.int32],
    ) -> TenantLists:
        """Return what a condition admits, as the lists of one tenant.

        Args:
            condition: the condition.
            rows_of: returns the rows of a tenant.
            everything: returns all rows.
            leaves: leaf of every row.

        Returns:
            Lists whose tenant 0 it is.
        """
        if condition not in self._found:
            lists = TenantLists()
            lists.grant(lists.add_tenant(), condition.rows(rows_of, everything), leaves)
            self._found[condition] = lists
            while len(self._found) > _KEPT:
                self._found.popitem(last=False)
        self._found.move_to_end(condition)
        return self._found[condition]

    def clear(self) -> None:
        """Forget all: what tenants see has changed."""
        self._found.clear()

    def memory_bytes(self) -> int:
        """Return the bytes of all lists."""
        return sum(lists.memory_bytes() for lists in self._found.values())
