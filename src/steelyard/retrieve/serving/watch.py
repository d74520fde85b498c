"""Recall in service: some queries are answered exactly later, while nothing else is to be done."""

import time
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import SteelyardError
from steelyard.retrieve.serving.service import SearchService

__all__ = ["RecallWatch"]

_KEPT = 64
_WINDOW = 256
_BUSY_SHARE = 0.02
"""Most of the time that checks may take: each is followed by a rest of fifty times its length."""


class RecallWatch:
    """Draws queries evenly from those answered, and compares their answers with exact ones.

    An answer is checked against vectors that are there now, so answers from before a change are
    dropped.

    Attributes:
        recalls: share of the true neighbours in each of the last answers that were checked.
        num_checked: answers that were checked.
        is_possible: whether the index can compare all vectors; found out by the first check.
    """

    def __init__(
        self, *, seed: int = 0, clock: Callable[[], float] = time.perf_counter, kept: int = _KEPT
    ) -> None:
        """Start with no answers.

        Args:
            seed: seed of the draw.
            clock: seconds that only grow.
            kept: answers that wait for a check.
        """
        self.recalls: deque[float] = deque(maxlen=_WINDOW)
        self.num_checked = 0
        self.is_possible = True
        self._rng, self._clock, self._kept = np.random.default_rng(seed), clock, kept
        self._drawn: list[tuple[NDArray[np.float32], NDArray[np.int64]]] = []
        self._seen = 0
        self._rests_until_s = -np.inf

    @property
    def recall(self) -> float:
        """Mean share of true neighbours that were found; NaN before the first check."""
        return float(np.mean(self.recalls)) if self.recalls else float("nan")

    def note(self, queries: NDArray[np.float32], ids: NDArray[np.int64]) -> None:
        """Draw from some answers.

        Args:
            queries: [Q, D].
            ids: what was answered [Q, K].
        """
        for row in range(len(queries)):
            self._seen += 1
            # Reservoir sampling: each answer since the last check is kept with one chance.
            place = len(self._drawn)
            if place >= self._kept:
                place = int(self._rng.integers(self._seen))
                if place >= self._kept:
                    continue
                self._drawn[place] = (queries[row].copy(), ids[row].copy())
            else:
                self._drawn.append((queries[row].copy(), ids[row].copy()))

    def forget(self) -> None:
        """Drop answers that wait: vectors have changed since."""
        self._drawn.clear()
        self._seen = 0

    def is_due(self) -> bool:
        """Whether a check may run now."""
        return bool(self._drawn) and self.is_possible and self._clock() >= self._rests_until_s

    def check(self, service: SearchService) -> None:
        """Check one answer.

        Args:
            service: what is searched; where it fails, the answer is dropped.
        """
        query, ids = self._drawn.pop(int(self._rng.integers(len(self._drawn))))
        began_s = self._clock()
        try:
            found = service.search(query[None], len(ids), exactly=True, strict=True)
        except SteelyardError:
            found = None
        else:
            self.is_possible = found is not None
        ended_s = self._clock()
        self._rests_until_s = ended_s + (ended_s - began_s) / _BUSY_SHARE
        if found is None:
            return
        true = found.hits.ids[0]
        true = true[true >= 0]
        if len(true):
            self.recalls.append(float(np.isin(true, ids).mean()))
            self.num_checked += 1
