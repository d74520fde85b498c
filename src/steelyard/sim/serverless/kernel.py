"""The compiled event loop of a platform; `reference` is the same model on `EventLoop`."""

import math

import numpy as np

from steelyard.jit import njit
from steelyard.sim.serverless.heap import pop, push
from steelyard.sim.serverless.lifecycle import (
    ARRIVAL,
    DEADLINE,
    END,
    EXPIRE,
    PREWARM,
    REFILL,
    kill_pod,
    link,
    refill,
    set_timer,
    start_pod,
    unlink,
)
from steelyard.sim.serverless.policies import KEEP_ORACLE, PREWARM_CHAIN
from steelyard.sim.serverless.rules import idle_plan, prewarm_times
from steelyard.sim.serverless.state import EVENTS, NEXT, NUM_PODS, State
from steelyard.sim.serverless.tables import Tables

__all__ = ["COLD", "FIRM", "HELD", "LATE", "QUEUED", "WARM", "advance"]

WARM, COLD, LATE, HELD = range(4)
QUEUED = -2
FIRM = -1
"""Version of an order that later arrivals do not cancel."""


@njit(error_model="numpy")
def advance(tables: Tables, state: State, until_s: float, is_last: bool) -> bool:
    """Run events before a time, and at it where this is the last call.

    Args:
        tables: what does not change.
        state: what does.
        until_s: the time, seconds.
        is_last: whether events at that time run as well.

    Returns:
        False when a table is full: the caller makes room and calls again.
    """
    heap, counts, arrivals = state.heap, state.counts, tables.requests
    num_orders = len(tables.prewarm_kinds)
    # An event may push an end, an expiry, a plan's pod, refills, and orders of each policy.
    room = 16 + num_orders * (1 + len(tables.child))
    while True:
        if heap.count[0] + room > len(heap.items) or counts[NUM_PODS] + 2 > len(state.pods):
            return False
        request = counts[NEXT]
        now_s = arrivals[request].time_s if request < len(arrivals) else math.inf
        is_arrival = True
        if heap.count[0] > 0:
            first_s = heap.items[0].time_s
            # Keys of priorities below that of arrivals are smaller than its first one.
            if first_s < now_s or (first_s == now_s and heap.items[0].key < ARRIVAL << 52):
                now_s, is_arrival = first_s, False
        if now_s > until_s or (now_s == until_s and not is_last) or now_s == math.inf:
            return True
        counts[EVENTS] += 1
        if is_arrival:
            counts[NEXT] += 1
            _arrive(tables, state, request, now_s)
            continue
        priority, slot = pop(heap)
        first, second = heap.events[slot].first, heap.events[slot].second
        if priority == END:
            _end(tables, state, first, second, now_s)
        elif priority == EXPIRE:
            _expire(tables, state, first, now_s)
        elif priority == PREWARM:
            _prewarm(tables, state, first, second, heap.events[slot].value, now_s)
        elif priority == REFILL:
            refill(tables, state, first, second, now_s)
        else:
            _give_up(tables, state, first, second, now_s)


@njit(error_model="numpy")
def _arrive(tables: Tables, state: State, request: int, now_s: float) -> None:
    """Serve a request, and let policies order pods."""
    rows, function = state.functions, tables.requests[request].function
    own = tables.functions[function]
    _learn(tables, state, function, now_s)
    rows[function].next_s = tables.requests[request].next_s
    place = function * len(tables.rtt_s) + rows[function].region
    pod = _find(state, place, now_s)
    if pod >= 0:
        status = LATE if state.pods[pod].ready_s > now_s else WARM
        _bind(tables, state, pod, request, status, now_s)
    elif _may_wait(tables, state, function, place):
        state.requests[request].status = QUEUED
        if state.places[place].queue_head < 0:
            state.places[place].queue_head = request
        else:
            state.requests[state.places[place].queue_tail].after = request
        state.places[place].queue_tail = request
        state.places[place].num_queued += 1
        push(state.heap, now_s + tables.delay_s, DEADLINE, request, place, 0.0)
    else:
        _bind(tables, state, start_pod(tables, state, place, 0, now_s), request, COLD, now_s)
    for order in range(len(tables.prewarm_kinds)):
        if tables.prewarm_kinds[order] == PREWARM_CHAIN:
            for place in range(own.child_begin, own.child_end):
                child = tables.child[place]
                at_s, until_s = prewarm_times(tables, state, order, function, child, now_s)
                push(state.heap, at_s, PREWARM, child, FIRM, until_s)
        else:
            at_s, until_s = prewarm_times(tables, state, order, function, function, now_s)
            if at_s >= 0:
                version = rows[function].num_arrivals
                push(state.heap, at_s, PREWARM, function, version, until_s)


@njit(error_model="numpy")
def _learn(tables: Tables, state: State, function: int, now_s: float) -> None:
    """Count the gap that an arrival ends."""
    rows = state.functions
    if rows[function].num_running == 0 and rows[function].last_end_s >= 0:
        gap_s = now_s - rows[function].last_end_s
        rows[function].num_gaps += 1
        if gap_s >= tables.edges_s[-1]:
            rows[function].num_outside += 1
        else:
            place = np.searchsorted(tables.edges_s, gap_s, side="right") - 1
            rows[function].squares += 2 * state.gaps[function, place] + 1
            state.gaps[function, place] += 1
    between_s = now_s - rows[function].last_arrival_s
    if rows[function].num_arrivals == 1:
        rows[function].mean_gap_s = between_s
    elif rows[function].num_arrivals > 1:
        away_s = abs(between_s - rows[function].mean_gap_s)
        rows[function].spread_s += 0.3 * (away_s - rows[function].spread_s)
        rows[function].mean_gap_s += 0.3 * (between_s - rows[function].mean_gap_s)
    rows[function].num_arrivals += 1
    rows[function].last_arrival_s = now_s


@njit(error_model="numpy")
def _find(state: State, place: int, now_s: float) -> int:
    """Return the newest ready pod with a free slot, else the one soonest ready, else -1."""
    pods = state.pods
    pod, soonest = state.places[place].head, -1
    while pod >= 0:
        if pods[pod].ready_s <= now_s:
            return pod
        if soonest < 0 or pods[pod].ready_s < pods[soonest].ready_s:
            soonest = pod
        pod = pods[pod].after
    return soonest


@njit(error_model="numpy")
def _may_wait(tables: Tables, state: State, function: int, place: int) -> bool:
    """Say whether a request is held back: its pods could serve it before the deadline."""
    rows = state.functions
    if (
        tables.delay_s <= 0
        or not tables.functions[function].is_async
        or state.places[place].num_pods == 0
    ):
        return False
    slots = state.places[place].num_pods * tables.functions[function].slots
    expected_s = (state.places[place].num_queued + 1) * rows[function].mean_duration_s / slots
    return expected_s <= tables.delay_s


@njit(error_model="numpy")
def _bind(tables: Tables, state: State, pod: int, request: int, status: int, now_s: float) -> None:
    """Put a request on a free slot of a pod."""
    pods, place = state.pods, state.pods[pod].place
    function, region = place // len(tables.rtt_s), place % len(tables.rtt_s)
    begin_s = max(now_s, pods[pod].ready_s)
    rtt_s = tables.rtt_s[tables.functions[function].home, region]
    state.requests[request].wait_s = begin_s - tables.requests[request].time_s + rtt_s
    state.requests[request].status = status
    if pods[pod].free == tables.functions[function].slots:
        pods[pod].since_s = begin_s
    if begin_s > now_s and pods[pod].kind == 1:
        pods[pod].is_late = 1
    pods[pod].free -= 1
    if pods[pod].free == 0:
        unlink(state, pod)
    state.functions[function].num_running += 1
    push(state.heap, begin_s + tables.requests[request].duration_s, END, pod, request, 0.0)


@njit(error_model="numpy")
def _end(tables: Tables, state: State, pod: int, request: int, now_s: float) -> None:
    """Free a slot; an idle pod gets its plan."""
    pods, rows, place = state.pods, state.functions, state.pods[pod].place
    function = place // len(tables.rtt_s)
    rows[function].num_running -= 1
    rows[function].num_ends += 1
    away_s = tables.requests[request].duration_s - rows[function].mean_duration_s
    rows[function].mean_duration_s += away_s / rows[function].num_ends
    rows[function].last_end_s = now_s
    pods[pod].last_end_s = now_s
    pods[pod].free += 1
    if pods[pod].free == 1:
        link(state, pod)
    if pods[pod].free == tables.functions[function].slots:
        pods[pod].busy_s += now_s - pods[pod].since_s
    _drain(tables, state, pod, now_s)
    if pods[pod].free < tables.functions[function].slots:
        return
    if rows[function].num_running > 0:
        keep_s, prewarm_s, until_s = tables.keep[0], math.inf, math.inf
    else:
        keep_s, prewarm_s, until_s = _plan(tables, state, function, now_s)
    if keep_s <= 0:
        kill_pod(state, pod, now_s)
    else:
        set_timer(state, pod, now_s + keep_s)
    if prewarm_s < math.inf:
        version = rows[function].num_arrivals
        push(state.heap, now_s + prewarm_s, PREWARM, function, version, now_s + until_s)


@njit(error_model="numpy")
def _plan(tables: Tables, state: State, function: int, now_s: float):
    """Return the plan in force, made anew once the gaps have grown by 3 %."""
    rows = state.functions
    if tables.keep_kind == KEEP_ORACLE:
        return idle_plan(tables, state, function, now_s)
    gaps = rows[function].num_gaps
    if gaps >= rows[function].plan_until:
        keep_s, prewarm_s, until_s = idle_plan(tables, state, function, now_s)
        state.plan[function, 0] = keep_s
        state.plan[function, 1] = prewarm_s
        state.plan[function, 2] = until_s
        rows[function].plan_until = gaps + 1 + gaps // 32
    return state.plan[function, 0], state.plan[function, 1], state.plan[function, 2]


@njit(error_model="numpy")
def _drain(tables: Tables, state: State, pod: int, now_s: float) -> None:
    """Put requests that were held back on a pod's free slots."""
    place = state.pods[pod].place
    while state.pods[pod].free > 0 and state.places[place].queue_head >= 0:
        request = state.places[place].queue_head
        state.places[place].queue_head = state.requests[request].after
        # Those that gave up stay in the queue until their turn comes.
        if state.requests[request].status == QUEUED:
            state.places[place].num_queued -= 1
            _bind(tables, state, pod, request, HELD, now_s)


@njit(error_model="numpy")
def _give_up(tables: Tables, state: State, request: int, place: int, now_s: float) -> None:
    """Start a pod for a request whose time to wait is over."""
    if state.requests[request].status == QUEUED:
        state.places[place].num_queued -= 1
        pod = start_pod(tables, state, place, 0, now_s)
        _bind(tables, state, pod, request, COLD, now_s)
        _drain(tables, state, pod, now_s)


@njit(error_model="numpy")
def _prewarm(
    tables: Tables, state: State, function: int, version: int, until_s: float, now_s: float
) -> None:
    """Start a pod ahead, or keep one that is there."""
    rows, pods = state.functions, state.pods
    if version != FIRM and rows[function].num_arrivals != version:
        return
    place = function * len(tables.rtt_s) + rows[function].region
    pod = _find(state, place, now_s)
    if pod < 0:
        pod = start_pod(tables, state, place, 1, now_s)
        set_timer(state, pod, max(until_s, pods[pod].ready_s))
        _drain(tables, state, pod, now_s)
    elif pods[pod].free == tables.functions[function].slots:
        pods[pod].expire_s = max(pods[pod].expire_s, until_s)


@njit(error_model="numpy")
def _expire(tables: Tables, state: State, pod: int, now_s: float) -> None:
    """End an idle pod whose time is over; look again later where it was used since."""
    pods, function = state.pods, state.pods[pod].place // len(tables.rtt_s)
    if pods[pod].timer_s != now_s:
        return  # an earlier event took the place of this one
    pods[pod].timer_s = math.inf
    if pods[pod].end_s == math.inf and pods[pod].free == tables.functions[function].slots:
        if pods[pod].expire_s <= now_s:
            kill_pod(state, pod, now_s)
        else:
            set_timer(state, pod, pods[pod].expire_s)
