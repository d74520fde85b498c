"""Fair sharing between clients that keeps requests of one prefix together."""

from collections.abc import Callable

from steelyard.errors import require
from steelyard.serve.scheduling.fairness.order import OrderPolicy
from steelyard.serve.scheduling.fairness.standings import Owners, Standings, payer_of
from steelyard.serve.scheduling.request import Request

__all__ = ["DLPM"]


def _cached_when_admitted(request: Request) -> int:
    """Return the prompt tokens that the prefix index held when a request last came in."""
    return request.num_cached


class _Deficits(Standings):
    """Deficits as a level that all share, raised at a refill, less the service of each.

    A refill is one addition, however many parties there are. It pays debts of idle ones as well.
    """

    def __init__(self, quantum: float) -> None:
        super().__init__()
        self.credit = quantum
        self._level = 0.0

    @property
    def level(self) -> float:
        """Sum of the quanta so far; whoever had as much service has no deficit left."""
        return self._level

    def left(self, name: str) -> float:
        """Return what an active party may be served before others go first."""
        return self._level - self.active[name]

    def refill(self) -> None:
        """Add as many quanta as it takes for one active party to have deficit left."""
        least = self.least()
        if least is not None and least >= self._level:
            self._level += (int((least - self._level) // self.credit) + 1) * self.credit


class DLPM(OrderPolicy):
    """Deficit longest prefix match.

    Among clients with deficit left, the request with the longest cached prefix goes first.

    Every client in flight has a deficit that service uses up; when no one has any left, all get
    another quantum. A larger quantum lets a client stay longer (more reuse of its prefixes), a
    smaller one is fairer: two backlogged clients drift apart by at most the quantum and what one
    batch serves. Where requests of one client name several users, these have deficits of the same
    kind among themselves; the client is charged for all of them.

    Source: Cao et al. 2025 (arXiv 2501.14312).
    """

    def __init__(
        self,
        *,
        quantum: float = 4096.0,
        w_in: float = 1.0,
        w_out: float = 2.0,
        cached_prefix: Callable[[Request], int] = _cached_when_admitted,
    ) -> None:
        """Start with no client.

        Args:
            quantum: what each client's deficit grows by at a refill, in priced tokens.
            w_in: price of a prompt token.
            w_out: price of an output token.
            cached_prefix: tells how many leading tokens of a request are cached now.

        Raises:
            ConfigError: a number is not positive.
        """
        self.quantum = quantum
        self.w_in = w_in
        self.w_out = w_out
        self.cached_prefix = cached_prefix
        require(
            self,
            quantum=(0 < quantum < float("inf"), "above 0 and finite"),
            w_in=(0 < w_in < float("inf"), "above 0 and finite"),
            w_out=(0 < w_out < float("inf"), "above 0 and finite"),
        )
        self._owners = Owners(lambda: _Deficits(quantum))

    @property
    def deficits(self) -> dict[str, float]:
        """Service each client with a request in flight may have before others go first."""
        payers = self._owners.payers
        return {name: payers.left(name) for name in payers.active}

    def arrive(self, request: Request, now_s: float) -> None:
        """Open a client or user that had nothing in flight: a quantum, less what it still owes."""
        payer = payer_of(request)
        self._owners.arrive(payer, request.user)
        self._refill(payer)

    def served(self, request: Request, prefill_tokens: int, decode_tokens: int) -> None:
        """Charge the client and its user, and refill when nobody has anything left."""
        cost = self.w_in * prefill_tokens + self.w_out * decode_tokens
        payer = payer_of(request)
        self._owners.charge(payer, request.user, paid=cost, used=cost)
        self._refill(payer)

    def leave(self, request: Request) -> None:
        """Count a request that ended, and refill when nobody who stays has anything left."""
        payer = payer_of(request)
        self._owners.leave(payer, request.user)
        self._refill(payer)

    def key(self, request: Request, now_s: float) -> tuple[float, ...]:
        """Return the rank of a request.

        Args:
            request: a request in flight.
            now_s: time on the driver's clock.

        Returns:
            Whether the client is out of deficit, whether its user is, minus the cached prefix, and
            the rank of arrival.
        """
        payer = payer_of(request)
        return (
            float(self._owners.payers.left(payer) <= 0),
            float(self._owners.users[payer].left(request.user) <= 0),
            -self.cached_prefix(request),
            request.order,
        )

    def _refill(self, payer: str) -> None:
        """Refill the clients, and the users of one of them, where nobody has deficit left."""
        self._owners.payers.refill()
        if payer in self._owners.users:
            self._owners.users[payer].refill()
