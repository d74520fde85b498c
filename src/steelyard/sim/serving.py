"""A serving engine in virtual time: the real scheduler, a cost model instead of the runner."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from steelyard.errors import CapacityError, TraceError
from steelyard.sim.loop import EventLoop
from steelyard.sim.timeline import Timeline

__all__ = ["SimulatedReplay", "simulate"]

_ARRIVE, _COMPLETE, _START = 0, 1, 2


class PlanLike(Protocol):
    """What the simulator needs of a step's plan.

    Its tokens, and the copies between tiers, each with an `id`, that start with it.
    """

    num_tokens: int
    transfers: list[Any]

    def blank_output(self) -> Any:
        """Return what the step yields when only lengths matter."""
        ...

    def features(self) -> np.ndarray:
        """Features of the step, [F]."""
        ...


class SchedulerLike(Protocol):
    """What the simulator needs of a scheduling policy."""

    def add(self, request: Any, now_s: float) -> None:
        """Queue a request."""
        ...

    def schedule(self, now_s: float) -> Any:
        """Plan the next step, or None without work."""
        ...

    def complete(self, plan: Any, output: Any, now_s: float) -> list[Any]:
        """Take a step's tokens; give the finished requests."""
        ...

    def land(self, transfer_ids: Iterable[int]) -> None:
        """Take note of transfers that are done."""
        ...

    def kv_utilization(self) -> float:
        """Token states held over pool slots reserved."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedReplay:
    """What a trace would see.

    Attributes:
        timeline: times of requests and steps.
        plans: the steps' plans, in order.
        source: the step-time model, for the forecasts.
    """

    timeline: Timeline
    plans: list[Any]
    source: str

    def summary(self) -> dict[str, float]:
        """Return the mean of each serving quantity."""
        return self.timeline.summary()


class _Server:
    """One engine on an event loop: at most one step runs at a time."""

    def __init__(
        self,
        loop: EventLoop,
        scheduler: SchedulerLike,
        step_time_s: Callable[[Any], float],
        transfer_time_s: Callable[[Any], float],
        *,
        asynchronous: bool = False,
    ) -> None:
        """Keep the parts; the engine is idle."""
        self.loop = loop
        self.scheduler = scheduler
        self.step_time_s = step_time_s
        self.transfer_time_s = transfer_time_s
        self.asynchronous = asynchronous
        self.busy = False
        self.ahead: Any = None
        self.plans: list[Any] = []
        self.step_s: list[float] = []
        self.utilization: list[float] = []

    def arrive(self, request: Any) -> None:
        """Queue a request and wake the engine when it is idle."""
        self.scheduler.add(request, self.loop.now_s)
        if not self.busy:
            self.busy = True
            self.loop.after(0.0, self.start, priority=_START)

    def plan(self) -> Any:
        """Plan a step and start its transfers; None when no token can run now."""
        plan = self.scheduler.schedule(self.loop.now_s)
        if plan is None:
            return None
        for transfer in plan.transfers:
            self.loop.after(
                self.transfer_time_s(transfer),
                lambda name=transfer.id: self.land(name),
                priority=_COMPLETE,
            )
        return plan if plan.num_tokens else None

    def start(self) -> None:
        """Let the predicted time of the next step pass.

        An asynchronous engine plans the one after it meanwhile.
        """
        plan, self.ahead = self.ahead or self.plan(), None
        self.busy = plan is not None
        if plan is None:
            return
        seconds = float(self.step_time_s(plan))
        self.plans.append(plan)
        self.step_s.append(seconds)
        self.loop.after(seconds, lambda: self.finish(plan), priority=_COMPLETE)
        if self.asynchronous:
            self.ahead = self.plan()

    def land(self, transfer_id: int) -> None:
        """End a transfer and wake the engine when it is idle."""
        self.scheduler.land([transfer_id])
        if not self.busy:
            self.busy = True
            self.loop.after(0.0, self.start, priority=_START)

    def finish(self, plan: PlanLike) -> None:
        """Hand out the step's tokens and go on."""
        self.scheduler.complete(plan, plan.blank_output(), self.loop.now_s)
        self.utilization.append(self.scheduler.kv_utilization())
        self.loop.after(0.0, self.start, priority=_START)


def simulate(
    scheduler: SchedulerLike,
    trace: Iterable[Any],
    step_time_s: Callable[[Any], float],
    make_request: Callable[[Any, int], Any],
    *,
    transfer_time_s: Callable[[Any], float] = lambda _: 0.0,
    source: str = "sim.serving",
    asynchronous: bool = False,
) -> SimulatedReplay:
    """Replay a trace in virtual time with the scheduler an engine would use.

    Every step takes what the cost model says; each sampled token is 0, so output lengths must be
    forced by the trace.

    Args:
        scheduler: a fresh scheduler; it is driven to the end.
        trace: items with an `arrival_s`.
        step_time_s: predicts the seconds of a step from its plan.
        make_request: turns a trace item and its row into the scheduler's request.
        transfer_time_s: predicts the seconds of a copy between tiers; copies run beside steps and
            do not slow each other.
        source: name of the step-time model.
        asynchronous: each step is planned when the one before it starts, as an asynchronous engine
            does.

    Returns:
        Times, steps and plans of the replay.

    Raises:
        TraceError: the trace is empty.
        CapacityError: the scheduler stopped with requests unfinished.
    """
    loop = EventLoop()
    server = _Server(loop, scheduler, step_time_s, transfer_time_s, asynchronous=asynchronous)
    requests = []
    for row, item in enumerate(trace):
        request = make_request(item, row)
        requests.append(request)
        loop.at(item.arrival_s, lambda request=request: server.arrive(request), priority=_ARRIVE)
    if not requests:
        raise TraceError("the trace has no request", hint="give at least one row")
    loop.run()
    unfinished = sum(request.finish_reason is None for request in requests)
    if unfinished:
        raise CapacityError(
            f"{unfinished} of {len(requests)} requests never finished",
            hint="enlarge the block pool",
        )
    timeline = Timeline.of(
        requests, [plan.features() for plan in server.plans], server.step_s, server.utilization
    )
    return SimulatedReplay(timeline=timeline, plans=server.plans, source=source)
