"""The horizontal pod autoscaler of Kubernetes, rule by rule."""

import math
from dataclasses import dataclass

from steelyard.errors import require
from steelyard.operate.autoscale.forecasting import DemandForecast
from steelyard.operate.autoscale.scaler import ServiceState
from steelyard.sim.autoscale import Service

__all__ = ["ReactiveHPA", "wanted_replicas"]

_FULL = 1.0
"""Use that a replica without metric is taken to have where fewer are about to be asked for."""


def wanted_replicas(
    state: ServiceState, *, target_utilization: float, tolerance: float = 0.1
) -> int:
    """Return the number of replicas that brings the mean use to its target.

    Replicas that are not ready count as unused where more are about to be asked for. Those whose
    metric is missing count as unused then, and as fully used where fewer are.

    Args:
        state: counts and the mean use of the replicas that reported.
        target_utilization: mean use to aim at.
        tolerance: share by which the use may be off without a change.

    Returns:
        The number, before limits, stabilization and rates; as many as now where none reported.

    Source: Kubernetes 1.34, pkg/controller/podautoscaler/replica_calculator.go, the rules of
        GetResourceReplicas.
    """
    reported = state.ready - state.missing
    if reported <= 0 or math.isnan(state.utilization):
        return state.replicas
    ratio = state.utilization / target_utilization
    counts_unready = state.starting > 0 and ratio > 1
    if not counts_unready and not state.missing:
        is_close = abs(1 - ratio) <= tolerance
        return state.replicas if is_close else _rounded_up(ratio * reported)
    used, counted = state.utilization * reported, reported
    if state.missing and ratio != 1:
        counted += state.missing
        if ratio < 1:
            used += max(_FULL, target_utilization) * state.missing
    if counts_unready:
        counted += state.starting
    again = used / counted / target_utilization
    crossed = (ratio < 1 < again) or (again < 1 < ratio)
    if abs(1 - again) <= tolerance or crossed:
        return state.replicas
    wanted = _rounded_up(again * counted)
    if (again < 1 and wanted > state.replicas) or (again > 1 and wanted < state.replicas):
        return state.replicas
    return wanted


def _rounded_up(value: float) -> int:
    """Round up, but not for a hair of rounding error."""
    return math.ceil(value - 1e-9)


@dataclass(frozen=True, slots=True)
class _Event:
    """What was asked for at a time: a number, or a change of it."""

    time_s: float
    value: int


class ReactiveHPA:
    """autoscaling/v2 with its default behavior.

    More replicas are asked for at once, but at most 100 % or 4 more per 15 s, whichever is more.
    Fewer are asked for down to the largest number that was wanted within the last 300 s.

    Attributes:
        target_utilization: mean use to aim at.

    Source: Kubernetes 1.34, pkg/controller/podautoscaler/horizontal.go; defaults of
        pkg/apis/autoscaling/v2/defaults.go.
    """

    def __init__(
        self,
        service: Service,
        *,
        target_utilization: float | None = None,
        tolerance: float = 0.1,
        stabilization_s: float = 300.0,
        period_s: float = 15.0,
    ) -> None:
        """Make the autoscaler.

        Args:
            service: the service; its limits are minReplicas and maxReplicas.
            target_utilization: mean use to aim at; the service's promise when None.
            tolerance: share by which the use may be off without a change.
            stabilization_s: seconds for which a larger number that was wanted holds.
            period_s: seconds between decisions.

        Raises:
            ConfigError: a value is out of range.
        """
        self.service, self.period_s = service, period_s
        self.target_utilization = (
            service.target_utilization if target_utilization is None else target_utilization
        )
        self.tolerance, self.stabilization_s = tolerance, stabilization_s
        require(
            self,
            target_utilization=(self.target_utilization > 0, "above 0"),
            tolerance=(0 <= tolerance < 1, "in [0, 1)"),
            stabilization_s=(0 <= stabilization_s <= 3600, "in [0, 3600]"),
        )
        self._wanted: list[_Event] = []
        self._added: list[_Event] = []
        self._removed: list[_Event] = []

    def decide(self, now_s: float, forecast: DemandForecast | None, state: ServiceState) -> int:
        """Return the number of replicas; the forecast is not looked at.

        Args:
            now_s: time.
            forecast: not used.
            state: counts and mean use.

        Returns:
            A number within the service's limits.
        """
        current = state.replicas
        if not self._wanted:
            # What stands at the start holds for the first window, as if it had been wanted.
            self._wanted.append(_Event(now_s, current))
        clipped = self.service.clipped(current)
        if clipped != current:
            return self._asked(now_s, current, clipped)
        wanted = wanted_replicas(
            state, target_utilization=self.target_utilization, tolerance=self.tolerance
        )
        stable = self._stabilized(now_s, current, wanted)
        return self._asked(now_s, current, self._limited(now_s, current, stable))

    def _stabilized(self, now_s: float, current: int, wanted: int) -> int:
        """Hold the number up by what was wanted within the window."""
        recent = [item for item in self._wanted if item.time_s > now_s - self.stabilization_s]
        self._wanted = [*recent, _Event(now_s, wanted)]
        held = max(item.value for item in self._wanted)
        # There is no window for more, so that what is wanted now is the least to have.
        return min(max(current, wanted), held)

    def _limited(self, now_s: float, current: int, wanted: int) -> int:
        """Limit how fast replicas come; they may all go within 15 s."""
        if wanted <= current:
            return self.service.clipped(wanted)
        recent_s = now_s - 15.0
        self._added = [item for item in self._added if item.time_s > recent_s]
        self._removed = [item for item in self._removed if item.time_s > recent_s]
        before = (
            current
            - sum(item.value for item in self._added)
            + sum(item.value for item in self._removed)
        )
        most = max(before + 4, before * 2, current)
        return self.service.clipped(min(wanted, most))

    def _asked(self, now_s: float, current: int, wanted: int) -> int:
        """Remember a change, for the limits of the next ones."""
        if wanted > current:
            self._added.append(_Event(now_s, wanted - current))
        elif wanted < current:
            self._removed.append(_Event(now_s, current - wanted))
        return wanted
