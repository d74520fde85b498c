"""Runs a workload on a platform: by the compiled loop where its policies are known to it."""

import math

import numpy as np

from steelyard.errors import ConfigError
from steelyard.sim.serverless.control import PlatformController
from steelyard.sim.serverless.heap import push, widen
from steelyard.sim.serverless.kernel import advance
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
from steelyard.sim.serverless.tables import Tables, make_tables, rule_of
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
    controller, state = PlatformController(platform, tables), make_state(tables, schedulers)
    if controller.is_idle:
        state = _advance(tables, state, math.inf)
    else:
        steps = math.ceil(workload.horizon_s / platform.step_s)
        for step in range(steps + 1):
            at_s = step * platform.step_s
            if step:
                state = _advance(tables, state, at_s)
                if at_s >= workload.horizon_s:
                    break
                _observe(controller, state)
            state = _apply(controller, tables, state, at_s)
        state = _advance(tables, state, math.inf)
    return _result(platform, workload, seed, state)


def _advance(tables: Tables, state: State, until_s: float) -> State:
    """Run events before a time, or all up to the horizon; tables that are full are doubled."""
    is_last = until_s >= tables.horizon_s
    end_s = min(until_s, tables.horizon_s)
    # A workload whose horizon is a step's time ends there, events of that time included.
    while not advance(tables, state, end_s, is_last):
        state = _grown(tables, state)
    return state


def _grown(tables: Tables, state: State) -> State:
    """Return a state with more room."""
    room = 32 + len(tables.prewarm_kinds) * (1 + len(tables.child))
    heap, pods, parts_s = state.heap, state.pods, state.parts_s
    while heap.count[0] + room > len(heap.items):
        heap = widen(heap)
    used = int(state.counts[NUM_PODS])
    if used + 2 > len(pods):
        pods, parts_s = make_pods(2 * len(pods), parts_s.shape[1])
        pods[:used], parts_s[:used] = state.pods[:used], state.parts_s[:used]
    return state._replace(heap=heap, pods=pods, parts_s=parts_s)


def _observe(controller: PlatformController, state: State) -> None:
    """Tell the controller of the step that ends."""
    pools, regions = state.pools, state.regions
    controller.observe(pools["most_taken"], regions["start_sum_s"], regions["num_starts"])
    pools["most_taken"] = pools["taken"]
    regions["start_sum_s"], regions["num_starts"] = 0.0, 0


def _apply(controller: PlatformController, tables: Tables, state: State, now_s: float) -> State:
    """Set targets and regions; pods come in later, but at the very beginning at once."""
    sizes = len(tables.refill_s)
    state.functions["region"] = controller.regions()
    targets = controller.targets()
    for cell, row in enumerate(state.cells):
        kept = row["idle"] + row["filling"]
        row["area"] += kept * (now_s - row["since_s"])
        row["since_s"], row["target"] = now_s, targets[cell]
        missing = int(targets[cell] - kept)
        if now_s == 0:
            row["idle"] = targets[cell]
        elif missing < 0:
            row["idle"] -= min(-missing, row["idle"])
        for _ in range(missing if now_s > 0 else 0):
            if state.heap.count[0] == len(state.heap.items):
                state = state._replace(heap=widen(state.heap))
            row["filling"] += 1
            push(state.heap, now_s + tables.refill_s[cell % sizes], REFILL, cell, FILL, 0.0)
    return state


def _result(platform: Platform, workload: Workload, seed: int, state: State) -> ServerlessResult:
    """Gather the result."""
    cells, used = state.cells, int(state.counts[NUM_PODS])
    kept_s = (cells["idle"] + cells["filling"]) * (workload.horizon_s - cells["since_s"])
    status = state.requests["status"]
    return ServerlessResult.of_pods(
        platform,
        workload,
        seed,
        state.pods[:used],
        state.parts_s[:used],
        wait_s=state.requests["wait_s"].copy(),
        status=np.where(status < 0, -1, status),
        peak_pods=int(state.counts[PEAK]),
        pool_s=float((cells["area"] + kept_s).sum()),
        num_events=int(state.counts[EVENTS]),
    )
