"""Availability of nodes: what share of time each was up, and how many copies that asks for."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Availability", "copies_for"]

_PRIOR_SHARE, _PRIOR_S = 0.99, 3600.0
"""A new node counts as if it had been seen for an hour: one short fault says little of it."""
_HALF_LIFE_S = 86_400.0


class Availability:
    """Share of time that each node was up, as seen by whoever pings them; a day ago counts half."""

    def __init__(self) -> None:
        """Start with no node."""
        self._up_s: dict[str, float] = {}
        self._seen_s: dict[str, float] = {}

    def observe(self, is_up: Mapping[str, bool], seconds: float) -> None:
        """Take who was up.

        Args:
            is_up: whether each node is up; those that are not named count as before.
            seconds: how long it was so.
        """
        keep = 0.5 ** (seconds / _HALF_LIFE_S)
        for name, up in is_up.items():
            before_s = self._seen_s.get(name, _PRIOR_S)
            self._up_s[name] = keep * self._up_s.get(name, _PRIOR_SHARE * _PRIOR_S) + up * seconds
            self._seen_s[name] = keep * before_s + seconds

    def share(self, name: str) -> float:
        """Return the share of time that a node was up, 0 to 1; .99 for one that is new."""
        seen_s = self._seen_s.get(name, 0.0)
        return self._up_s[name] / seen_s if seen_s else _PRIOR_SHARE

    def worst_first(self, names: Iterable[str]) -> list[str]:
        """Return nodes in the order of their availability, the least available first."""
        return sorted(names, key=lambda name: (self.share(name), name))

    def copies(self, holders: Sequence[str], others: Iterable[str], target: float) -> int:
        """Return how many copies of a shard keep it readable as often as wished.

        Args:
            holders: nodes that have a copy.
            others: nodes that could have one, in the order in which they are counted on; holders
                among them are passed over.
            target: share of time, below 1.

        Returns:
            Copies, as of `copies_for`.
        """
        rest = (name for name in others if name not in holders)
        return copies_for(map(self.share, itertools.chain(holders, rest)), target)


def copies_for(availabilities: Iterable[float], target: float) -> int:
    """Return the fewest copies of which one is up with the wished probability.

    Args:
        availabilities: share of time that each node is up, 0 to 1, in the order of the copies.
        target: probability, below 1.

    Returns:
        Copies, at least 1; as many as there are nodes where even these do not reach it.

    Source: arXiv 2405.00004 (self-replicating nodes), made definite: the smallest r for which the
        product of 1 - availability over r nodes is at most 1 - target; failures independent.
    """
    down, count = 1.0, 0
    for share in availabilities:
        count += 1
        down *= 1 - share
        # The last digit: .99 twice is .9999, whatever the product of two rounded numbers says.
        if down <= (1 - target) * (1 + 1e-9):
            break
    return max(1, count)
