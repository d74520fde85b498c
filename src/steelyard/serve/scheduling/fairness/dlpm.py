"""Fair sharing between clients that keeps requests of one prefix together."""

from collections.abc import Callable

from steelyard.errors import ConfigError
from steelyard.serve.scheduling.fairness.vtc import client_of
from steelyard.serve.scheduling.request import Request

__all__ = ["DLPM"]


def _cached_when_admitted(request: Request) -> int:
    """Return the prompt tokens that the prefix index held when a request last came in."""
    return request.num_cached


class DLPM:
    """Deficit longest prefix match.

    Among clients with deficit left, the request with the longest cached prefix goes first.

    Every client in flight has a deficit that service uses up; when no one has any left, all get
    another quantum. A larger quantum lets a client stay longer (more reuse of its prefixes), a
    smaller one is fairer: two backlogged clients drift apart by at most the quantum and what one
    batch serves.

    Attributes:
        deficits: service each client may still have before others go first.

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
            quantum: service given to each client at a refill, in priced tokens.
            w_in: price of a prompt token.
            w_out: price of an output token.
            cached_prefix: tells how many leading tokens of a request are cached now.

        Raises:
            ConfigError: a number is not positive.
        """
        for name, value in (("quantum", quantum), ("w_in", w_in), ("w_out", w_out)):
            if not 0 < value < float("inf"):
                raise ConfigError(
                    f"{name} is {value}, but must be above 0 and finite",
                    hint="give a positive number",
                )
        self.quantum = quantum
        self.w_in = w_in
        self.w_out = w_out
        self.cached_prefix = cached_prefix
        self.deficits: dict[str, float] = {}
        self._in_flight: dict[str, int] = {}

    def arrive(self, request: Request, now_s: float) -> None:
        """Give a client that had nothing in flight a fresh quantum, unless it still owes service."""
        client = client_of(request)
        if not self._in_flight.get(client):
            self.deficits[client] = min(self.deficits.get(client, 0.0), 0.0) + self.quantum
        self._in_flight[client] = self._in_flight.get(client, 0) + 1
        self._refill()

    def served(self, request: Request, prefill_tokens: int, decode_tokens: int) -> None:
        """Charge the client, and refill when nobody has anything left."""
        self.deficits[client_of(request)] -= self.w_in * prefill_tokens + self.w_out * decode_tokens
        self._refill()

    def leave(self, request: Request) -> None:
        """Count the client's requests."""
        self._in_flight[client_of(request)] -= 1
        self._refill()

    def update(self, now_s: float) -> None:
        """Nothing to learn: deficits are always up to date."""

    def key(self, request: Request, now_s: float) -> tuple[float, ...]:
        """Give (whether the client is out of deficit, minus the cached prefix, rank of arrival)."""
        return (
            float(self.deficits[client_of(request)] <= 0),
            -self.cached_prefix(request),
            request.order,
        )

    def _refill(self) -> None:
        """Add as many quanta for all clients in flight as it takes for one of them to have deficit left."""
        active = [name for name, count in self._in_flight.items() if count]
        most = max((self.deficits[name] for name in active), default=1.0)
        if most <= 0:
            gift = (int(-most // self.quantum) + 1) * self.quantum
            for name in active:
                self.deficits[name] += gift
