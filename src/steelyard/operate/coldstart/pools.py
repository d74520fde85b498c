"""How many pods a pool reserves: a fixed number, or a quantile of a forecast of its needs."""

import warnings
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import require
from steelyard.operate.forecast.blending import BlendedForecaster
from steelyard.operate.forecast.forecaster import Forecaster
from steelyard.operate.forecast.guarded import GuardedForecaster
from steelyard.operate.forecast.simple import RecentQuantiles, SeasonalProfile
from steelyard.operate.series import SeriesSet

__all__ = ["FixedPool", "ForecastPool", "blend_of_seasons"]

_HOUR_S = 3600.0


@dataclass(frozen=True)
class FixedPool:
    """Reserves the same number always.

    Attributes:
        count: pods.
    """

    count: int

    def __post_init__(self) -> None:
        require(self, count=(self.count >= 0, "0 or more"))

    def size(self, needs: NDArray[np.int64]) -> int:
        """Return the number."""
        return self.count


def blend_of_seasons(step_s: float) -> BlendedForecaster:
    """Return the blend that suits needs of pools: timers fire at exact times of an hour.

    Args:
        step_s: time between decisions, seconds; an hour is a whole number of steps.

    Returns:
        Profiles of the hour over one day and over two, and recent quantiles, weighted by how each
        forecast the last hours; call `fit` first, or let a `ForecastPool` do so.
    """
    hour = round(_HOUR_S / step_s)
    parts = [SeasonalProfile(hour, seasons=count) for count in (24, 48)]
    return BlendedForecaster([*parts, RecentQuantiles(hour)], horizon=hour)


@dataclass(kw_only=True, eq=False)
class ForecastPool:
    """Reserves a quantile of the forecast need, refreshed as needs come in.

    A pod that is ordered comes in after the pool's refill time, so the largest quantile of the
    coming step and of those that a refill spans is reserved. It remembers its forecast and so
    serves one pool; a run makes a copy for each.

    Attributes:
        forecaster: of the most pods needed in a step; recent quantiles stand in where it fails,
            with a warning.
        step_s: time between decisions, seconds; as the platform's.
        level: quantile that is reserved, in (0, 1).
        lead_steps: steps that a refill spans beyond the coming one.
        refresh_steps: decisions that one forecast serves.
        refit_steps: decisions from one fit of the forecaster to the next.
        fewest_steps: needs known before the first forecast; up to then the largest so far is
            reserved.
        first: pods at least, up to then.

    Source: Joosen et al. 2025 (arXiv 2410.06145), section 5, names predicted sizes of pools as an
        opportunity; the method is this package's.
    """

    forecaster: Forecaster
    step_s: float
    level: float = 0.96
    lead_steps: int = 1
    refresh_steps: int = 60
    refit_steps: int = 1440
    fewest_steps: int = 120
    first: int = 1
    _guarded: GuardedForecaster = field(init=False, repr=False)
    _targets: NDArray[np.int64] = field(init=False, repr=False)
    _fitted: int = field(default=-1, init=False, repr=False)
    _origin: int = field(default=-1, init=False, repr=False)

    def __post_init__(self) -> None:
        require(
            self,
            step_s=(self.step_s > 0, "above 0"),
            level=(0 < self.level < 1, "in (0, 1)"),
            lead_steps=(self.lead_steps >= 0, "0 or more"),
            refresh_steps=(self.refresh_steps >= 1, "at least 1"),
            refit_steps=(self.refit_steps >= 1, "at least 1"),
            fewest_steps=(self.fewest_steps >= 1, "at least 1"),
            first=(self.first >= 0, "0 or more"),
        )
        self._guarded = GuardedForecaster(self.forecaster)
        self._targets = np.zeros(0, dtype=np.int64)

    def size(self, needs: NDArray[np.int64]) -> int:
        """Return the pods to reserve for the coming step."""
        count = len(needs)
        if count < self.fewest_steps:
            return max(self.first, int(needs.max(initial=0)))
        # Forecasts begin at fixed steps, so that what is decided depends on the needs alone.
        origin = max(count // self.refresh_steps * self.refresh_steps, self.fewest_steps)
        if origin != self._origin:
            self._forecast(needs[:origin])
            self._origin = origin
        return int(self._targets[count - origin])

    def _forecast(self, needs: NDArray[np.int64]) -> None:
        """Forecast the needs of the next steps, and set what each reserves."""
        series = SeriesSet.from_arrays([needs], step_s=self.step_s, ids=["needs"])
        if self._fitted < 0 or len(needs) - self._fitted >= self.refit_steps:
            self._guarded.fit(series)
            self._fitted = len(needs)
        made = self._guarded.predict(series, self.refresh_steps + self.lead_steps)[0]
        if self._guarded.failures:
            warnings.warn(f"a pool is sized by {made.source}", RuntimeWarning, stacklevel=2)
            self._guarded.failures.clear()
        wanted = np.maximum(np.ceil(made.quantile(self.level) - 1e-9), 0.0)
        spans = np.lib.stride_tricks.sliding_window_view(wanted, self.lead_steps + 1)
        self._targets = spans.max(axis=1).astype(np.int64)
