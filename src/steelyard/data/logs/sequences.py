"""What comes next: events that a model of sequences did not expect."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError

__all__ = ["END", "NextEvent", "NgramModel", "SequenceDetector"]

END = -1
"""What comes after the last event of a session."""
_START = -2


class NextEvent(Protocol):
    """A model of sequences: of n-grams, or a network that was trained elsewhere."""

    def expected(self, before: Sequence[int], most: int) -> Sequence[int]:
        """Return the likeliest next events, the likeliest first, `END` among them."""
        ...


@dataclass(frozen=True)
class NgramModel:
    """Counts of what follows the last events, of fewer where so many were never seen.

    Attributes:
        follow: likeliest followers by the events before.
        length: events that it looks back.
    """

    follow: dict[tuple[int, ...], tuple[int, ...]]
    length: int

    @classmethod
    def fit(cls, sessions: Sequence[Sequence[int]], length: int = 3) -> "NgramModel":
        """Count what follows in sessions.

        Args:
            sessions: events, mostly of normal sessions.
            length: events to look back, at least 1.

        Returns:
            The model.

        Raises:
            ConfigError: the length is less than 1.
        """
        if length < 1:
            raise ConfigError(f"a model cannot look back {length} events", hint="1 or more")
        counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for events in sessions:
            padded = [_START] * length + list(events) + [END]
            for place in range(length, len(padded)):
                for size in range(1, length + 1):
                    counts[tuple(padded[place - size : place])][padded[place]] += 1
        follow = {
            before: tuple(event for event, _ in sorted(found.items(), key=_by_count))
            for before, found in counts.items()
        }
        return cls(follow, length)

    def expected(self, before: Sequence[int], most: int) -> Sequence[int]:
        """Return the likeliest next events.

        Args:
            before: all events of the session so far.
            most: how many.

        Returns:
            Events, `END` for none; none where the last event was never seen.
        """
        padded = [_START] * self.length + list(before[-self.length :])
        for size in range(self.length, 0, -1):
            found = self.follow.get(tuple(padded[-size:]))
            if found is not None:
                return found[:most]
        return ()


def _by_count(item: tuple[int, int]) -> tuple[int, int]:
    return -item[1], item[0]


@dataclass(frozen=True, kw_only=True)
class SequenceDetector:
    """Events that are not among the likeliest next ones.

    Attributes:
        model: model of sequences; one that was trained elsewhere is handed in.
        most: likeliest events that are as expected.
        threshold: surprises that a session may have.

    Source: Du et al. 2017 (CCS, DeepLog), section 3.1.
    """

    model: NextEvent
    most: int = 9
    threshold: float = 0.5

    def surprises(self, events: Sequence[int]) -> list[tuple[int, int]]:
        """Return place and event of what was not expected; the end is at the place of the end."""
        found = []
        for place, event in enumerate([*events, END]):
            if event not in self.model.expected(events[:place], self.most):
                found.append((place, event))
        return found

    def score(self, sessions: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """Return how many events of each session were not expected, [sessions]."""
        return np.array([len(self.surprises(events)) for events in sessions], float)
