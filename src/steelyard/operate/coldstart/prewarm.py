"""Which pods to start ahead: before timers fire, behind a workflow's first call, by forecast."""

from collections.abc import Sequence
from dataclasses import dataclass

from steelyard.errors import require
from steelyard.sim.serverless.policies import (
    PREWARM_CHAIN,
    PREWARM_FORECAST,
    PREWARM_TIMER,
    FunctionState,
    PrewarmOrder,
    Rule,
)

__all__ = ["ChainPrewarm", "ForecastPrewarm", "TimerPrewarm"]


@dataclass(frozen=True, kw_only=True)
class TimerPrewarm:
    """Starts a pod so that it is ready just before its timer fires again.

    Attributes:
        margin_s: time ahead of the lead of the function's starts, and time the pod stays behind.
    """

    margin_s: float = 1.0

    def __post_init__(self) -> None:
        require(self, margin_s=(self.margin_s >= 0, "0 or more"))

    def orders(
        self, state: FunctionState, children: Sequence[FunctionState], now_s: float
    ) -> list[PrewarmOrder]:
        """Return the order for the next firing; none where the period is too short to drop."""
        # `TimerAware` keeps these pods; a period of 0 is no timer.
        if state.period_s <= 2 * (state.lead_s + self.margin_s):
            return []
        start_s = now_s + state.period_s - state.lead_s - self.margin_s
        return [PrewarmOrder(state.function, start_s, now_s + state.period_s + self.margin_s)]

    def rule(self) -> Rule:
        """Return this policy as numbers."""
        return Rule(PREWARM_TIMER, (self.margin_s,))


@dataclass(frozen=True, kw_only=True)
class ChainPrewarm:
    """Starts pods of a workflow's next functions while the one before still runs.

    Attributes:
        margin_s: time that a pod waits beyond the expected end of the one before.
    """

    margin_s: float = 10.0

    def __post_init__(self) -> None:
        require(self, margin_s=(self.margin_s >= 0, "0 or more"))

    def orders(
        self, state: FunctionState, children: Sequence[FunctionState], now_s: float
    ) -> list[PrewarmOrder]:
        """Return an order per child, ready when this execution ends on average."""
        ahead_s = state.mean_duration_s
        return [
            PrewarmOrder(
                child.function,
                now_s + max(ahead_s - child.lead_s, 0.0),
                now_s + ahead_s + self.margin_s,
                is_firm=True,  # a call of the child by someone else does not take its place
            )
            for child in children
        ]

    def rule(self) -> Rule:
        """Return this policy as numbers."""
        return Rule(PREWARM_CHAIN, (self.margin_s,))


@dataclass(frozen=True, kw_only=True)
class ForecastPrewarm:
    """Starts a pod before the next call where the time between calls hardly varies.

    Attributes:
        margin: fraction of the smoothed time by which the window is widened, and which the smoothed
            distance from it may be at most.
        least_arrivals: calls from which the smoothed time is used.
    """

    margin: float = 0.15
    least_arrivals: int = 5

    def __post_init__(self) -> None:
        require(
            self,
            margin=(0 < self.margin < 1, "in (0, 1)"),
            least_arrivals=(self.least_arrivals >= 3, "at least 3"),
        )

    def orders(
        self, state: FunctionState, children: Sequence[FunctionState], now_s: float
    ) -> list[PrewarmOrder]:
        """Return the order for the next call, none where calls are irregular or too close."""
        mean_s = state.mean_gap_s
        start_s = (1.0 - self.margin) * mean_s - state.lead_s
        is_regular = (
            state.num_arrivals >= self.least_arrivals and state.gap_spread_s <= self.margin * mean_s
        )
        if not is_regular or start_s <= 0:
            return []
        until_s = now_s + (1.0 + self.margin) * mean_s
        return [PrewarmOrder(state.function, now_s + start_s, until_s)]

    def rule(self) -> Rule:
        """Return this policy as numbers."""
        return Rule(PREWARM_FORECAST, (self.margin, float(self.least_arrivals)))
