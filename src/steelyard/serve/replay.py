"""Runs a request trace through an engine at the times it says, and times it."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from steelyard.errors import CapacityError, TraceError
from steelyard.quantity import Measurement
from steelyard.serve.driver import Driver
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepPlan
from steelyard.sim.timeline import Timeline

__all__ = ["ReplayResult", "drive_replay"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """What a trace saw.

    Attributes:
        timeline: times of requests and steps.
        plans: the steps' plans, in order.
        requests: the requests, each with its output.
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


def drive_replay(
    driver: Driver, requests: list[Request], between: Callable[[], None] = lambda: None
) -> ReplayResult:
    """Send requests at their arrival times and run steps until all ended.

    Args:
        driver: the driver of an idle engine.
        requests: requests with arrival times from the start of the replay.
        between: called after each step; its time belongs to none.

    Returns:
        Times relative to the start of the replay; a step's time lasts from the results of the one
        before, or from when there was work.

    Raises:
        TraceError: there is no request.
        CapacityError: the scheduler stopped with requests unfinished.
    """
    if not requests:
        raise TraceError("the trace has no request", hint="give at least one row")
    waiting = deque(sorted(requests, key=lambda request: request.arrival_s))
    scheduler = driver.scheduler
    steps: list[tuple[StepPlan, float, float]] = []
    driver.start_s = driver.clock.now_s()

    def receive(at_s: float = 0.0) -> None:
        now_s = max(driver.now_s(), at_s)
        while waiting and waiting[0].arrival_s <= now_s:
            scheduler.add(waiting.popleft(), now_s)

    def idle() -> float:
        at_s = waiting[0].arrival_s
        driver.clock.wait_until(driver.start_s + at_s)
        # The difference of two clock readings may fall short of `at_s` by a rounding error, and a
        # virtual clock would never make it up.
        receive(at_s)
        return driver.now_s()

    begin_s, was_stalled = idle(), False
    while True:
        receive()
        step = driver.step(receive)
        if step is not None:
            now_s = driver.now_s()
            steps.append((step.plan, now_s - begin_s, scheduler.kv_utilization()))
            between()
            begin_s = driver.now_s()
        is_stalled = step is None and driver.is_stalled
        # A request whose tokens are cached but for the last may be admitted without a chunk of its
        # own; the next plan runs it. So with requests left it takes two calls to be sure.
        if is_stalled and (was_stalled or not scheduler.has_work):
            if not waiting:
                break
            begin_s = idle()
        was_stalled = is_stalled
    return _result(requests, steps)


def _result(requests: list[Request], steps: list[tuple[StepPlan, float, float]]) -> ReplayResult:
    """Sum a replay up, or refuse it when a request never ended."""
    unfinished = sum(request.finish_reason is None for request in requests)
    if unfinished:
        raise CapacityError(
            f"{unfinished} of {len(requests)} requests never finished",
            hint="enlarge the block pool",
        )
    plans, step_s, utilization = (list(column) for column in zip(*steps, strict=True))
    timeline = Timeline.of(requests, [plan.features() for plan in plans], step_s, utilization)
    return ReplayResult(
        timeline=timeline, plans=plans, requests=requests, finished_at_s=time.time()
    )
