"""Why a session stands out: what its events do that those of others do not."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.data.logs.detectors import InvariantDetector
from steelyard.data.logs.sessions import count_events
from steelyard.errors import DataError

__all__ = ["Reason", "SessionRules"]

_RARE_SHARE = 0.02
_LATE_FACTOR = 3.0
_RARE, _LATE, _BROKEN, _ORDER = 8.0, 8.0, 6.0, 2.0


@dataclass(frozen=True)
class Reason:
    """Something that a session does and others do not.

    Attributes:
        event: template that it concerns.
        weight: how much speaks for it; larger is stronger.
        text: reason in words, with E and its number for an event.
    """

    event: int
    weight: float
    text: str


class SessionRules:
    """Rules that sessions keep: which events come, how often together, after which, how soon."""

    def __init__(
        self,
        sessions: Sequence[Sequence[int]],
        num_templates: int,
        times_s: Sequence[NDArray[np.float64]] | None = None,
    ) -> None:
        """Learn rules from sessions, most of them normal.

        Args:
            sessions: events, numbers of templates.
            num_templates: how many there are.
            times_s: when they happened, [sessions][events]; None where that is not known.

        Raises:
            DataError: fewer than two sessions.
        """
        if len(sessions) < 2:
            raise DataError("rules need at least two sessions")
        counts = count_events(sessions, num_templates)
        self._shares = (counts > 0).mean(axis=0)
        self._invariants = InvariantDetector.fit(counts)
        self._num_templates = num_templates
        self._follows: Counter[tuple[int, int]] = Counter()
        for events in sessions:
            self._follows.update(set(itertools.pairwise(events)))
        pauses: defaultdict[int, list[float]] = defaultdict(list)
        for events, times in zip(sessions, times_s or (), strict=False):
            for event, pause in zip(events[1:], np.diff(times).tolist(), strict=True):
                pauses[event].append(pause)
        # Of the training sessions one in a hundred may be late itself.
        self._usual_s = {event: float(np.quantile(at, 0.99)) for event, at in pauses.items()}
        self._num_sessions = len(sessions)

    def explain(
        self, events: Sequence[int], times_s: NDArray[np.float64] | None = None, most: int = 3
    ) -> list[Reason]:
        """Return what speaks most for a session being strange, one reason an event.

        Args:
            events: events of the session.
            times_s: when they happened, [events]; None where that is not known.
            most: reasons to return.

        Returns:
            The reasons, the strongest first; none where all rules are kept.
        """
        found = [*self._rare(events), *self._broken(events), *self._order(events)]
        if times_s is not None:
            found += self._late(events, times_s)
        weights: defaultdict[int, float] = defaultdict(float)
        texts: dict[int, Reason] = {}
        for reason in found:
            weights[reason.event] += reason.weight
            if reason.event not in texts or texts[reason.event].weight < reason.weight:
                texts[reason.event] = reason
        ranked = sorted(weights, key=lambda event: (-weights[event], event))
        return [Reason(event, weights[event], texts[event].text) for event in ranked[:most]]

    def _rare(self, events: Sequence[int]) -> list[Reason]:
        return [
            Reason(event, _RARE, f"E{event} comes in {self._shares[event]:.2%} of sessions")
            for event in sorted(set(events))
            if self._shares[event] < _RARE_SHARE
        ]

    def _broken(self, events: Sequence[int]) -> list[Reason]:
        """Return counts that do not agree; the event of most such pairs is the likeliest."""
        counts = count_events([events], self._num_templates)
        rows = np.flatnonzero(self._invariants.broken(counts)[0])
        pairs = [self._invariants.relations[row] for row in rows]
        involved = Counter(event for left, right, _, q in pairs if q for event in (left, right))
        found = []
        for left, right, first, second in pairs:
            if not second:
                continue
            for event in (left, right):
                share = involved[event] / max(involved.values())
                text = (
                    f"E{left} {int(counts[0, left])} times and E{right} "
                    f"{int(counts[0, right])} times, but {first} of the one go with "
                    f"{second} of the other"
                )
                weight = _BROKEN * share**2 / involved[event]
                found.append(Reason(event, weight, text))
        return found

    def _order(self, events: Sequence[int]) -> list[Reason]:
        """Return events that come where they hardly ever do."""
        found = []
        for before, event in itertools.pairwise(events):
            share = self._follows[before, event] / self._num_sessions
            if share < _RARE_SHARE / 2:
                text = f"E{event} right after E{before}: in {share:.2%} of sessions"
                found += [Reason(event, _ORDER, text), Reason(before, 0.75 * _ORDER, text)]
        return found

    def _late(self, events: Sequence[int], times_s: NDArray[np.float64]) -> list[Reason]:
        found = []
        for event, pause in zip(events[1:], np.diff(times_s).tolist(), strict=True):
            usual = self._usual_s.get(event, np.inf)
            if pause > _LATE_FACTOR * usual:
                text = f"E{event} took {pause:.3g} s; 99 of 100 take less than {usual:.3g} s"
                found.append(Reason(event, _LATE, text))
        return found
