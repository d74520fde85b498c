"""The life of a pod in the compiled loop: it is taken from a pool, started, listed, and ended."""

import math

import numpy as np

from steelyard.jit import njit
from steelyard.sim.serverless.draws import draw_parts, quantile_at
from steelyard.sim.serverless.heap import push
from steelyard.sim.serverless.state import ALIVE, NUM_PODS, PEAK, State
from steelyard.sim.serverless.tables import Tables

__all__ = [
    "ARRIVAL",
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
END, REFILL, PREWARM, ARRIVAL, DEADLINE, EXPIRE = range(6)
TAKEN, SCRATCH, FILL = range(3)


@njit(error_model="numpy")
def start_pod(tables: Tables, state: State, place: int, kind: int, now_s: float) -> int:
    """Start a pod and return it."""
    pods, rows = state.pods, state.functions
    regions = len(tables.rtt_s)
    function, region = place // regions, place % regions
    runtime, pod = tables.functions[function].runtime, state.counts[NUM_PODS]
    state.counts[NUM_PODS] += 1
    level = draw_parts(
        tables.curves[runtime],
        tables.shares[runtime],
        tables.factors[runtime],
        tables.seed,
        function,
        rows[function].num_starts,
        state.parts_s[pod],
    )
    rows[function].num_starts += 1
    pods[pod].stage = -1
    if tables.has_pools:
        pods[pod].stage = _take(tables, state, function, region, now_s)
        if tables.functions[function].size >= 0:
            stage = tables.stages[pods[pod].stage]
            state.parts_s[pod, tables.pool_part] = quantile_at(stage, level)
    if tables.queue_part >= 0:
        free_s = state.scheduler_s[region]
        at = np.argmin(free_s)
        waited_s = max(free_s[at] - now_s, 0.0)
        free_s[at] = now_s + waited_s + tables.service_s
        state.parts_s[pod, tables.queue_part] += waited_s
    total_s = 0.0
    for part in state.parts_s[pod]:
        total_s += part
    state.regions[region].start_sum_s += total_s
    state.regions[region].num_starts += 1
    pods[pod].place, pods[pod].kind, pods[pod].is_late = place, kind, 0
    pods[pod].start_s, pods[pod].ready_s, pods[pod].end_s = now_s, now_s + total_s, math.inf
    pods[pod].last_end_s, pods[pod].busy_s, pods[pod].since_s = -1.0, 0.0, now_s
    pods[pod].expire_s, pods[pod].timer_s = math.inf, math.inf
    pods[pod].free = tables.functions[function].slots
    link(state, pod)
    state.places[place].num_pods += 1
    state.counts[ALIVE] += 1
    state.counts[PEAK] = max(state.counts[PEAK], state.counts[ALIVE])
    return pod


@njit(error_model="numpy")
def _take(tables: Tables, state: State, function: int, region: int, now_s: float) -> int:
    """Take a pod from the reserved pools, searching wider and wider; return the stage."""
    cells, size = state.cells, tables.functions[function].size
    if size < 0:
        return 2
    pool = region * len(tables.refill_s) + size
    state.pools[pool].taken += 1
    state.pools[pool].most_taken = max(state.pools[pool].most_taken, state.pools[pool].taken)
    at_s = now_s + float(tables.refill_s[size])
    for step in range(tables.clusters):
        cluster = (function + step) % tables.clusters
        cell = (region * tables.clusters + cluster) * len(tables.refill_s) + size
        if cells[cell].idle > 0:
            cells[cell].idle -= 1
            cells[cell].filling += 1
            push(state.heap, at_s, REFILL, cell, TAKEN, 0.0)
            return min(step, 1)
    push(state.heap, at_s, REFILL, pool, SCRATCH, 0.0)
    return 2


@njit(error_model="numpy")
def refill(tables: Tables, state: State, cell: int, kind: int, now_s: float) -> None:
    """Bring a pod into a pool, unless the pool has shrunk."""
    cells, sizes = state.cells, len(tables.refill_s)
    if kind == SCRATCH:
        state.pools[cell].taken -= 1
        return
    if kind == TAKEN:
        state.pools[cell // (tables.clusters * sizes) * sizes + cell % sizes].taken -= 1
    kept = cells[cell].idle + cells[cell].filling
    cells[cell].area += kept * (now_s - cells[cell].since_s)
    cells[cell].since_s = now_s
    cells[cell].filling -= 1
    if kept - 1 < cells[cell].target:
        cells[cell].idle += 1


@njit(error_model="numpy")
def set_timer(state: State, pod: int, expire_s: float) -> None:
    """Let a pod expire; an event is pushed only where none comes early enough."""
    pods = state.pods
    pods[pod].expire_s = expire_s
    if expire_s < pods[pod].timer_s:
        pods[pod].timer_s = expire_s
        push(state.heap, expire_s, EXPIRE, pod, 0, 0.0)


@njit(error_model="numpy")
def kill_pod(state: State, pod: int, now_s: float) -> None:
    """End a pod."""
    unlink(state, pod)
    state.pods[pod].end_s = now_s
    state.places[state.pods[pod].place].num_pods -= 1
    state.counts[ALIVE] -= 1


@njit(error_model="numpy")
def link(state: State, pod: int) -> None:
    """Put a pod into its place's list of free ones, newest first."""
    pods, place = state.pods, state.pods[pod].place
    before, after = -1, state.places[place].head
    while after > pod:
        before, after = after, pods[after].after
    pods[pod].before, pods[pod].after = before, after
    if before < 0:
        state.places[place].head = pod
    else:
        pods[before].after = pod
    if after >= 0:
        pods[after].before = pod


@njit(error_model="numpy")
def unlink(state: State, pod: int) -> None:
    """Take a pod out of its place's list of free ones."""
    pods, before, after = state.pods, state.pods[pod].before, state.pods[pod].after
    if before < 0:
        state.places[pods[pod].place].head = after
    else:
        pods[before].after = after
    if after >= 0:
        pods[after].before = before
