"""Books of the service that parties had, kept only as long as they make a difference."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from steelyard.serve.scheduling.request import Request

__all__ = ["Ledger", "Owners", "payer_of"]

_SLACK = 16
"""Outdated heap entries that are kept before a heap is made anew."""


def payer_of(request: Request) -> str:
    """Return who pays for a request; an empty name counts as "default"."""
    return request.client or "default"


class Ledger(ABC):
    """Service of parties that come and go; a party is active while it has a request in flight.

    A party that comes back starts from some level, or from what it had if that is more, so that it
    gains nothing by leaving. What an idle party had is forgotten at or below the level, where it
    makes no difference. Above it, it is forgotten once the active ones have had as much: the ledger
    adds up the equal share of an active party, as the virtual time of fair queueing does, and a
    party that leaves ahead of the others is remembered until that share has caught up with it. So
    to stay away never pays.

    That keeps few. A party that had s tokens is remembered while the share rises by at most s
    tokens, and the share rises by 1/n token for each token that one of n active parties gets. Over
    any stretch, then, no more than n idle parties are remembered in the mean, however many came.

    Every operation costs O(log n), amortized.

    Attributes:
        active: service of each party with a request in flight.
        idle: service of each other party that is remembered.

    Source: virtual time as in Demers, Keshav and Shenker 1989 (fair queueing).
    """

    def __init__(self) -> None:
        """Start without a party."""
        self.active: dict[str, float] = {}
        self.idle: dict[str, float] = {}
        self._in_flight: dict[str, int] = {}
        self._share = 0.0
        # What to add to the service of a party for the share that catches up with it.
        self._offset: dict[str, float] = {}
        # Both heaps may hold outdated entries. An active party has one that is at most its service,
        # as service only grows; an idle one has one with the share at which it is forgotten.
        self._active_heap: list[tuple[float, str]] = []
        self._idle_heap: list[tuple[float, str]] = []

    @property
    @abstractmethod
    def level(self) -> float:
        """Service up to which a party that is not active counts as served."""
        ...

    @abstractmethod
    def opening(self, before: float) -> float:
        """Return the service with which a party becomes active.

        Args:
            before: service it had so far, at least the level.

        Returns:
            What it starts with.
        """
        ...

    def arrive(self, name: str) -> list[str]:
        """Count a request of a party.

        Args:
            name: the party.

        Returns:
            Idle parties that were forgotten.
        """
        if name in self._in_flight:
            self._in_flight[name] += 1
            return []
        forgotten = self._forget()
        level = self.level
        before = self.idle.pop(name, level)
        service = self.opening(max(before, level))
        due = max(before + self._offset.pop(name, 0.0), self._share)
        self._offset[name] = due - service
        self.active[name] = service
        self._in_flight[name] = 1
        heapq.heappush(self._active_heap, (service, name))
        if len(self._active_heap) > 2 * len(self.active) + _SLACK:
            self._active_heap = [(value, party) for party, value in self.active.items()]
            heapq.heapify(self._active_heap)
        return forgotten

    def charge(self, name: str, service: float) -> None:
        """Add to what an active party had."""
        self.active[name] += service
        self._share += service / len(self.active)

    def leave(self, name: str) -> bool:
        """Count that a request of a party ended.

        Args:
            name: the party.

        Returns:
            Whether the party was forgotten, as nothing of it matters.
        """
        self._in_flight[name] -= 1
        if self._in_flight[name]:
            return False
        del self._in_flight[name]
        service = self.active.pop(name)
        due = service + self._offset[name]
        if service <= self.level or due <= self._share:
            del self._offset[name]
            return True
        self.idle[name] = service
        heapq.heappush(self._idle_heap, (due, name))
        if len(self._idle_heap) > 2 * len(self.idle) + _SLACK:
            self._idle_heap = [(self._due(party), party) for party in self.idle]
            heapq.heapify(self._idle_heap)
        return False

    def least(self) -> float | None:
        """Return the least service of an active party, None without any."""
        heap = self._active_heap
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

    def _due(self, name: str) -> float:
        """Return the share at which an idle party is forgotten."""
        return self.idle[name] + self._offset[name]

    def _forget(self) -> list[str]:
        """Forget the idle parties with which the share has caught up."""
        forgotten = []
        heap = self._idle_heap
        while heap and heap[0][0] <= self._share:
            due, name = heapq.heappop(heap)
            if name in self.idle and self._due(name) == due:
                del self.idle[name]
                del self._offset[name]
                forgotten.append(name)
        return forgotten


Books = TypeVar("Books", bound=Ledger)


class Owners(Generic[Books]):
    """Books of those who pay, and of each payer's users among themselves.

    The payer is charged for all its users, so naming many of them brings it no more. Its users are
    forgotten with it.

    Attributes:
        payers: service of each payer.
        users: service of each user, by payer.
    """

    def __init__(self, make: Callable[[], Books]) -> None:
        """Start without a payer.

        Args:
            make: makes an empty ledger.
        """
        self.payers = make()
        self.users: dict[str, Books] = {}
        self._make = make

    def arrive(self, request: Request) -> None:
        """Count a request."""
        payer = payer_of(request)
        for name in self.payers.arrive(payer):
            self.users.pop(name, None)
        if payer not in self.users:
            self.users[payer] = self._make()
        self.users[payer].arrive(request.user)

    def charge(self, request: Request, paid: float, used: float) -> None:
        """Charge for a request.

        Args:
            request: a request in flight.
            paid: service the payer is charged for.
            used: service the user is charged for.
        """
        payer = payer_of(request)
        self.payers.charge(payer, paid)
        self.users[payer].charge(request.user, used)

    def leave(self, request: Request) -> None:
        """Count that a request ended."""
        payer = payer_of(request)
        self.users[payer].leave(request.user)
        if self.payers.leave(payer):
            del self.users[payer]
