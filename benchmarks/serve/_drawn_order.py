"""Priorities drawn by chance, for studies of preemption: every update shuffles who may run."""

from steelyard.errors import ConfigError
from steelyard.serve.scheduling.fairness.order import OrderPolicy
from steelyard.serve.scheduling.request import Request

__all__ = ["MarkovPriorities", "RandomPriorities"]

_MASK = 2**64 - 1


def _mix(value: int) -> int:
    """Scramble 64 bits (the finalizer of SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _uniform(seed: int, turn: int, order: int) -> float:
    """Draw from [0, 1), the same for equal arguments, whatever was asked before."""
    return _mix(_mix(_mix(seed) ^ turn) ^ order) / 2**64


class RandomPriorities(OrderPolicy):
    """New uniform priorities for all requests at each update; the worst case for a cache.

    Source: Shen et al. 2024 (arXiv 2411.18424), random pattern.
    """

    def __init__(self, *, seed: int) -> None:
        """Begin the first round.

        Args:
            seed: seed of the draws; requests of equal rank of arrival have equal priorities under
                equal seeds.
        """
        self.seed = seed
        self._turn = 0

    def update(self, now_s: float) -> None:
        """Draw anew."""
        self._turn += 1

    def key(self, request: Request, now_s: float) -> tuple[float, ...]:
        """Return (this round's draw, rank of arrival)."""
        return (_uniform(self.seed, self._turn, request.order), request.order)


class MarkovPriorities(RandomPriorities):
    """Requests served since the last update stay on top with some probability; others draw anew.

    Source: Shen et al. 2024 (arXiv 2411.18424), Markov pattern.
    """

    def __init__(self, *, p_stay: float, seed: int) -> None:
        """Begin the first round.

        Args:
            p_stay: probability that a request that was just served goes before those that were not;
                0 is `RandomPriorities`.
            seed: seed of the draws.

        Raises:
            ConfigError: `p_stay` is not a probability.
        """
        if not 0 <= p_stay <= 1:
            raise ConfigError(
                f"p_stay is {p_stay}, but must be in [0, 1]", hint="give a probability"
            )
        super().__init__(seed=seed)
        self.p_stay = p_stay
        self._served: set[str] = set()
        self._stays: set[str] = set()

    def served(self, request: Request, prefill_tokens: int, decode_tokens: int) -> None:
        """Remember who ran."""
        self._served.add(request.id)

    def leave(self, request: Request) -> None:
        """Forget a request."""
        self._served.discard(request.id)
        self._stays.discard(request.id)

    def update(self, now_s: float) -> None:
        """Draw anew, and fix who counts as just served."""
        super().update(now_s)
        self._stays, self._served = self._served, set()

    def key(self, request: Request, now_s: float) -> tuple[float, ...]:
        """Return (whether it does not stay on top, this round's draw, rank of arrival)."""
        stays = (
            request.id in self._stays
            and _uniform(self.seed + 1, self._turn, request.order) < self.p_stay
        )
        return (0.0 if stays else 1.0, *super().key(request, now_s))
