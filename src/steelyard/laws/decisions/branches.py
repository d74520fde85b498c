"""The account of a trunk and its branches, in whatever a run's length is counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Branch", "trained_in_all"]

Count = TypeVar("Count", int, float)


@dataclass(frozen=True, slots=True)
class Branch(Generic[Count]):
    """One length of a study: a cooldown from a checkpoint of the trunk, or a run of its own.

    Everything is counted in one unit: tokens in a plan, steps in the trainer.

    Attributes:
        length: the whole length, the trunk's part included.
        start: where the cooldown begins; 0 for a run of its own.
        replayed: part from the nearest earlier checkpoint to the start, run again at the trunk's
            rate.
    """

    length: Count
    start: Count
    replayed: float = 0.0

    @property
    def trained(self) -> float:
        """What this branch trains itself, the trunk's part not counted."""
        return self.length - self.start + self.replayed


def trained_in_all(branches: Sequence[Branch[Count]]) -> float:
    """Count the trunk once, up to the last start, and what every branch trains itself.

    Source: Haegele et al. 2024 (arXiv 2405.18392), section 5.
    """
    return max(branch.start for branch in branches) + sum(branch.trained for branch in branches)
