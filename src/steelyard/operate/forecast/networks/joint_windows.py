"""Windows of several series that were seen together, and the time as a network reads it."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.errors import TraceError
from steelyard.operate.forecast.simple import filled

__all__ = ["JointWindows", "time_marks"]

_DAY_S, _WEEK_S = 86_400.0, 604_800.0


def time_marks(start_s: float, step_s: float, steps: int) -> NDArray[np.float64]:
    """Return the time of day and of week as sines and cosines.

    Args:
        start_s: time of the first step, seconds since 1970 (UTC).
        step_s: seconds of a step.
        steps: steps T.

    Returns:
        [4, T].
    """
    at_s = start_s + step_s * np.arange(steps)
    turns = 2 * np.pi * np.stack((at_s / _DAY_S, at_s / _WEEK_S))
    return np.concatenate((np.sin(turns), np.cos(turns)))


class JointWindows:
    """Random windows of one table; batch `i` is a pure function of `i` and the seed."""

    def __init__(
        self,
        table: NDArray[np.float64],
        marks: NDArray[np.float64],
        sizes: tuple[int, int, int],
        seed: int,
    ) -> None:
        """Find where a window may end: what is to be forecast has no hole.

        Args:
            table: values [N, T], NaN where nothing was observed.
            marks: the time [4, T].
            sizes: steps of the context, of the horizon, and windows a batch.
            seed: seed of the draws.

        Raises:
            TraceError: no such window is there.
        """
        self._context, self._horizon, self._size = sizes
        self._seed = seed
        known = np.isfinite(table).all(0)
        self._table, self._marks = table, marks
        self._past = np.stack([_held(row) for row in table])
        ends = np.arange(max(self._context // 2, 2), table.shape[1] - self._horizon + 1)
        count = np.concatenate([[0], np.cumsum(known)])
        whole = count[ends + self._horizon] - count[ends] == self._horizon
        seen = np.isfinite(self._past[:, np.minimum(ends, table.shape[1]) - 1]).all(0)
        self._ends = ends[whole & seen]
        if not len(self._ends):
            raise TraceError(
                f"no window of {self._context // 2} steps and {self._horizon} behind them in "
                f"{table.shape[1]} values",
                hint="give longer series, or lower the horizon",
            )

    @property
    def count(self) -> int:
        """Number of windows there are."""
        return len(self._ends)

    def batch(self, index: int, /) -> tuple[Tensor, Tensor, Tensor]:
        """Return past [B, N, context], marks [B, 4, context] and target [B, N, horizon]."""
        rng = np.random.default_rng((self._seed, index))
        return self.windows(rng.choice(self._ends, self._size))

    def windows(self, ends: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the windows whose contexts end before these steps, as `batch` does."""
        back = ends[:, None] + np.arange(-self._context, 0)
        inside = np.maximum(back, 0)
        past = np.where(back >= 0, self._past[:, inside], np.nan).swapaxes(0, 1)
        ahead = ends[:, None] + np.arange(self._horizon)
        parts = (past, self._marks[:, inside].swapaxes(0, 1), self._table[:, ahead].swapaxes(0, 1))
        return tuple(torch.from_numpy(np.ascontiguousarray(part)) for part in parts)  # pyright: ignore[reportReturnType]


def _held(row: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fill holes with the value before them; before the first value there is none."""
    first = int(np.isfinite(row).argmax())
    return np.concatenate([row[:first], filled(row[first:])])
