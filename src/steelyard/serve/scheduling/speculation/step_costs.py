"""Seconds of a decoding step by its rows, as measured."""

from collections import deque

import numpy as np

__all__ = ["StepCosts"]

_KEPT = 5
"""Steps whose median counts, so that one that waited for another program does not."""
_FORGOTTEN_AFTER = 1024
"""Steps after which a number of rows that did not come again is no longer known."""
_SLOPE = 0.02
"""Share of its time that a step is assumed to take longer for each row beyond what was measured,
until two numbers of rows were: on the low side, so that more rows are tried."""


class StepCosts:
    """Remembers what steps of each number of rows took lately."""

    def __init__(self) -> None:
        """Know nothing."""
        self._seconds: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._noted: dict[int, int] = {}
        self._count = 0
        self._slope = _SLOPE

    @property
    def is_known(self) -> bool:
        """Whether any step was measured."""
        return bool(self._medians)

    def note(self, rows: int, seconds: float) -> None:
        """Take in a step.

        Args:
            rows: tokens it ran, all of them of decoding sequences.
            seconds: what it took.
        """
        self._count += 1
        kept = self._seconds.setdefault(rows, deque(maxlen=_KEPT))
        kept.append(seconds)
        self._medians[rows] = sorted(kept)[(len(kept) - 1) // 2]
        self._noted[rows] = self._count
        # Contexts grow and machines change, so an old time would be held against a new one.
        for old in [
            at for at, noted in self._noted.items() if noted < self._count - _FORGOTTEN_AFTER
        ]:
            del self._seconds[old], self._medians[old], self._noted[old]

    def predict(self, first: int, count: int) -> np.ndarray:
        """Return what steps would take.

        Args:
            first: rows of the first step, at least 1.
            count: number of steps, each of one row more than the one before.

        Returns:
            Seconds, float64 [count]: between measured numbers of rows along a line, below them as
            the first, beyond them rising as from the first to the last; ones when no step was
            measured.
        """
        rows = np.arange(first, first + count)
        if not self._medians:
            return 1.0 + _SLOPE * (rows - first)
        known = np.array(sorted(self._medians))
        seconds = np.array([self._medians[at] for at in known.tolist()])
        beyond = np.maximum(rows - known[-1], 0)
        if len(known) > 1:
            rise = (seconds[-1] - seconds[0]) / (known[-1] - known[0])
            self._slope = max(float(rise / seconds[-1]), 0.0)
        return np.interp(rows, known, seconds) + self._slope * seconds[-1] * beyond
