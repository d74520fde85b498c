"""The recommender of the vertical pod autoscaler, put to a number of replicas."""

import numpy as np

from steelyard.errors import require
from steelyard.operate.autoscale.forecasting import DemandForecast
from steelyard.operate.autoscale.scaler import ServiceState
from steelyard.sim.autoscale import Service

__all__ = ["DecayingHistogram", "RecommenderVPA"]

_DAY_S = 86_400.0
_SAMPLES_A_DAY = 1440.0
_HALF_DAY_S = _DAY_S / 2
_RENORMAL = 100.0
"""Halvings after which weights are scaled back, before they leave the range of numbers."""


class DecayingHistogram:
    """A histogram whose older samples weigh less, by half for each half-life.

    Source: Kubernetes autoscaler 1.5, vertical-pod-autoscaler/pkg/recommender/util:
        decaying_histogram.go and histogram_options.go.
    """

    def __init__(
        self,
        *,
        half_life_s: float = _DAY_S,
        first: float = 0.01,
        growth: float = 1.05,
        largest: float = 1e4,
    ) -> None:
        """Make an empty histogram.

        Args:
            half_life_s: seconds in which a weight halves, above 0.
            first: width of the first bucket, above 0.
            growth: width of a bucket over that of the one before, above 1.
            largest: value from which all fall into the last bucket.

        Raises:
            ConfigError: a value is out of range.
        """
        self.half_life_s, self.first, self.growth = half_life_s, first, growth
        require(
            self,
            half_life_s=(half_life_s > 0, "above 0"),
            first=(first > 0, "above 0"),
            growth=(growth > 1, "above 1"),
        )
        count = int(np.log(largest * (growth - 1) / first + 1) / np.log(growth)) + 2
        # The n-th bucket starts at the sum of the widths before it.
        self._starts = first * (growth ** np.arange(count + 1) - 1) / (growth - 1)
        self._weights = np.zeros(count)
        self._reference_s: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no sample was added."""
        return not self._weights.any()

    def add(self, value: float, now_s: float, weight: float = 1.0) -> None:
        """Add a sample.

        Args:
            value: 0 or more.
            now_s: its time; the weights of others are relative to it.
            weight: weight that it has when it is new.
        """
        if self._reference_s is None:
            self._reference_s = now_s
        halvings = (now_s - self._reference_s) / self.half_life_s
        if halvings > _RENORMAL:
            self._weights *= 2.0**-halvings
            self._reference_s, halvings = now_s, 0.0
        place = int(np.searchsorted(self._starts, value, side="right")) - 1
        self._weights[min(max(place, 0), len(self._weights) - 1)] += weight * 2.0**halvings

    def percentile(self, level: float) -> float:
        """Return the end of the bucket in which a share of the weight is reached, 0 when empty."""
        if self.is_empty:
            return 0.0
        sums = np.cumsum(self._weights)
        place = int(np.searchsorted(sums, level * sums[-1], side="left"))
        return float(self._starts[min(place + 1, len(self._weights) - 1)])


class RecommenderVPA:
    """As many replicas as a percentile of the decaying histogram of loads needs, and 15 %.

    The number changes where it lies outside the recommended bounds, or, after half a day without a
    change, where it is off by 10 %. The bounds are wide at first and close with experience.

    Source: Kubernetes autoscaler 1.5, vertical-pod-autoscaler: recommender/logic/estimator.go and
        recommender.go, updater/priority. There the histogram is of a container's use; here it is
        of the service's load, in replicas.
    """

    def __init__(
        self,
        service: Service,
        *,
        step_s: float,
        level: float = 0.9,
        margin: float = 0.15,
        half_life_s: float = _DAY_S,
    ) -> None:
        """Make the scaler.

        Args:
            service: the service.
            step_s: seconds between decisions.
            level: percentile that is recommended, in (0, 1).
            margin: share that is added.
            half_life_s: seconds in which a load's weight halves.
        """
        self.service, self.period_s, self.level, self.margin = service, step_s, level, margin
        self._loads = DecayingHistogram(half_life_s=half_life_s)
        self._num_seen = 0
        self._first_s = self._changed_s = float("nan")

    def bounds(self, now_s: float) -> tuple[float, float, float]:
        """Return lower bound, target and upper bound, in replicas.

        Args:
            now_s: time; with the number of samples it says how much is known.

        Returns:
            Three numbers that rise.
        """
        days = min((now_s - self._first_s) / _DAY_S, self._num_seen / _SAMPLES_A_DAY)
        # No experience at all would divide by 0; a thousandth of a sample is none too.
        known = max(days, 1e-6)
        low, target, high = (
            self._loads.percentile(level) * (1 + self.margin) for level in (0.5, self.level, 0.95)
        )
        return low * (1 + 0.001 / known) ** -2.0, target, max(high * (1 + 1 / known), target)

    def decide(self, now_s: float, forecast: DemandForecast | None, state: ServiceState) -> int:
        """Return the recommended number where the one now is too far from it.

        Args:
            now_s: time.
            forecast: not used.
            state: its demand is added to the histogram.

        Returns:
            A number within the service's limits.
        """
        if np.isfinite(state.demand):
            self._loads.add(state.demand / self.service.load_per_replica, now_s)
            self._num_seen += 1
            if np.isnan(self._first_s):
                self._first_s = self._changed_s = now_s
        if self._loads.is_empty:
            return state.replicas
        low, target, high = self.bounds(now_s)
        wanted = self.service.clipped(target)
        is_outside = not low <= state.replicas <= high
        is_off = abs(target - state.replicas) >= 0.1 * max(state.replicas, 1)
        if wanted != state.replicas and (
            is_outside or (is_off and now_s - self._changed_s > _HALF_DAY_S)
        ):
            self._changed_s = now_s
            return wanted
        return state.replicas
