"""The number of replicas of least expected loss under a promise, learned as it goes."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import require
from steelyard.operate.autoscale.scaler import DemandForecast, ServiceState, peak_samples
from steelyard.sim.autoscale import Service

__all__ = ["AllowedMisses", "BayesianScaler", "CapacityPosterior"]

_DRAWS = 4
"""Draws of the capacity beside each sample of the demand."""


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

    def observe(self, is_missed: bool) -> None:
        """Learn from a step."""
        self._missed = self._missed * self.forgetting + is_missed
        self._kept = self._kept * self.forgetting + (not is_missed)

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


class BayesianScaler:
    """Chooses the replicas of least expected loss such that the promise is kept often enough.

    loss(r) = E[(r - z)+] + miss_ratio E[(z - r)+] + switch_cost |r - r_now|, where z is the number
    of replicas that is needed: demand / (capacity x target utilization), its demand from the
    forecast and its capacity from the posterior; subject to P(z > r) <= the share of
    `AllowedMisses`. Replicas are let go at most once per cooldown.

    Source: Luo et al. 2024, arXiv 2408.01000, second stage, reconstructed from its abstract and
        standard decision theory.
    """

    def __init__(
        self,
        service: Service,
        *,
        step_s: float,
        lead_steps: int = 1,
        miss_ratio: float | None = None,
        switch_cost: float = 0.0,
        cooldown_s: float = 300.0,
        adapts: bool = True,
        seed: int = 0,
    ) -> None:
        """Begin with the priors.

        Args:
            service: the service.
            step_s: seconds between decisions.
            lead_steps: steps that a decision has to cover: until the replicas of the next decision
                are ready.
            miss_ratio: price of a missing replica over that of one too many. None lets the loss
                alone allow three times the misses, so that the promise decides within its range.
            switch_cost: price of changing by one replica, in replica-steps.
            cooldown_s: least seconds between two decisions that let replicas go.
            adapts: False keeps the share of misses and the capacity as they are at first.
            seed: seed of the draws of the capacity.
        """
        self.service, self.period_s, self.lead_steps = service, step_s, lead_steps
        loosest = min(3 * service.allowed, 0.5)
        self.miss_ratio = (1 - loosest) / loosest if miss_ratio is None else miss_ratio
        self.switch_cost, self.cooldown_s, self.adapts = switch_cost, cooldown_s, adapts
        self.misses = AllowedMisses(target=service.allowed)
        self.capacity = CapacityPosterior(mean=service.capacity)
        self._rng = np.random.default_rng(seed)
        self._let_go_s = -np.inf

    def decide(self, now_s: float, forecast: DemandForecast | None, state: ServiceState) -> int:
        """Return the number of replicas; as many as now without a forecast.

        Args:
            now_s: time.
            forecast: demand of the next steps.
            state: what is known; its utilization and demand are learned from.

        Returns:
            A number within the service's limits.
        """
        if self.adapts:
            self._learn(state)
        if forecast is None:
            return state.replicas
        wanted = self.best(self._needed(forecast), state.replicas)
        if wanted < state.replicas:
            if now_s - self._let_go_s < self.cooldown_s:
                return state.replicas
            self._let_go_s = now_s
        return wanted

    def _learn(self, state: ServiceState) -> None:
        """Learn misses and capacity from the step that has ended."""
        use = state.utilization
        if not np.isfinite(use) or use <= 0:
            return
        self.misses.observe(use > self.service.target_utilization)
        if np.isfinite(state.demand) and state.ready and not state.starting:
            # With replicas that were starting, the load had been shared by fewer for a while.
            self.capacity.observe(state.demand / (state.ready * use))

    def _needed(self, forecast: DemandForecast) -> NDArray[np.float64]:
        """Return sorted samples of the number of replicas that is needed."""
        demand = np.repeat(peak_samples(forecast, self.lead_steps), _DRAWS)
        capacity = self.capacity.draw(self._rng, len(demand))
        return np.sort(demand / (capacity * self.service.target_utilization))

    def best(self, needed: NDArray[np.float64], current: int) -> int:
        """Return the number of least loss among those that keep the promise often enough.

        Args:
            needed: [n] sorted samples of the number of replicas that is needed.
            current: replicas now.

        Returns:
            A number within the service's limits; the largest where none keeps the promise.
        """
        low = self.service.clipped(np.floor(needed[0]))
        high = self.service.clipped(needed[-1])
        tried = np.arange(low, high + 1)
        count = len(needed)
        below = np.searchsorted(needed, tried, side="right")
        sums = np.concatenate([[0.0], np.cumsum(needed)])
        idle = (tried * below - sums[below]) / count
        short = (sums[-1] - sums[below] - tried * (count - below)) / count
        loss = idle + self.miss_ratio * short + self.switch_cost * np.abs(tried - current)
        allowed = self.misses.next() if self.adapts else self.service.allowed
        keeps = (count - below) / count <= allowed
        if not keeps.any():
            return high
        return int(tried[keeps][np.argmin(loss[keeps])])
