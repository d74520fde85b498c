"""Fair sharing between clients by counting the service each has had."""

from collections.abc import Mapping
from dataclasses import dataclass

from steelyard.errors import ConfigError, require
from steelyard.serve.scheduling.fairness.ledger import Ledger, Owners, payer_of
from steelyard.serve.scheduling.request import Request

__all__ = ["VTC"]


class _Counters(Ledger):
    """Virtual counters: who comes back is lifted to the least active one, or to the last to leave.

    The level never falls: parties join at it or above, and counters only grow.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last_left = 0.0

    @property
    def level(self) -> float:
        """The least counter of an active party, or that of the last to leave."""
        least = self.least()
        return self._last_left if least is None else least

    def opening(self, before: float) -> float:
        """Return the counter as it is: a party that idled has saved nothing up."""
        return before

    def leave(self, name: str) -> bool:
        """Count that a request of a party ended; True when the party was forgotten."""
        if self._in_flight[name] == 1:
            self._last_left = self.active[name]
        return super().leave(name)


@dataclass(slots=True, eq=False)
class _Line:
    """Requests of one user since it became active, in order of arrival.

    Attributes:
        queued: work of all of them.
        ended: work of those that ended.
        count: requests in flight.
    """

    queued: float = 0.0
    ended: float = 0.0
    count: int = 0


@dataclass(slots=True, eq=False)
class _Place:
    """Where a request stands.

    Attributes:
        request: the request.
        payer: who pays for it.
        counters: counters of the payer's users that have requests in flight.
        line: line of its user.
        stands_at: work of its user that came before it.
        work: what it is known to need.
        ahead: work of its payer that comes before it, when the payer has several users.
    """

    request: Request
    payer: str
    counters: Mapping[str, float]
    line: _Line
    stands_at: float
    work: float
    ahead: float = 0.0

    @property
    def own_ahead(self) -> float:
        """Work of its user that comes before it and has not ended."""
        return max(self.stands_at - self.line.ended, 0.0)


class VTC:
    """Virtual token counter: the client that has had the least service goes first.

    Each client's counter grows by `w_in` per prompt token and `w_out` per output token that ran,
    over its weight. A client that comes back after it had nothing in flight is lifted to the least
    counter of the others (or of the last to leave), so that idling saves nothing up. Within a
    client requests go by arrival, and each stands behind the work of those before it: with equal
    counters the clients take turns instead of filling the pool one after the other.

    Where requests of one client name several users, these share the client's turns by counters of
    the same kind. The client is charged for all of them.

    Of two clients that always have requests waiting, neither gets more than `2 max(w_in L_in, w_out
    M)` ahead, with `L_in` the longest prompt and `M` the tokens the pool holds.

    Source: Sheng et al. 2024 (arXiv 2401.00588), section 4.
    """

    def __init__(
        self, *, w_in: float = 1.0, w_out: float = 2.0, weights: Mapping[str, float] | None = None
    ) -> None:
        """Start with no client.

        Args:
            w_in: price of a prompt token.
            w_out: price of an output token.
            weights: share of each client relative to the others; 1 for those not named.

        Raises:
            ConfigError: a price or weight is not positive.
        """
        self.w_in = w_in
        self.w_out = w_out
        self._weights = dict(weights or {})
        require(
            self,
            w_in=(0 < w_in < float("inf"), "above 0 and finite"),
            w_out=(0 < w_out < float("inf"), "above 0 and finite"),
        )
        for name, weight in self._weights.items():
            if not 0 < weight < float("inf"):
                raise ConfigError(
                    f"weight of client {name!r} is {weight}, but must be above 0 and finite",
                    hint="choose a positive number",
                )
        self._owners = Owners(_Counters)
        self._counters = self._owners.payers.active
        self._lines: dict[tuple[str, str], _Line] = {}
        self._places: dict[str, _Place] = {}
        self._places_of: dict[str, dict[str, _Place]] = {}
        self._in_line: set[str] = set()

    @property
    def counters(self) -> dict[str, float]:
        """Service of each client that is remembered, lifted."""
        return {**self._owners.payers.idle, **self._owners.payers.active}

    def arrive(self, request: Request, now_s: float) -> None:
        """Place a request behind its user's earlier ones; lift who had none in flight."""
        payer = payer_of(request)
        self._owners.arrive(request)
        line = self._lines.setdefault((payer, request.user), _Line())
        counters = self._owners.users[payer].active
        place = _Place(request, payer, counters, line, line.queued, self._work(request))
        self._places[request.id] = place
        self._places_of.setdefault(payer, {})[request.id] = place
        line.queued += place.work
        line.count += 1
        self._in_line.discard(payer)

    def served(self, request: Request, prefill_tokens: int, decode_tokens: int) -> None:
        """Charge the client and its user."""
        payer = payer_of(request)
        cost = self.w_in * prefill_tokens + self.w_out * decode_tokens
        self._owners.charge(request, cost / self._weights.get(payer, 1.0), cost)
        self._in_line.discard(payer)

    def leave(self, request: Request) -> None:
        """Move the later requests of the same user up."""
        payer = payer_of(request)
        place = self._places.pop(request.id)
        del self._places_of[payer][request.id]
        place.line.ended += place.work
        place.line.count -= 1
        if not place.line.count:
            del self._lines[payer, request.user]
        if not self._places_of[payer]:
            del self._places_of[payer]
        self._owners.leave(request)
        self._in_line.discard(payer)

    def update(self, now_s: float) -> None:
        """Nothing to learn: counters are always up to date."""

    def key(self, request: Request, now_s: float) -> tuple[float, ...]:
        """Return (counter plus the client's own work ahead, rank of arrival)."""
        place = self._places[request.id]
        if len(place.counters) == 1:
            ahead = place.own_ahead
        else:
            if place.payer not in self._in_line:
                self._line_up(place.payer)
            ahead = place.ahead
        return (self._counters[place.payer] + ahead, request.order)

    def _line_up(self, payer: str) -> None:
        """Put the requests of a client's users in line, the user that had the least first.

        Places in line, not counters of users, decide between clients: a client whose requests name
        a thousand users has as many first requests, and would fill the pool with them.

        Args:
            payer: client with several users that have requests in flight.
        """
        weight = self._weights.get(payer, 1.0)
        ahead = 0.0
        for place in sorted(
            self._places_of[payer].values(),
            key=lambda item: (
                item.counters[item.request.user] / weight + item.own_ahead,
                item.request.order,
            ),
        ):
            place.ahead = ahead
            ahead += place.work
        self._in_line.add(payer)

    def _work(self, request: Request) -> float:
        """Price what a request is known to need when it arrives, over its client's weight.

        Args:
            request: request with its prompt.

        Returns:
            The price of the prompt, and of one output token or what its sender expects.
        """
        output = max(request.expected_output, 1)
        price = self.w_in * len(request.prompt) + self.w_out * output
        return price / self._weights.get(payer_of(request), 1.0)
