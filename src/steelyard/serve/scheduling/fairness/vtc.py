"""Fair sharing between clients by counting the service each has had."""

from collections.abc import Mapping

from steelyard.errors import ConfigError, require
from steelyard.serve.scheduling.fairness.order import OrderPolicy
from steelyard.serve.scheduling.fairness.standings import Owners, Standings, payer_of
from steelyard.serve.scheduling.request import Request

__all__ = ["VTC"]


class VTC(OrderPolicy):
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

    Attributes:
        counters: service of each client with a request in flight, lifted.

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
        require(
            self,
            w_in=(0 < w_in < float("inf"), "above 0 and finite"),
            w_out=(0 < w_out < float("inf"), "above 0 and finite"),
        )
        self._weights = dict(weights or {})
        for name, weight in self._weights.items():
            if not 0 < weight < float("inf"):
                raise ConfigError(
                    f"weight of client {name!r} is {weight}, but must be above 0 and finite",
                    hint="choose a positive number",
                )
        self._owners = Owners(Standings)
        self.counters = self._owners.payers.active
        self._requests: dict[str, dict[str, Request]] = {}
        # Work of each (client, user) since it became active: asked for, and of requests that ended.
        self._queued: dict[tuple[str, str], float] = {}
        self._ended: dict[tuple[str, str], float] = {}
        self._stands_at: dict[str, float] = {}
        self._ahead: dict[str, dict[str, float]] = {}

    def arrive(self, request: Request, now_s: float) -> None:
        """Place a request behind its user's earlier ones; lift who had none in flight."""
        payer = payer_of(request)
        line = (payer, request.user)
        self._owners.arrive(*line)
        self._requests.setdefault(payer, {})[request.id] = request
        self._ended.setdefault(line, 0.0)
        self._stands_at[request.id] = self._queued.setdefault(line, 0.0)
        self._queued[line] += self._work(request)
        self._ahead.pop(payer, None)

    def served(self, request: Request, prefill_tokens: int, decode_tokens: int) -> None:
        """Charge the client and its user."""
        payer = payer_of(request)
        cost = self.w_in * prefill_tokens + self.w_out * decode_tokens
        paid = cost / self._weights.get(payer, 1.0)
        self._owners.charge(payer, request.user, paid=paid, used=cost)
        if self._ahead:
            self._ahead.pop(payer, None)

    def leave(self, request: Request) -> None:
        """Move the later requests of the same user up."""
        payer = payer_of(request)
        line = (payer, request.user)
        self._ended[line] += self._work(request)
        del self._stands_at[request.id]
        del self._requests[payer][request.id]
        self._ahead.pop(payer, None)
        self._owners.leave(*line)
        if payer not in self._owners.users:
            del self._requests[payer]
        if payer not in self._owners.users or request.user not in self._owners.users[payer].active:
            del self._queued[line], self._ended[line]

    def key(self, request: Request, now_s: float) -> tuple[float, ...]:
        """Return (counter plus the client's own work ahead, rank of arrival)."""
        payer = payer_of(request)
        if len(self._owners.users[payer].active) == 1:
            ahead = self._own_ahead(request, payer)
        else:
            ahead = (self._ahead.get(payer) or self._line_up(payer))[request.id]
        return (self.counters[payer] + ahead, request.order)

    def _own_ahead(self, request: Request, payer: str) -> float:
        """Return the work of the same user that came before a request and has not ended."""
        return max(self._stands_at[request.id] - self._ended[payer, request.user], 0.0)

    def _line_up(self, payer: str) -> dict[str, float]:
        """Put the requests of a client's users in line, the user that had the least first.

        Places in line, not counters of users, then decide between clients: a client whose requests
        name a thousand users has as many first requests, and would fill the pool with them.

        Args:
            payer: client of several users that have requests in flight.

        Returns:
            Work of the client that comes before each request, by its id.
        """
        weight = self._weights.get(payer, 1.0)
        counters = self._owners.users[payer].active
        ahead = self._ahead[payer] = {}
        total = 0.0
        for request in sorted(
            self._requests[payer].values(),
            key=lambda item: (
                counters[item.user] / weight + self._own_ahead(item, payer),
                item.order,
            ),
        ):
            ahead[request.id] = total
            total += self._work(request)
        return ahead

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
