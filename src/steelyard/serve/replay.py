"""Runs a request trace through an engine at the times it says, and times it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.quantity import Measurement
from steelyard.sim.timeline import Timeline

if TYPE_CHECKING:
    from steelyard.serve.driver import Driver
    from steelyard.serve.scheduling.request import Request
    from steelyard.serve.scheduling.step import StepPlan

__all__ = ["ReplayResult", "drive_replay"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """What a trace saw.

    Attributes:
        timeline: times of requests and steps.
        plans: the steps' plans, in order.
        requests: as finished.
        finished_at_s: wall clock at the end, seconds since 1970 (UTC).
    """

    timeline: Timeline
    plans: list[StepPlan]
    requests: list[Request]
    finished_at_s: float

    def summary(self) -> dict[str, float]:
        """Return the mean of each serving quantity."""
        return self.timeline.summary()

    def measurements(self) -> list[Measurement]:
        """Return each serving quantity with the spread and count of its samples."""
        return [
            Measurement(
                quantity=name,
                value=float(values.mean()),
                spread=float(values.std()),
                count=len(values),
                time_s=self.finished_at_s,
            )
            for name, values in self.timeline.samples().items()
        ]


def drive_replay(driver: Driver, requests: list[Request]) -> ReplayResult:
    """Send requests at their arrival times and run steps until all ended.

    Args:
        driver: of an idle engine.
        requests: with arrival times from the start of the replay.

    Returns:
        Times relative to the start of the replay; a step's time lasts from the results of the one
        before, or from when there was work.
    """
    waiting = sorted(requests, key=lambda request: request.arrival_s)
    recorder = _Recorder()
    driver.start_s, arrived = driver.clock.now_s(), 0
    begin = 0.0
    while arrived < len(waiting) or driver.scheduler.has_work:
        now_s = driver.now_s()
        while arrived < len(waiting) and waiting[arrived].arrival_s <= now_s:
            driver.scheduler.add(waiting[arrived], now_s)
            arrived += 1
        if not driver.scheduler.has_work:
            driver.clock.sleep(max(waiting[arrived].arrival_s - driver.now_s(), 0.0))
            begin = driver.now_s()
            continue
        result = driver.step()
        if result.plan is not None:
            recorder.record(result.plan, begin, driver.now_s(), driver.scheduler.kv_utilization())
            begin = driver.now_s()
    return recorder.result(requests)


class _Recorder:
    """Collects the steps of a replay."""

    def __init__(self) -> None:
        """Start empty."""
        self.plans: list[StepPlan] = []
        self.step_s: list[float] = []
        self.utilization: list[float] = []

    def record(self, plan: StepPlan, begin_s: float, end_s: float, utilization: float) -> None:
        """Keep one step, scheduling included."""
        self.plans.append(plan)
        self.step_s.append(end_s - begin_s)
        self.utilization.append(utilization)

    def result(self, requests: list[Request]) -> ReplayResult:
        """Return the replay's columns."""
        timeline = Timeline.of(
            requests, [plan.features() for plan in self.plans], self.step_s, self.utilization
        )
        return ReplayResult(
            timeline=timeline, plans=self.plans, requests=requests, finished_at_s=time.time()
        )
