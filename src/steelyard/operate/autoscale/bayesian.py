"""The number of replicas of least expected loss under a promise, learned as it goes."""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.operate.autoscale.forecasting import DemandForecast
from steelyard.operate.autoscale.learning import AllowedMisses, CapacityPosterior, MissPrice
from steelyard.operate.autoscale.scaler import ServiceState, peak_samples
from steelyard.sim.autoscale import Service

__all__ = ["BayesianScaler"]

_DRAWS = 4
"""Draws of the capacity beside each sample of the demand."""
_STEADY = 50
"""Samples of a load that stays as it is."""
_IN_TIME = 0.9
"""Share of the replicas that are ready when a new one counts as ready."""


class BayesianScaler:
    """Chooses the replicas of least expected loss such that the promise is kept often enough.

    z is the number of replicas that is needed: demand / (capacity x target utilization), its demand
    from the forecast and its capacity from the posterior.

    A promise in the long run has loss(r) = r + price P(z > r), its price from `MissPrice`: misses
    are left where avoiding them is dearest, such as of peaks that nobody can foresee. Kept with
    each decision it has loss(r) = E[(r - z)+] + miss_ratio E[(z - r)+], subject to P(z > r) <= the
    share of `AllowedMisses`. To either, switch_cost |r - r_now| is added. Replicas are let go at
    most once per cooldown.

    With a period shorter than a step it works on two clocks. The forecast is of steps; between
    their ends the load of now is held, and the forecast of the next step counts from when replicas
    that are asked for now would not be ready before it, or those that are let go not be back. A
    step that brings more than was planned for is then missed until replicas have started, not to
    its end, so that as much more of the steps may do so.

    Source: Luo et al. 2024, arXiv 2408.01000, second stage, reconstructed from its abstract and
        standard decision theory; there the promise is kept with each decision.
    """

    def __init__(
        self,
        service: Service,
        *,
        step_s: float,
        lead_steps: int = 1,
        period_s: float | None = None,
        promise: Literal["long run", "each decision"] = "long run",
        miss_ratio: float | None = None,
        switch_cost: float = 0.0,
        cooldown_s: float = 300.0,
        adapts: bool = True,
        seed: int = 0,
    ) -> None:
        """Begin with the priors.

        Args:
            service: the service.
            step_s: seconds of a step.
            lead_steps: steps that a decision has to cover where nothing is read between them: until
                the replicas of the next decision are ready.
            period_s: seconds between decisions; a step when None. Shorter ones need a meter "load".
            promise: what the allowed share is of: all steps in the long run, or each decision.
            miss_ratio: price of a missing replica over that of one too many, where the promise is
                of each decision. None lets the loss alone allow three times the misses, so that the
                promise decides within its range.
            switch_cost: price of changing by one replica, in replica-steps.
            cooldown_s: least seconds between two decisions that let replicas go.
            adapts: False keeps price, share of misses and capacity as they are at first.
            seed: seed of the draws of the capacity.

        Raises:
            ConfigError: there is no such promise.
        """
        if promise not in ("long run", "each decision"):
            raise ConfigError(f"promise {promise!r}", hint="give 'long run' or 'each decision'")
        self.service, self.step_s, self.lead_steps = service, step_s, lead_steps
        self.period_s = step_s if period_s is None else min(period_s, step_s)
        self._reaction_s = service.startup.quantile_s(_IN_TIME) + self.period_s
        self._is_fast = self.period_s < step_s
        self._steps_per_miss = min(self._reaction_s / step_s, 1.0) if self._is_fast else 1.0
        loosest = min(3 * service.allowed / self._steps_per_miss, 0.5)
        self.miss_ratio = (1 - loosest) / loosest if miss_ratio is None else miss_ratio
        self.switch_cost, self.cooldown_s, self.adapts = switch_cost, cooldown_s, adapts
        self.misses = AllowedMisses(target=service.allowed)
        most = max(service.max_replicas, 2) / service.allowed
        self.price = MissPrice(target=service.allowed, most=most)
        self._is_priced = promise == "long run"
        self.capacity = CapacityPosterior(mean=service.capacity)
        self._rng = np.random.default_rng(seed)
        self._let_go_s = -np.inf
        self._seen = self._missed = 0
        self._forecast: DemandForecast | None = None
        self._saw = (0, float("nan"), 0)
        self._best = 0

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
        # A step that has just begun is seen with the next reading: to let go before it saves the
        # cost of one period and risks that of a start-up.
        is_blind = self._is_fast and np.isnan(state.load) and state.elapsed_s < 2 * self.period_s
        if forecast is None or is_blind:
            return state.replicas
        wanted = self._wanted(forecast, state)
        if wanted < state.replicas:
            if now_s - self._let_go_s < self.cooldown_s:
                return state.replicas
            self._let_go_s = now_s
        return wanted

    def _learn(self, state: ServiceState) -> None:
        """Learn from what was read, and from each step that has ended."""
        use = state.utilization
        if np.isfinite(use):
            # An idle service keeps its promise: left out, a few busy steps would stand for all.
            self._seen += 1
            self._missed += use > self.service.target_utilization
        # With replicas that were starting, the load had been shared by fewer for a while.
        if use > 0 and np.isfinite(state.demand) and state.ready and not state.starting:
            self.capacity.observe(state.demand / (state.ready * use))
        if self._seen and (np.isfinite(state.demand) or not self._is_fast):
            share = self._missed / self._seen
            self.misses.observe(share)
            self.price.observe(share)
            self._seen = self._missed = 0

    def _wanted(self, forecast: DemandForecast, state: ServiceState) -> int:
        """Return the best number; the one of the last decision where nothing new is known."""
        steps = self.lead_steps if np.isnan(state.load) else self._steps_ahead(state)
        seen = (steps, state.load, state.replicas if self.switch_cost else 0)
        # Between two steps hundreds of decisions see the same: drawn anew, each would differ by
        # chance, and replicas would come and go for nothing.
        if not self._is_fast or self._forecast is not forecast or self._saw != seen:
            needed = self._needed(self._peaks(forecast, steps, state.load))
            self._forecast, self._saw = forecast, seen
            self._best = self.best(needed, state.replicas)
        return self._best

    def _steps_ahead(self, state: ServiceState) -> int:
        """Return how many steps after this one a decision has to cover."""
        # What is let go now cannot be back before it has started, nor what comes be let go before
        # the cooldown is over.
        until_s = state.elapsed_s + max(self._reaction_s, self.cooldown_s)
        return math.ceil(until_s / self.step_s - 1e-9) - 1

    @staticmethod
    def _peaks(forecast: DemandForecast, steps: int, load: float) -> NDArray[np.float64]:
        """Return samples of the largest of the load now and the demand of the next steps."""
        ahead = peak_samples(forecast, steps) if steps else np.full(_STEADY, load)
        return ahead if np.isnan(load) else np.maximum(ahead, load)

    def _needed(self, demand: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return sorted samples of the number of replicas that samples of the demand need."""
        demand = np.repeat(demand, _DRAWS)
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
        below = np.searchsorted(needed, tried, side="right")
        missed = (len(needed) - below) / len(needed)
        loss = self._loss(needed, tried, below, missed)
        keeps = missed <= self._most_missed()
        if not keeps.any():
            return high
        loss += self.switch_cost * np.abs(tried - current)
        return int(tried[keeps][np.argmin(loss[keeps])])

    def _loss(
        self,
        needed: NDArray[np.float64],
        tried: NDArray[np.int64],
        below: NDArray[np.int64],
        missed: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return the expected loss of each number that is tried, without that of a change."""
        if self._is_priced:
            if np.isnan(self.price.value):
                self.price.begin(needed)
            return tried + self.price.value * missed
        count = len(needed)
        sums = np.concatenate([[0.0], np.cumsum(needed)])
        idle = (tried * below - sums[below]) / count
        short = (sums[-1] - sums[below] - tried * (count - below)) / count
        return idle + self.miss_ratio * short

    def _most_missed(self) -> float:
        """Return the share of the steps that may need more than is planned for."""
        share = self.misses.next() if self.adapts else self.service.allowed
        # However dear its peaks are or soon a miss is mended, half of the steps get what they need
        # from the start.
        if self._is_priced:
            return max(share, 0.5)
        return max(share, min(share / self._steps_per_miss, 0.5))
