"""How many pods a pool reserves: a fixed number, or a quantile of what such hours needed."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import require

__all__ = ["FixedPool", "SeasonalPool"]


@dataclass(frozen=True)
class FixedPool:
    """Reserves the same number always.

    Attributes:
        count: pods.
    """

    count: int

    def __post_init__(self) -> None:
        require(self, count=(self.count >= 0, "0 or more"))

    def size(self, needs: NDArray[np.int64]) -> int:
        """Return the number."""
        return self.count


@dataclass(frozen=True, kw_only=True)
class SeasonalPool:
    """Reserves what steps at this time of day needed on past days, and what was needed just now.

    Attributes:
        steps_per_day: decisions of a day.
        level: quantile of the needs, in (0, 1].
        headroom: factor on the quantile.
        days: past days that count.
        beside: steps before and after this time of day that count as well.
        recent: latest steps that count as well.
        first: pods while no day is known.
    """

    steps_per_day: int
    level: float = 0.9
    headroom: float = 1.0
    days: int = 7
    beside: int = 1
    recent: int = 2
    first: int = 1

    def __post_init__(self) -> None:
        require(
            self,
            steps_per_day=(self.steps_per_day >= 1, "at least 1"),
            level=(0 < self.level <= 1, "in (0, 1]"),
            headroom=(self.headroom > 0, "above 0"),
            first=(self.first >= 0, "0 or more"),
        )

    def size(self, needs: NDArray[np.int64]) -> int:
        """Return the quantile over the steps that count, times the headroom."""
        if len(needs) < self.steps_per_day:
            return max(self.first, math.ceil(self.headroom * needs.max(initial=0)))
        around = np.arange(-self.beside, self.beside + 1)
        days = np.arange(1, self.days + 1)[:, None]
        at = (len(needs) - days * self.steps_per_day + around).ravel()
        counted = needs[at[(at >= 0) & (at < len(needs))]]
        latest = needs[len(needs) - self.recent :] if self.recent else needs[:0]
        found = np.quantile(np.concatenate((counted, latest)), self.level)
        return math.ceil(self.headroom * float(found))
