"""Fair sharing between clients by counting the service each has had."""

from collections.abc import Mapping

from steelyard.errors import ConfigError
from steelyard.serve.scheduling.request import Request

__all__ = ["VTC", "client_of"]


def client_of(request: Request) -> str:
    """Return who pays for a request; an empty name counts as "default"."""
    return request.client or "default"


class VTC:
    """Virtual token counter: the client that has had the least service goes first.

    Each client's counter grows by `w_in` per prompt token and `w_out` per output token that ran,
    over its weight. A client that comes back after it had nothing in flight is lifted to the least
    counter of the others (or of the last to leave), so that idling saves nothing up. Within a
    client requests go by arrival, and each stands behind the work of those before it: with equal
    counters the clients take turns instead of filling the pool one after the other.

    Of two clients that always have requests waiting, neither gets more than `2 max(w_in L_in, w_out
    M)` ahead, with `L_in` the longest prompt and `M` the tokens the pool holds.

    Attributes:
        counters: service of each client so far, lifted.

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
        prices = {
            "w_in": w_in,
            "w_out": w_out,
            **{f"weight of client {name!r}": value for name, value in (weights or {}).items()},
        }
        for name, value in prices.items():
            if not 0 < value < float("inf"):
                raise ConfigError(
                    f"{name} is {value}, but must be above 0 and finite",
                    hint="give a positive number",
                )
        self.w_in = w_in
        self.w_out = w_out
        self.counters: dict[str, float] = {}
        self._weights = dict(weights or {})
        self._in_flight: dict[str, int] = {}
        self._queued: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._stands_at: dict[str, float] = {}
        self._floor = 0.0

    def arrive(self, request: Request, now_s: float) -> None:
        """Place a request behind its client's earlier ones, and lift a client that had none in flight."""
        client = client_of(request)
        if not self._in_flight.get(client):
            others = [self.counters[name] for name, count in self._in_flight.items() if count]
            self.counters[client] = max(
                self.counters.get(client, 0.0), min(others, default=self._floor)
            )
            self._queued[client] = self._ended[client] = 0.0
        self._in_flight[client] = self._in_flight.get(client, 0) + 1
        self._stands_at[request.id] = self._queued[client]
        self._queued[client] += self._work(request)

    def served(self, request: Request, prefill_tokens: int, decode_tokens: int) -> None:
        """Charge the client."""
        client = client_of(request)
        self.counters[client] += (
            self.w_in * prefill_tokens + self.w_out * decode_tokens
        ) / self._weights.get(client, 1.0)

    def leave(self, request: Request) -> None:
        """Move the client's later requests up."""
        client = client_of(request)
        self._in_flight[client] -= 1
        self._ended[client] += self._work(request)
        del self._stands_at[request.id]
        if not self._in_flight[client]:
            self._floor = self.counters[client]

    def update(self, now_s: float) -> None:
        """Nothing to learn: counters are always up to date."""

    def key(self, request: Request, now_s: float) -> tuple[float, ...]:
        """Give (counter plus the client's own work ahead, rank of arrival)."""
        client = client_of(request)
        ahead = max(self._stands_at[request.id] - self._ended[client], 0.0)
        return (self.counters[client] + ahead, request.order)

    def _work(self, request: Request) -> float:
        """Price what a request is known to need when it arrives: its prompt, and one output token or what its sender expects."""
        output = max(request.expected_output, 1)
        return (self.w_in * len(request.prompt) + self.w_out * output) / self._weights.get(
            client_of(request), 1.0
        )
