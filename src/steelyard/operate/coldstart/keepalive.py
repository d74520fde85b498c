"""How long an idle pod stays: fixed, by a histogram of gaps, by timers, by utility, by oracle."""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import require
from steelyard.sim.serverless.policies import (
    KEEP_FIXED,
    KEEP_HISTOGRAM,
    KEEP_ORACLE,
    KEEP_UTILITY,
    FunctionState,
    IdlePlan,
    Rule,
)
from steelyard.sim.serverless.workload import Workload

__all__ = ["FixedKeepAlive", "HybridHistogram", "KeepAliveOracle", "TimerAware", "UtilityAware"]

_NO_EDGES = np.array([0.0, 60.0])


@dataclass(frozen=True, kw_only=True)
class FixedKeepAlive:
    """Keeps every idle pod for the same time, as public platforms do.

    Attributes:
        default_s: seconds; 60 in arXiv 2410.06145.
    """

    default_s: float = 60.0
    edges_s: NDArray[np.float64] = field(default_factory=lambda: _NO_EDGES)
    is_cached: bool = True

    def __post_init__(self) -> None:
        require(self, default_s=(self.default_s >= 0, "0 or more"))

    def plan(self, state: FunctionState, now_s: float) -> IdlePlan:
        """Return the fixed time."""
        return IdlePlan(self.default_s)

    def rule(self) -> Rule:
        """Return this policy as numbers."""
        return Rule(KEEP_FIXED, (self.default_s, 0.0, 0.0))


@dataclass(frozen=True, kw_only=True)
class HybridHistogram:
    """Unloads at once, loads again before the next call is likely, and keeps until it is not.

    Gaps are counted by minute. Where they say nothing (an even histogram) pods stay for a fixed
    time; where most lie beyond the histogram, the smoothed time between arrivals is the forecast
    (the publication fits an ARIMA model there).

    Attributes:
        default_s: fixed time.
        head: level of the gap before which no call is awaited.
        tail: level of the gap after which none is.
        margin: margin by which both are widened.
        cv_least: coefficient of variation of the counts from which they say something.
        outside_most: fraction of gaps beyond the histogram from which the forecast is used.
        forecast_margin: margin by which the forecast is widened.
        minutes: bins.

    Source: Shahrad et al. 2020 (arXiv 2003.03423), section 4.2.
    """

    default_s: float = 60.0
    head: float = 0.05
    tail: float = 0.99
    margin: float = 0.10
    cv_least: float = 2.0
    outside_most: float = 0.5
    forecast_margin: float = 0.15
    minutes: int = 240
    is_cached: bool = True

    def __post_init__(self) -> None:
        require(
            self,
            default_s=(self.default_s >= 0, "0 or more"),
            tail=(0 < self.head <= self.tail <= 1, "a level in [head, 1]"),
            minutes=(self.minutes >= 1, "at least 1"),
        )

    @property
    def edges_s(self) -> NDArray[np.float64]:
        """Edges of the minutes."""
        return 60.0 * np.arange(self.minutes + 1, dtype=np.float64)

    def plan(self, state: FunctionState, now_s: float) -> IdlePlan:
        """Plan by forecast, by fixed time, or by the head and tail of the gaps."""
        inside = state.num_gaps - state.num_outside
        # Levels of a histogram that most gaps lie beyond would be those of the rare short ones.
        if state.num_gaps and state.num_outside > self.outside_most * state.num_gaps:
            expected_s = max(state.mean_gap_s - state.mean_duration_s, 0.0)
            early, late = 1.0 - self.forecast_margin, 1.0 + self.forecast_margin
            return IdlePlan(0.0, early * expected_s, late * expected_s)
        if not self._is_telling(state, inside):
            return IdlePlan(self.default_s)
        seen = np.cumsum(state.gaps)
        head = int(np.argmax(seen >= self.head * inside))
        tail = int(np.argmax(seen >= self.tail * inside))
        prewarm_s = float(state.edges_s[head]) * (1.0 - self.margin)
        until_s = float(state.edges_s[tail + 1]) * (1.0 + self.margin)
        # A call that may come within the first minute leaves no time to start anew: the pod stays.
        return IdlePlan(0.0, prewarm_s, until_s) if prewarm_s > 0 else IdlePlan(until_s)

    def _is_telling(self, state: FunctionState, inside: int) -> bool:
        """Say whether counts vary enough over the bins."""
        if not inside:
            return False
        mean = inside / len(state.gaps)
        variance = max(state.sum_squares / len(state.gaps) - mean * mean, 0.0)
        return math.sqrt(variance) >= self.cv_least * mean

    def rule(self) -> Rule:
        """Return this policy as numbers."""
        values = (self.default_s, 0.0, 0.0, self.head, self.tail, self.margin)
        return Rule(
            KEEP_HISTOGRAM, (*values, self.cv_least, self.outside_most, self.forecast_margin)
        )


@dataclass(frozen=True, kw_only=True)
class UtilityAware:
    """Keeps a pod as long as the start that it saves is worth more than the pod.

    Of all times to keep, it takes the one with the largest expected gain by the function's own gaps
    so far: a saved start is worth its wait and the pod's own time to start.

    Attributes:
        default_s: what pods stay while too few gaps are known, or while others of the function run.
        wait_cost: pod-seconds that a second of a request's wait is worth.
        least_gaps: gaps from which they are used.
        longest_s: longest time to keep.
    """

    default_s: float = 60.0
    wait_cost: float = 30.0
    least_gaps: int = 5
    longest_s: float = 14_400.0
    is_cached: bool = True

    def __post_init__(self) -> None:
        require(
            self,
            default_s=(self.default_s >= 0, "0 or more"),
            wait_cost=(self.wait_cost >= 0, "0 or more"),
            least_gaps=(self.least_gaps >= 1, "at least 1"),
            longest_s=(self.longest_s > 1, "above 1"),
        )

    @property
    def edges_s(self) -> NDArray[np.float64]:
        """Edges of 64 bins: 0, then evenly from 1 s on the logarithm."""
        return np.append(0.0, np.geomspace(1.0, self.longest_s, 64))

    def plan(self, state: FunctionState, now_s: float) -> IdlePlan:
        """Return the time with the largest expected gain."""
        if state.num_gaps < self.least_gaps:
            return IdlePlan(self.default_s)
        # A pod that starts is paid for as one that idles, hence one more than the wait is worth.
        saved_s = state.start_mean_s * (self.wait_cost + 1.0)
        ends_s = state.edges_s[1:]
        seen = np.cumsum(state.gaps)
        waited_s = np.cumsum(state.gaps * (state.edges_s[:-1] + ends_s) / 2.0)
        # A gap longer than the time to keep costs all of that time and saves nothing.
        gains = seen * saved_s - waited_s - (state.num_gaps - seen) * ends_s
        best = int(np.argmax(gains))
        return IdlePlan(float(ends_s[best]) if gains[best] > 0 else 0.0)

    def rule(self) -> Rule:
        """Return this policy as numbers."""
        return Rule(
            KEEP_UTILITY, (self.default_s, 0.0, 0.0, self.wait_cost, float(self.least_gaps))
        )


@dataclass(frozen=True, kw_only=True)
class TimerAware:
    """Drops pods of timers at once where `TimerPrewarm` brings the next one in time.

    Pods of a timer whose period is short against its start-up stay; other functions follow `base`.

    Attributes:
        base: keep-alive of functions without a timer.
        margin_s: time before and after a timer's call; as in `TimerPrewarm`.
    """

    base: FixedKeepAlive | HybridHistogram | UtilityAware = field(default_factory=FixedKeepAlive)
    margin_s: float = 1.0
    is_cached: bool = True

    def __post_init__(self) -> None:
        require(self, margin_s=(self.margin_s >= 0, "0 or more"))

    @property
    def default_s(self) -> float:
        """Fixed time of the base."""
        return self.base.default_s

    @property
    def edges_s(self) -> NDArray[np.float64]:
        """Bins of the base."""
        return self.base.edges_s

    def plan(self, state: FunctionState, now_s: float) -> IdlePlan:
        """Plan by the timer where there is one."""
        if not state.period_s:
            return self.base.plan(state, now_s)
        # A shorter period would have its next pod start before this one has gone.
        if state.period_s > 2 * (state.lead_s + self.margin_s):
            return IdlePlan(0.0)
        return IdlePlan(state.period_s + self.margin_s)

    def rule(self) -> Rule:
        """Return this policy as numbers."""
        kind, values = self.base.rule()
        return Rule(kind, (values[0], 1.0, self.margin_s, *values[3:]))


@dataclass(frozen=True)
class KeepAliveOracle:
    """Knows when each function is called next: what better forecasts could reach.

    A pod is dropped until shortly before the next call, or kept where that is sooner than a start.
    Requests that run at the same time still start pods.

    Attributes:
        workload: the requests to come.
        margin_s: time before and after a call.
        default_s: what pods stay while others of the function run.
    """

    workload: Workload
    margin_s: float = 0.1
    default_s: float = 60.0
    edges_s: NDArray[np.float64] = field(default_factory=lambda: _NO_EDGES)
    is_cached: bool = False  # a plan is for one gap, and holds for no other

    def plan(self, state: FunctionState, now_s: float) -> IdlePlan:
        """Plan by the next call after the last one."""
        mine = self.workload.time_s[self.workload.function == state.function]
        if state.num_arrivals == len(mine):
            return IdlePlan(0.0)
        gap_s = float(mine[state.num_arrivals]) - now_s
        # A new pod takes that long to start, so dropping this one would spare nothing.
        if gap_s <= state.lead_s + self.margin_s:
            return IdlePlan(gap_s + self.margin_s)
        return IdlePlan(0.0, gap_s - state.lead_s, gap_s + self.margin_s)

    def rule(self) -> Rule:
        """Return this policy as numbers."""
        return Rule(KEEP_ORACLE, (self.default_s, 0.0, self.margin_s))
