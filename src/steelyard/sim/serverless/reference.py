"""The platform on `EventLoop`, driven by policy objects: what the compiled loop must equal."""

import math
from collections import deque
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from steelyard.sim.loop import EventLoop
from steelyard.sim.serverless.control import PlatformController
from steelyard.sim.serverless.kernel import COLD, HELD, LATE, WARM
from steelyard.sim.serverless.lifecycle import ARRIVAL, DEADLINE, END, EXPIRE, PREWARM
from steelyard.sim.serverless.platform import Platform
from steelyard.sim.serverless.policies import FunctionState, IdlePlan, PrewarmOrder
from steelyard.sim.serverless.reserves import Reserves
from steelyard.sim.serverless.result import ServerlessResult
from steelyard.sim.serverless.state import make_pods
from steelyard.sim.serverless.tables import make_tables
from steelyard.sim.serverless.workload import Workload

__all__ = ["replay"]

_CONTROL = -1
"""Priority of decisions on pools and placement: before all events of their time."""


@dataclass(eq=False, slots=True)
class _Pod:
    """A pod; its number is its place in the order of starting."""

    number: int
    function: int
    region: int
    is_ahead: bool
    stage: int
    parts_s: list[float]
    start_s: float
    ready_s: float
    slots: int
    running: int = 0
    end_s: float = math.inf
    last_end_s: float = -1.0
    busy_s: float = 0.0
    since_s: float = 0.0
    expire_s: float = math.inf
    is_late: bool = False


@dataclass(slots=True)
class _FunctionPods:
    """A function in a region: its pods and its queue."""

    pods: list[_Pod] = field(default_factory=list)
    queue: deque[int] = field(default_factory=deque)


def replay(platform: Platform, workload: Workload, seed: int) -> ServerlessResult:
    """Simulate a workload with any policies, event by event.

    Args:
        platform: the platform with its policies.
        workload: requests.
        seed: seed of the start-ups.

    Returns:
        What `run` returns.
    """
    return _Replay(platform, workload, seed).result()


class _Replay:
    """One run."""

    def __init__(self, platform: Platform, workload: Workload, seed: int) -> None:
        self.platform, self.workload, self.seed = platform, workload, seed
        self.tables = make_tables(platform, workload, seed)
        self.loop = EventLoop()
        self.reserves = Reserves(platform, self.tables, self.loop, seed)
        self.controller = PlatformController(platform, self.tables)
        self.region = self.tables.functions["home"].copy()
        self.states = [self._new_state(at) for at in range(len(workload.functions))]
        self.last_end_s = [math.nan] * len(self.states)
        self.plans: dict[int, tuple[int, IdlePlan]] = {}
        self.places: dict[tuple[int, int], _FunctionPods] = {}
        self.pods: list[_Pod] = []
        self.alive = self.peak = 0
        self.wait_s = np.full(len(workload), np.nan)
        self.status = np.full(len(workload), -1, dtype=np.int64)

    def _new_state(self, at: int) -> FunctionState:
        item, edges_s = self.workload.functions[at], self.platform.keep_alive.edges_s
        return FunctionState(
            function=at,
            period_s=item.period_s,
            is_async=item.is_async,
            slots=item.slots,
            start_mean_s=float(self.tables.functions["start_mean_s"][at]),
            lead_s=float(self.tables.functions["lead_s"][at]),
            edges_s=edges_s,
            gaps=np.zeros(len(edges_s) - 1, dtype=np.int64),
        )

    def result(self) -> ServerlessResult:
        """Run to the horizon and gather the result."""
        horizon_s = self.workload.horizon_s
        if not self.controller.is_idle:
            self._control(0)
        for request, at_s in enumerate(self.workload.time_s):
            if at_s <= horizon_s:
                self.loop.at(at_s, partial(self._arrive, request), priority=ARRIVAL)
        self.loop.run(until_s=horizon_s)
        return ServerlessResult.of_pods(
            self.platform,
            self.workload,
            self.seed,
            *self._table(),
            wait_s=self.wait_s,
            status=self.status,
            peak_pods=self.peak,
            pool_s=self.reserves.pool_s(horizon_s),
            num_events=self.loop.num_events,
        )

    def _control(self, step: int) -> None:
        """Let policies set pools and regions, and come again."""
        if step:
            self.controller.observe(*self.reserves.seen())
        self.region = self.controller.regions()
        self.reserves.set_targets(self.controller.targets())
        at_s = (step + 1) * self.platform.step_s
        if at_s < self.workload.horizon_s:
            self.loop.at(at_s, partial(self._control, step + 1), priority=_CONTROL)

    def _arrive(self, request: int) -> None:
        now_s, function = self.loop.now_s, int(self.workload.function[request])
        state = self.states[function]
        self._learn(state, now_s)
        place = self._place(function)
        pod = self._find(place)
        self._tell(state, place)
        patience_s = self.platform.delay.wait_s(state) if self.platform.delay else 0.0
        if pod is not None:
            self._bind(pod, request, LATE if pod.ready_s > now_s else WARM)
        elif patience_s > 0:
            place.queue.append(request)
            give_up = partial(self._give_up, request, place, function, int(self.region[function]))
            self.loop.after(patience_s, give_up, priority=DEADLINE)
        else:
            self._bind(self._start(function, int(self.region[function])), request, COLD)
        children = [self.states[at] for at in self.workload.functions[function].children]
        for policy in self.platform.prewarm:
            for order in policy.orders(state, children, now_s):
                act = partial(self._prewarm, order, state.num_arrivals)
                self.loop.at(order.start_s, act, priority=PREWARM)

    def _learn(self, state: FunctionState, now_s: float) -> None:
        """Count the gap that an arrival ends."""
        ended_s = self.last_end_s[state.function]
        if state.num_running == 0 and not math.isnan(ended_s):
            gap_s = now_s - ended_s
            state.num_gaps += 1
            if gap_s >= state.edges_s[-1]:
                state.num_outside += 1
            else:
                place = int(np.searchsorted(state.edges_s, gap_s, side="right")) - 1
                state.sum_squares += 2 * int(state.gaps[place]) + 1
                state.gaps[place] += 1
        between_s = now_s - state.last_arrival_s
        if state.num_arrivals == 1:
            state.mean_gap_s = between_s
        elif state.num_arrivals > 1:
            away_s = abs(between_s - state.mean_gap_s)
            state.gap_spread_s += 0.3 * (away_s - state.gap_spread_s)
            state.mean_gap_s += 0.3 * (between_s - state.mean_gap_s)
        state.num_arrivals += 1
        state.last_arrival_s = now_s

    def _place(self, function: int) -> _FunctionPods:
        """Return where a function's pods start at present."""
        return self.places.setdefault((function, int(self.region[function])), _FunctionPods())

    def _tell(self, state: FunctionState, place: _FunctionPods) -> None:
        state.num_pods, state.num_queued = len(place.pods), len(place.queue)

    def _find(self, place: _FunctionPods) -> _Pod | None:
        """Return the newest ready pod with a free slot, else the one soonest ready."""
        free = [pod for pod in place.pods if pod.running < pod.slots]
        ready = [pod for pod in free if pod.ready_s <= self.loop.now_s]
        if ready:
            return max(ready, key=lambda pod: pod.number)
        return min(free, key=lambda pod: (pod.ready_s, -pod.number), default=None)

    def _bind(self, pod: _Pod, request: int, status: int) -> None:
        """Put a request on a free slot."""
        now_s, home = self.loop.now_s, int(self.tables.functions["home"][pod.function])
        begin_s = max(now_s, pod.ready_s)
        rtt_s = float(self.tables.rtt_s[home, pod.region])
        self.wait_s[request] = begin_s - self.workload.time_s[request] + rtt_s
        self.status[request] = status
        # It waits for its start in no one's service: busy time begins when it is ready.
        if pod.running == 0:
            pod.since_s = begin_s
        if begin_s > now_s and pod.is_ahead:
            pod.is_late = True
        pod.running += 1
        self.states[pod.function].num_running += 1
        end_s = begin_s + float(self.workload.duration_s[request])
        self.loop.at(end_s, partial(self._end, pod, request), priority=END)

    def _end(self, pod: _Pod, request: int) -> None:
        """Free a slot; an idle pod gets its plan."""
        now_s, state = self.loop.now_s, self.states[pod.function]
        state.num_running -= 1
        state.num_ends += 1
        away_s = float(self.workload.duration_s[request]) - state.mean_duration_s
        state.mean_duration_s += away_s / state.num_ends
        self.last_end_s[pod.function] = pod.last_end_s = now_s
        pod.running -= 1
        if pod.running == 0:
            pod.busy_s += now_s - pod.since_s
        self._drain(pod)
        if pod.running:
            return
        plan = IdlePlan(self.platform.keep_alive.default_s)
        if state.num_running == 0:
            plan = self._plan(state)
        if plan.keep_s <= 0:
            self._kill(pod)
        else:
            self._expire_at(pod, now_s + plan.keep_s)
        if plan.prewarm_s < math.inf:
            start_s, until_s = now_s + plan.prewarm_s, now_s + plan.until_s
            order = PrewarmOrder(pod.function, start_s, until_s)
            act = partial(self._prewarm, order, state.num_arrivals)
            self.loop.at(start_s, act, priority=PREWARM)

    def _plan(self, state: FunctionState) -> IdlePlan:
        """Return the plan in force, made anew once the gaps have grown by 3 %."""
        policy, gaps = self.platform.keep_alive, state.num_gaps
        if not policy.is_cached:
            return policy.plan(state, self.loop.now_s)
        until, plan = self.plans.get(state.function, (0, IdlePlan(0.0)))
        if gaps >= until:
            plan = policy.plan(state, self.loop.now_s)
            self.plans[state.function] = (gaps + 1 + gaps // 32, plan)
        return plan

    def _drain(self, pod: _Pod) -> None:
        """Put requests that were held back on free slots."""
        queue = self.places[pod.function, pod.region].queue
        while queue and pod.running < pod.slots:
            self._bind(pod, queue.popleft(), HELD)

    def _give_up(self, request: int, place: _FunctionPods, function: int, region: int) -> None:
        """Start a pod for a request whose time to wait is over."""
        if self.status[request] < 0:
            place.queue.remove(request)
            pod = self._start(function, region)
            self._bind(pod, request, COLD)
            self._drain(pod)

    def _prewarm(self, order: PrewarmOrder, version: int) -> None:
        """Start a pod ahead, or keep one that is there."""
        function = order.function
        # A call since then has made a plan of its own.
        if not order.is_firm and self.states[function].num_arrivals != version:
            return
        pod = self._find(self._place(function))
        if pod is None:
            pod = self._start(function, int(self.region[function]), is_ahead=True)
            self._expire_at(pod, max(order.until_s, pod.ready_s))
            self._drain(pod)
        elif pod.running == 0:
            self._expire_at(pod, max(pod.expire_s, order.until_s))

    def _start(self, function: int, region: int, *, is_ahead: bool = False) -> _Pod:
        """Start a pod."""
        now_s = self.loop.now_s
        parts_s, stage = self.reserves.start(function, region)
        total_s = 0.0
        for part in parts_s:
            total_s += part
        self.reserves.count_start(region, total_s)
        slots = self.workload.functions[function].slots
        ready_s = now_s + total_s
        pod = _Pod(
            len(self.pods), function, region, is_ahead, stage, parts_s, now_s, ready_s, slots
        )
        self.pods.append(pod)
        self.places.setdefault((function, region), _FunctionPods()).pods.append(pod)
        self.alive += 1
        self.peak = max(self.peak, self.alive)
        return pod

    def _expire_at(self, pod: _Pod, time_s: float) -> None:
        """Let a pod end at a time, unless its time is set anew before."""
        pod.expire_s = time_s
        if time_s < math.inf:
            self.loop.at(time_s, partial(self._expire, pod, time_s), priority=EXPIRE)

    def _expire(self, pod: _Pod, time_s: float) -> None:
        if pod.end_s == math.inf and pod.running == 0 and pod.expire_s == time_s:
            self._kill(pod)

    def _kill(self, pod: _Pod) -> None:
        pod.end_s = self.loop.now_s
        self.places[pod.function, pod.region].pods.remove(pod)
        self.alive -= 1

    def _table(self) -> tuple[NDArray, NDArray[np.float64]]:
        """Return all pods as records, and their parts."""
        table, parts_s = make_pods(len(self.pods), len(self.platform.part_names))
        regions = len(self.platform.regions)
        for row, pod in enumerate(self.pods):
            table["place"][row] = pod.function * regions + pod.region
            table["kind"][row], table["free"][row] = pod.is_ahead, pod.slots - pod.running
            parts_s[row] = pod.parts_s
            for name in (
                "stage",
                "is_late",
                "start_s",
                "ready_s",
                "end_s",
                "last_end_s",
                "busy_s",
                "since_s",
            ):
                table[name][row] = getattr(pod, name)
        return table, parts_s
