"""Sessions of events as counts: what detectors look at."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError

__all__ = ["CountWeights", "count_events", "sessions_of", "windows_of"]


def count_events(sessions: Sequence[Sequence[int]], num_templates: int) -> NDArray[np.float64]:
    """Return how often each session has each event.

    Args:
        sessions: events, numbers of templates from 0.
        num_templates: how many there are.

    Returns:
        Counts, [sessions, templates].

    Raises:
        DataError: an event is no template.
    """
    found = np.zeros((len(sessions), num_templates))
    for row, events in enumerate(sessions):
        if len(events) and not 0 <= min(events) <= max(events) < num_templates:
            raise DataError(f"session {row} has an event that is none of {num_templates} templates")
        np.add.at(found[row], np.asarray(events, np.int64), 1)
    return found


def sessions_of(
    templates: NDArray[np.integer], keys: Sequence[str | None]
) -> tuple[list[str], list[list[int]], list[list[int]]]:
    """Return lines by the session they name.

    Args:
        templates: templates of each line, negative for none, [lines].
        keys: session of each line, None for none, [lines].

    Returns:
        Keys in the order they are first met, events of each, and the lines of each.
    """
    events: dict[str, list[int]] = {}
    lines: dict[str, list[int]] = {}
    for line, (template, key) in enumerate(zip(templates.tolist(), keys, strict=True)):
        if template >= 0 and key is not None:
            events.setdefault(key, []).append(template)
            lines.setdefault(key, []).append(line)
    return list(events), list(events.values()), list(lines.values())


def windows_of(templates: NDArray[np.integer], length: int) -> list[list[int]]:
    """Return lines cut into windows of some lines each; those without a template are left out.

    Args:
        templates: templates of each line, negative for none, [lines].
        length: lines of a window; the last one may be shorter.

    Returns:
        Events by window.
    """
    return [
        [event for event in templates[first : first + length].tolist() if event >= 0]
        for first in range(0, len(templates), length)
    ]


@dataclass(frozen=True)
class CountWeights:
    """Inverse document frequencies and means of training counts.

    Attributes:
        inverse: weight of each template, [templates].
        mean: mean of the weighted counts, [templates].

    Source: Xu et al. 2009 (SOSP), section 5.
    """

    inverse: NDArray[np.float64]
    mean: NDArray[np.float64]

    @classmethod
    def of(cls, counts: NDArray[np.float64]) -> "CountWeights":
        """Return the weights of training counts, [sessions, templates]."""
        met = np.maximum((counts > 0).sum(axis=0), 1)
        # One is added: an event of every session would weigh nothing, and its absence go unseen.
        inverse = np.log(len(counts) / met) + 1
        return cls(inverse, (counts * inverse).mean(axis=0))

    def apply(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return weighted counts less their mean, [sessions, templates]."""
        return counts * self.inverse - self.mean
