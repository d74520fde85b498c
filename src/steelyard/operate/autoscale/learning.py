"""What a scaler learns as it goes: how often it misses, what that costs, what a replica carries."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import require

__all__ = ["AllowedMisses", "CapacityPosterior", "MissPrice"]

_LEAST_PRICE = 1.0
"""At the price of one replica none is held against a miss that is not certain."""


@dataclass(slots=True, kw_only=True)
class AllowedMisses:
    """A Beta posterior of how often the promise is missed, and the share that is allowed next.

    Attributes:
        target: share that the promise allows.
        weight: steps of experience that the prior stands for; its mean is the target.
        forgetting: factor on all experience with each step, prior and all.
    """

    target: float
    weight: float = 20.0
    forgetting: float = 0.99
    _missed: float = field(init=False)
    _kept: float = field(init=False)

    def __post_init__(self) -> None:
        require(
            self,
            target=(0 < self.target < 1, "in (0, 1)"),
            weight=(self.weight > 0, "above 0"),
            forgetting=(0 < self.forgetting <= 1, "in (0, 1]"),
        )
        self._missed = self.target * self.weight
        self._kept = (1 - self.target) * self.weight

    @property
    def mean(self) -> float:
        """Posterior mean of the share that is missed."""
        return self._missed / (self._missed + self._kept)

    def observe(self, missed: float) -> None:
        """Learn from a step, of which a share in [0, 1] was missed."""
        self._missed = self._missed * self.forgetting + missed
        self._kept = self._kept * self.forgetting + 1 - missed

    def next(self) -> float:
        """Return the share to allow next: less than the target where too much was missed.

        Returns:
            target x target / posterior mean, within [target / 10, 3 x target].

        Source: Luo et al. 2024, arXiv 2408.01000, the adaptive decision stage; its form is a
            reconstruction, as the paper does not give one.
        """
        wanted = self.target * self.target / max(self.mean, 1e-12)
        return min(max(wanted, self.target / 10), 3 * self.target)


@dataclass(slots=True, kw_only=True)
class MissPrice:
    """What a step that is missed costs, in replicas that are held for a step.

    The price rises with what is missed and falls with what is kept, so that in the long run as much
    is missed as the promise allows, wherever that spares most.

    Attributes:
        target: share that the promise allows.
        most: highest price: that of holding all replicas against any miss.
        rate: how fast it moves: a step that is kept lowers it by this share.
        value: the price; NaN before the first forecast.

    Source: dual ascent on the Lagrangian of "fewest replicas such that the share of missed steps is
        allowed", with steps in the logarithm as in exponentiated gradient (Kivinen and Warmuth
        1997); the rule follows the long-run share as Gibbs and Candes 2021, arXiv 2106.00263.
    """

    target: float
    most: float
    rate: float = 0.02
    value: float = field(init=False, default=float("nan"))

    def __post_init__(self) -> None:
        require(
            self,
            target=(0 < self.target < 1, "in (0, 1)"),
            most=(self.most > _LEAST_PRICE, f"above {_LEAST_PRICE}"),
            rate=(0 < self.rate < 1, "in (0, 1)"),
        )

    def begin(self, needed: NDArray[np.float64]) -> None:
        """Take the price at which the allowed share of one forecast would be missed.

        Args:
            needed: [n] samples of the number of replicas that is needed.
        """
        # There the density of the need times the price is 1: a replica more spares what it costs.
        wide = np.quantile(needed, [1 - 1.5 * self.target, 1 - 0.5 * self.target])
        self._set(float(wide[1] - wide[0]) / self.target)

    def observe(self, missed: float) -> None:
        """Learn from a step, of which a share in [0, 1] was missed."""
        if not np.isnan(self.value):
            self._set(self.value * np.exp(self.rate * (missed - self.target) / self.target))

    def _set(self, value: float) -> None:
        """Hold the price in its range: one that fell without end could not rise in time."""
        self.value = min(max(value, _LEAST_PRICE), self.most)


@dataclass(slots=True, kw_only=True)
class CapacityPosterior:
    """A normal-gamma posterior of what a replica carries at full use.

    Attributes:
        mean: prior mean capacity, in the unit of the demand.
        spread: prior standard deviation, as a share of the mean.
        weight: observations that the prior stands for.

    Source: Murphy 2007, "Conjugate Bayesian analysis of the Gaussian distribution", section 3.
    """

    mean: float
    spread: float = 0.02
    weight: float = 10.0
    _shape: float = field(init=False)
    _rate: float = field(init=False)

    def __post_init__(self) -> None:
        require(
            self,
            mean=(self.mean > 0, "above 0"),
            spread=(self.spread > 0, "above 0"),
            weight=(self.weight > 0, "above 0"),
        )
        self._shape = self.weight / 2 + 1
        self._rate = self.weight / 2 * (self.spread * self.mean) ** 2

    def observe(self, capacity: float) -> None:
        """Learn from load / (ready x utilization) of a step."""
        gap = capacity - self.mean
        self._rate += self.weight / (self.weight + 1) * gap * gap / 2
        self._shape += 0.5
        self.mean += gap / (self.weight + 1)
        self.weight += 1

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Draw the capacity of a step from its predictive distribution, a Student-t.

        Args:
            rng: source of randomness.
            count: draws.

        Returns:
            [count] capacities, at least a twentieth of the mean.
        """
        scale = np.sqrt(self._rate * (self.weight + 1) / (self._shape * self.weight))
        drawn = self.mean + scale * rng.standard_t(2 * self._shape, count)
        return np.maximum(drawn, self.mean / 20)
