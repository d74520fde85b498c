"""In which region a function's pods start: at home, or where starts and the way there are short."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import require

__all__ = ["HomePlacement", "LeastColdStart"]


@dataclass(frozen=True)
class HomePlacement:
    """Keeps every function at home."""

    def place(
        self, home: NDArray[np.int64], start_s: NDArray[np.float64], rtt_s: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Return the homes."""
        return home.copy()


@dataclass(frozen=True, kw_only=True)
class LeastColdStart:
    """Sends functions where a recent start plus the round trip was shortest.

    Attributes:
        rtt_weight: how often the round trip counts per start, as warm requests travel as well.
        gain: fraction of the home's sum by which another region must be shorter.
    """

    rtt_weight: float = 1.0
    gain: float = 0.1

    def __post_init__(self) -> None:
        require(
            self,
            rtt_weight=(self.rtt_weight >= 0, "0 or more"),
            gain=(0 <= self.gain < 1, "in [0, 1)"),
        )

    def place(
        self, home: NDArray[np.int64], start_s: NDArray[np.float64], rtt_s: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Return the region of the shortest sum by function."""
        # A region without a start yet is as unknown as it is empty: it counts as the mean.
        known = np.isfinite(start_s)
        filled = np.where(known, start_s, start_s[known].mean() if known.any() else 0.0)
        sums = filled[None, :] + self.rtt_weight * rtt_s
        best = np.argmin(sums, axis=1)
        rows = np.arange(len(rtt_s))
        is_better = sums[rows, best] < (1 - self.gain) * sums[rows, rows]
        return np.where(is_better, best, rows)[home]
