"""Columns by which two tables can be joined: values of one that lie in another."""

from collections.abc import Mapping
from dataclasses import dataclass

from steelyard.data.matching.values import ValueSketch, containment

__all__ = ["JoinCandidate", "find_joins"]

_LEAST_VALUES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinCandidate:
    """Two columns that join tables.

    Attributes:
        left: column of the first table.
        right: column of the second.
        left_in_right: share of the different values of the left that the right has.
        right_in_left: the other way round.
        left_unique: whether each row of the left has a value of its own.
        right_unique: the same of the right.
        told_of: different values that the larger share was told of.
    """

    left: str
    right: str
    left_in_right: float
    right_in_left: float
    left_unique: bool
    right_unique: bool
    told_of: int

    @property
    def kind(self) -> str:
        """How rows meet: "one to one", "many to one", "one to many" or "many to many"."""
        words = {True: "one", False: "many"}
        return f"{words[self.left_unique]} to {words[self.right_unique]}"


def find_joins(
    left: Mapping[str, ValueSketch], right: Mapping[str, ValueSketch], least: float = 0.8
) -> list[JoinCandidate]:
    """Find columns of which one nearly lies in the other, without reading the tables again.

    Columns of fewer than three different values join nothing that is worth it.

    Args:
        left: sketches of the first table.
        right: sketches of the second.
        least: least share of the different values of one that the other has.

    Returns:
        Candidates: those first of which a side is unique, then by the larger share.
    """
    found = []
    for name, one in left.items():
        for other_name, other in right.items():
            if min(one.num_distinct, other.num_distinct) < _LEAST_VALUES:
                continue
            (inner, seen), (outer, told) = containment(one, other), containment(other, one)
            if not max(inner, outer) >= least:
                continue
            found.append(
                JoinCandidate(
                    left=name,
                    right=other_name,
                    left_in_right=inner,
                    right_in_left=outer,
                    left_unique=one.is_unique,
                    right_unique=other.is_unique,
                    told_of=max(seen, told),
                )
            )

    def order(item: JoinCandidate) -> tuple[bool, float]:
        return not (item.left_unique or item.right_unique), -max(
            item.left_in_right, item.right_in_left
        )

    return sorted(found, key=order)
