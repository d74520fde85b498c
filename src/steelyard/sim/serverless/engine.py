"""Runs a workload on a platform: by the compiled loop where its policies are known to it."""

import math

import numpy as np

from steelyard.errors import ConfigError
from steelyard.sim.serverless.control import PlatformController
from steelyard.sim.serverless.heap import push, widen
from steelyard.sim.serverless.kernel import advance, room_for_one
from steelyard.sim.serverless.lifecycle import FILL, REFILL
from steelyard.sim.serverless.platform import Platform
from steelyard.sim.serverless.reference import replay
from steelyard.sim.serverless.result import ServerlessResult
from steelyard.sim.serverless.state import (
    EVENTS,
    NUM_PODS,
    PEAK,
    State,
    make_pods,
    make_state,
)
from steelyard.sim.serverless.tables import make_tables, rule_of
from steelyard.sim.serverless.workload import Workload

__all__ = ["run"]


def run(platform: Platform, workload: Workload, seed: int) -> ServerlessResult:
    """Simulate a workload.

    A policy of a caller's own class runs too, on the event loop and so a hundred times slower. With
    the same seed a function's n-th start draws the same under every policy.

    Args:
        platform: the platform with its policies.
        workload: requests.
        seed: seed of the start-ups, 0 or more.

    Returns:
        Waits, pods and sums.

    Raises:
        ConfigError: a runtime or region is unknown.
        TraceError: a size class has no pool.
    """
    asked = [platform.keep_alive, *platform.prewarm]
    asked += [platform.delay] if platform.delay else []
    if any(rule_of(policy) is None for policy in asked):
        return replay(platform, workload, seed)
    tables = make_tables(platform, workload, seed)
    if tables.keep[0] < 0 or not np.all(np.diff(tables.edges_s) > 0):
        raise ConfigError("a keep-alive must be 0 or more, and its edges must rise")
    schedulers = platform.schedulers.count if platform.schedulers else 1
    controller = PlatformController(platform, tables)
    state = make_state(tables, workload, schedulers)
    if controller.is_idle:
        state = _advance(state, workload.horizon_s, is_last=True)
    else:
        steps = math.ceil(workload.horizon_s / platform.step_s)
        for step in range(steps + 1):
            at_s = step * platform.step_s
            # Decisions of a time come before its events; the horizon's are decided by nobody.
            if at_s >= workload.horizon_s and step:
                break
            if step:
                state = _advance(state, at_s, is_last=False)
                _observe(controller, state)
            state = _apply(controller, state, at_s)
        state = _advance(state, workload.horizon_s, is_last=True)
    return _result(platform, workload, seed, state)


def _advance(state: State, until_s: float, *, is_last: bool) -> State:
    """Run events before a time, and at it where it is the last; full tables are doubled."""
    while not advance(*state, until_s, is_last):
        state = _grown(state)
    return state


def _grown(state: State) -> State:
    """Return a state with more room."""
    flow, supply, plans = state
    heap, pods, parts_s = flow.heap, flow.pods, supply.parts_s
    while heap.count[0] + room_for_one(plans) >= len(heap.events):
        heap = widen(heap)
    used = int(flow.counts[NUM_PODS])
    if used + 2 > len(pods):
        pods, parts_s = make_pods(2 * len(pods), parts_s.shape[1])
        pods[:used], parts_s[:used] = flow.pods[:used], supply.parts_s[:used]
    return State(flow._replace(heap=heap, pods=pods), supply._replace(parts_s=parts_s), plans)


def _observe(controller: PlatformController, state: State) -> None:
    """Tell the controller of the step that ends."""
    pools, regions = state.supply.pools, state.supply.regions
    controller.observe(pools["most_taken"], regions["start_sum_s"], regions["num_starts"])
    pools["most_taken"] = pools["taken"]
    regions["start_sum_s"], regions["num_starts"] = 0.0, 0


def _apply(controller: PlatformController, state: State, now_s: float) -> State:
    """Set targets and regions; pods come in later, but at the very beginning at once."""
    flow, supply, _ = state
    heap, refill_s = flow.heap, supply.refill_s
    flow.functions["region"] = controller.regions()
    targets = controller.targets()
    # Most steps change nothing, and a cell adds up its pod-seconds at its next change as well.
    if now_s > 0 and np.array_equal(targets, supply.cells["target"]):
        return state
    cells = supply.cells
    kept = cells["idle"] + cells["filling"]
    cells["area"] += kept * (now_s - cells["since_s"])
    cells["since_s"], cells["target"] = now_s, targets
    if now_s == 0:
        cells["idle"] = targets
        return state
    cells["idle"] -= np.clip(kept - targets, 0, cells["idle"])
    missing = np.maximum(targets - kept, 0)
    cells["filling"] += missing
    for cell in np.repeat(np.arange(len(cells)), missing).tolist():
        if heap.count[0] + 1 >= len(heap.events):
            heap = widen(heap)
        push(heap, now_s + refill_s[cell % len(refill_s)], REFILL, cell, FILL, 0.0)
    return state._replace(flow=flow._replace(heap=heap))


def _result(platform: Platform, workload: Workload, seed: int, state: State) -> ServerlessResult:
    """Gather the result."""
    (flow, supply, _), cells = state, state.supply.cells
    used, status = int(flow.counts[NUM_PODS]), flow.requests["status"]
    kept_s = (cells["idle"] + cells["filling"]) * (workload.horizon_s - cells["since_s"])
    return ServerlessResult.of_pods(
        platform,
        workload,
        seed,
        flow.pods[:used],
        supply.parts_s[:used],
        wait_s=flow.requests["wait_s"].copy(),
        status=np.where(status < 0, -1, status),
        peak_pods=int(flow.counts[PEAK]),
        pool_s=float((cells["area"] + kept_s).sum()),
        num_events=int(flow.counts[EVENTS]),
    )
