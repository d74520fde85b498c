"""The life of a pod in the compiled loop: it is taken from a pool, started, listed, and ended."""

import math

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit_borrowing
from steelyard.sim.serverless.draws import draw_parts, quantile_at
from steelyard.sim.serverless.heap import ZERO, Heap, Records, constants, push
from steelyard.sim.serverless.state import ALIVE, NUM_PODS, PEAK, Flow, Supply

__all__ = [
    "AHEAD",
    "ARRIVAL",
    "BY_REQUEST",
    "DEADLINE",
    "END",
    "EXPIRE",
    "FILL",
    "PREWARM",
    "REFILL",
    "kill_pod",
    "link",
    "refill",
    "set_timer",
    "start_pod",
    "unlink",
]

# Priorities of events of one time; an arrival finds what has ended, and comes before an expiry.
END, REFILL, PREWARM, ARRIVAL, DEADLINE, EXPIRE = constants(6)
TAKEN, SCRATCH, FILL = constants(3)
BY_REQUEST, AHEAD = constants(2)


@njit_borrowing()
def start_pod(flow: Flow, supply: Supply, place: int, kind: int, now_s: float) -> int:
    """Start a pod and return it."""
    pods, rows, settings = flow.pods, flow.functions, flow.settings
    function, region = flow.places[place].function, flow.places[place].region
    runtime, pod = rows[function].runtime, flow.counts[NUM_PODS]
    parts_s = supply.parts_s[pod]
    flow.counts[NUM_PODS] += 1
    level = draw_parts(
        supply.curves[runtime],
        supply.shares[runtime],
        supply.factors[runtime],
        settings[0].seed,
        function,
        rows[function].num_starts,
        parts_s,
    )
    rows[function].num_starts += 1
    pods[pod].stage = -1
    if settings[0].has_pools:
        pods[pod].stage = _take(flow, supply, function, region, now_s)
        # Images of users wait in no pool, so their allocation stays as drawn.
        if rows[function].size >= 0:
            stage = supply.stages[pods[pod].stage]
            parts_s[settings[0].pool_part] = quantile_at(stage, level)
    if settings[0].queue_part >= 0:
        waited_s = _queue_s(supply.scheduler_s[region], settings[0].service_s, now_s)
        parts_s[settings[0].queue_part] += waited_s
    total_s = 0.0
    for part in parts_s:
        total_s += part
    supply.regions[region].start_sum_s += total_s
    supply.regions[region].num_starts += 1
    pods[pod].place, pods[pod].kind, pods[pod].is_late = place, kind, 0
    pods[pod].start_s, pods[pod].ready_s, pods[pod].end_s = now_s, now_s + total_s, math.inf
    pods[pod].last_end_s, pods[pod].busy_s, pods[pod].since_s = -1.0, 0.0, now_s
    pods[pod].expire_s, pods[pod].timer_s = math.inf, math.inf
    pods[pod].free = rows[function].slots
    link(flow.places, pods, pod)
    flow.places[place].num_pods += 1
    flow.counts[ALIVE] += 1
    flow.counts[PEAK] = max(flow.counts[PEAK], flow.counts[ALIVE])
    return pod


@njit_borrowing()
def _queue_s(free_s: NDArray[np.float64], service_s: float, now_s: float) -> float:
    """Return the wait for the scheduler that is free first, and hold it."""
    first = 0
    for at in range(1, len(free_s)):
        if free_s[at] < free_s[first]:
            first = at
    waited_s = max(free_s[first] - now_s, 0.0)
    free_s[first] = now_s + waited_s + service_s
    return waited_s


@njit_borrowing()
def _take(flow: Flow, supply: Supply, function: int, region: int, now_s: float) -> int:
    """Take a pod from the reserved pools, searching wider and wider; return the stage."""
    cells, pools, clusters = supply.cells, supply.pools, flow.settings[0].clusters
    size, sizes = flow.functions[function].size, len(supply.refill_s)
    if size < 0:
        return 2
    pool = region * sizes + size
    pools[pool].taken += 1
    pools[pool].most_taken = max(pools[pool].most_taken, pools[pool].taken)
    at_s = now_s + float(supply.refill_s[size])
    for step in range(clusters):
        cluster = (function + step) % clusters
        cell = (region * clusters + cluster) * sizes + size
        if cells[cell].idle > 0:
            cells[cell].idle -= 1
            cells[cell].filling += 1
            push(flow.heap, at_s, REFILL, cell, TAKEN, 0.0)
            return min(step, 1)
    # A start from scratch brings no pod into a pool, yet it counts as needed for as long.
    push(flow.heap, at_s, REFILL, pool, SCRATCH, 0.0)
    return 2


@njit_borrowing()
def refill(flow: Flow, supply: Supply, cell: int, kind: int, now_s: float) -> None:
    """Bring a pod into a pool, unless the pool has shrunk."""
    cells, sizes, clusters = supply.cells, len(supply.refill_s), flow.settings[0].clusters
    if kind == SCRATCH:
        supply.pools[cell].taken -= 1
        return
    if kind == TAKEN:
        supply.pools[cell // (clusters * sizes) * sizes + cell % sizes].taken -= 1
    kept = cells[cell].idle + cells[cell].filling
    cells[cell].area += kept * (now_s - cells[cell].since_s)
    cells[cell].since_s = now_s
    cells[cell].filling -= 1
    if kept - 1 < cells[cell].target:
        cells[cell].idle += 1


@njit_borrowing()
def set_timer(heap: Heap, pods: Records, pod: int, expire_s: float) -> None:
    """Let a pod expire; an event is pushed only where none comes early enough."""
    pods[pod].expire_s = expire_s
    if expire_s < pods[pod].timer_s:
        pods[pod].timer_s = expire_s
        push(heap, expire_s, EXPIRE, pod, ZERO, 0.0)


@njit_borrowing()
def kill_pod(flow: Flow, pod: int, now_s: float) -> None:
    """End a pod."""
    unlink(flow.places, flow.pods, pod)
    flow.pods[pod].end_s = now_s
    flow.places[flow.pods[pod].place].num_pods -= 1
    flow.counts[ALIVE] -= 1


@njit_borrowing()
def link(places: Records, pods: Records, pod: int) -> None:
    """Put a pod into its place's list of free ones, newest first."""
    place = pods[pod].place
    before, after = -1, places[place].head
    while after > pod:
        before, after = after, pods[after].after
    pods[pod].before, pods[pod].after = before, after
    if before < 0:
        places[place].head = pod
    else:
        pods[before].after = pod
    if after >= 0:
        pods[after].before = pod


@njit_borrowing()
def unlink(places: Records, pods: Records, pod: int) -> None:
    """Take a pod out of its place's list of free ones."""
    before, after = pods[pod].before, pods[pod].after
    if before < 0:
        places[pods[pod].place].head = after
    else:
        pods[before].after = after
    if after >= 0:
        pods[after].before = before
