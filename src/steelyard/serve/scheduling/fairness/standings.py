"""What parties that share something were served, kept only as long as it makes a difference."""

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

from steelyard.serve.scheduling.request import Request

__all__ = ["Owners", "Standings", "payer_of"]

_SLACK = 16
"""Outdated entries that are kept before they are swept out."""


def payer_of(request: Request) -> str:
    """Return who pays for a request; an empty name counts as "default"."""
    return request.client or "default"


class Standings:
    """Service of parties that come and go; a party is active while it has a request in flight.

    A party that comes back starts from a level, or from what it had if that is more, so that it
    gains nothing by leaving. The level is the least service of an active party, or what the last
    one had that left.

    What an idle party had makes no difference at or below the level and is forgotten there. Above
    it, it is forgotten once the active ones have had as much: the equal share of an active party is
    added up, as the virtual time of fair queueing is, and a party that leaves ahead of the others
    is remembered until that share has caught up with it. So to stay away never pays.

    That keeps few. A party that had s tokens is remembered while the share rises by at most s
    tokens, and the share rises by 1/n token for each token that one of n active parties gets. Over
    any stretch, then, no more than n idle parties are remembered in the mean, however many came.

    Attributes:
        active: service of each party with a request in flight.
        idle: service of each other party that is remembered, and the share at which it is
            forgotten.
        credit: service that a party which becomes active may have before it stands at the level.

    Source: level as in Sheng et al. 2024 (arXiv 2401.00588), algorithm 2; virtual time as in
        Demers, Keshav and Shenker 1989 (fair queueing).
    """

    credit = 0.0

    def __init__(self) -> None:
        """Start without a party."""
        self.active: dict[str, float] = {}
        self.idle: dict[str, tuple[float, float]] = {}
        self._in_flight: dict[str, int] = {}
        # What to add to the service of an active party for the share that catches up with it.
        self._offset: dict[str, float] = {}
        self._share = 0.0
        self._last_left = 0.0
        self._sweep_at = _SLACK
        # Holds for each active party an entry that is at most its service, and outdated ones.
        self._heap: list[tuple[float, str]] = []

    @property
    def level(self) -> float:
        """Service up to which a party that is not active counts as served."""
        least = self.least()
        return self._last_left if least is None else least

    def arrive(self, name: str) -> None:
        """Count a request of a party."""
        if name in self._in_flight:
            self._in_flight[name] += 1
            return
        level = self.level
        before, due = self.idle.pop(name, (level, self._share))
        if due <= self._share:
            before, due = level, self._share
        service = max(before, level) - self.credit
        self.active[name] = service
        self._offset[name] = due - service
        self._in_flight[name] = 1
        heapq.heappush(self._heap, (service, name))
        if len(self._heap) > 2 * len(self.active) + _SLACK:
            self._heap = [(value, party) for party, value in self.active.items()]
            heapq.heapify(self._heap)

    def charge(self, name: str, service: float) -> None:
        """Add to what an active party had."""
        self.active[name] += service
        self._share += service / len(self.active)

    def leave(self, name: str) -> None:
        """Count that a request of a party ended."""
        self._in_flight[name] -= 1
        if self._in_flight[name]:
            return
        del self._in_flight[name]
        service = self._last_left = self.active.pop(name)
        due = service + self._offset.pop(name)
        if service > self.level and due > self._share:
            self.idle[name] = (service, due)
        # Swept when as many came as the last sweep left, so that each costs one look or two.
        if len(self.idle) > self._sweep_at:
            self.idle = {party: row for party, row in self.idle.items() if row[1] > self._share}
            self._sweep_at = 2 * len(self.idle) + _SLACK

    def least(self) -> float | None:
        """Return the least service of an active party, None without any."""
        heap = self._heap
        while heap:
            value, name = heap[0]
            service = self.active.get(name)
            if service is None:
                heapq.heappop(heap)
            elif service > value:
                heapq.heapreplace(heap, (service, name))
            else:
                return service
        return None


Kind = TypeVar("Kind", bound=Standings)


class Owners(Generic[Kind]):
    """Standings of those who pay, and of each payer's users among themselves.

    The payer is charged for all its users, so naming many of them brings it no more. Users are
    remembered while their payer has a request in flight; without one there is nothing to divide.

    Attributes:
        payers: standings of the payers.
        users: standings of each active payer's users.
    """

    def __init__(self, make: Callable[[], Kind]) -> None:
        """Start without a payer.

        Args:
            make: makes standings without a party.
        """
        self.payers = make()
        self.users: dict[str, Kind] = {}
        self._make = make

    def arrive(self, payer: str, user: str) -> None:
        """Count a request."""
        self.payers.arrive(payer)
        if payer not in self.users:
            self.users[payer] = self._make()
        self.users[payer].arrive(user)

    def charge(self, payer: str, user: str, *, paid: float, used: float) -> None:
        """Charge for a request.

        Args:
            payer: payer of a request in flight.
            user: user of the request.
            paid: service the payer is charged for.
            used: service the user is charged for.
        """
        self.payers.charge(payer, paid)
        self.users[payer].charge(user, used)

    def leave(self, payer: str, user: str) -> None:
        """Count that a request ended."""
        self.users[payer].leave(user)
        self.payers.leave(payer)
        if payer not in self.payers.active:
            del self.users[payer]
