"""The compiled event loop of a platform; `reference` is the same model on `EventLoop`.

Functions take the tables that they touch and no more: what a compiled function is handed is copied
at each call, and the whole state took longer to hand over than an event takes.
"""

import math

from numpy.typing import NDArray

from steelyard.jit import njit_borrowing
from steelyard.sim.serverless.heap import PRIORITY, ZERO, Records, constants, pop, push
from steelyard.sim.serverless.lifecycle import (
    AHEAD,
    ARRIVAL,
    BY_REQUEST,
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
from steelyard.sim.serverless.state import EVENTS, NEXT, NUM_PODS, Flow, Plans, Supply

__all__ = ["COLD", "FIRM", "HELD", "LATE", "QUEUED", "WARM", "advance", "room_for_one"]

WARM, COLD, LATE, HELD = constants(4)
QUEUED = -2
FIRM = ZERO - 1
"""Version of an order that later arrivals do not cancel."""


@njit_borrowing()
def room_for_one(plans: Plans) -> int:
    """Return how many events one may push: end, expiry, plan, refills, orders of each policy."""
    return 16 + len(plans.orders) * (1 + len(plans.child))


@njit_borrowing()
def advance(flow: Flow, supply: Supply, plans: Plans, until_s: float, is_last: bool) -> bool:
    """Run events before a time, and at it where this is the last call.

    Args:
        flow: what every event touches.
        supply: what starts take.
        plans: policies.
        until_s: the time, seconds.
        is_last: whether events at that time run as well.

    Returns:
        False when a table is full: the caller makes room and calls again.
    """
    heap, counts, requests = flow.heap, flow.counts, flow.requests
    room = room_for_one(plans)
    while True:
        if heap.count[0] + room >= len(heap.events) or counts[NUM_PODS] + 2 > len(flow.pods):
            return False
        request = counts[NEXT]
        now_s = requests[request].time_s if request < len(requests) else math.inf
        is_arrival = True
        if heap.count[0] > 0:
            first_s = heap.events[0].time_s
            # Keys of priorities below that of arrivals are smaller than its first one.
            if first_s < now_s or (first_s == now_s and heap.events[0].key < ARRIVAL * PRIORITY):
                now_s, is_arrival = first_s, False
        if now_s > until_s or (now_s == until_s and not is_last) or now_s == math.inf:
            return True
        counts[EVENTS] += 1
        if is_arrival:
            counts[NEXT] += 1
            _arrive(flow, supply, plans, request, now_s)
        else:
            _act(flow, supply, plans, heap.events[pop(heap)], now_s)


@njit_borrowing()
def _act(flow: Flow, supply: Supply, plans: Plans, event: Records, now_s: float) -> None:
    """Run an event from the heap."""
    priority, value = event.key // PRIORITY, event.value
    first, second = event.first, event.second
    if priority == END:
        _end(flow, plans, first, second, now_s)
    elif priority == EXPIRE:
        _expire(flow, first, now_s)
    elif priority == PREWARM:
        _prewarm(flow, supply, first, second, value, now_s)
    elif priority == REFILL:
        refill(flow, supply, first, second, now_s)
    else:
        _give_up(flow, supply, first, second, now_s)


@njit_borrowing()
def _arrive(flow: Flow, supply: Supply, plans: Plans, request: int, now_s: float) -> None:
    """Serve a request, and let policies order pods."""
    rows, places, requests = flow.functions, flow.places, flow.requests
    function = requests[request].function
    _learn(rows, plans, function, now_s)
    rows[function].last_request = request
    place = function * flow.settings[0].regions + rows[function].region
    pod = _find(places, flow.pods, place, now_s)
    if pod >= 0:
        _bind(flow, pod, request, LATE if flow.pods[pod].ready_s > now_s else WARM, now_s)
    elif _may_wait(rows, places, flow.settings[0].delay_s, place):
        requests[request].status = QUEUED
        if places[place].queue_head < 0:
            places[place].queue_head = request
        else:
            requests[places[place].queue_tail].after = request
        places[place].queue_tail = request
        places[place].num_queued += 1
        push(flow.heap, now_s + flow.settings[0].delay_s, DEADLINE, request, place, 0.0)
    else:
        _bind(flow, start_pod(flow, supply, place, BY_REQUEST, now_s), request, COLD, now_s)
    if len(plans.orders):
        _order(flow, plans, function, now_s)


@njit_borrowing()
def _order(flow: Flow, plans: Plans, function: int, now_s: float) -> None:
    """Let policies order pods at an arrival."""
    rows, orders = flow.functions, plans.orders
    for at in range(len(orders)):
        if orders[at].kind == PREWARM_CHAIN:
            for link_at in range(rows[function].child_begin, rows[function].child_end):
                child = plans.child[link_at]
                at_s, until_s = prewarm_times(orders[at], rows, function, child, now_s)
                push(flow.heap, at_s, PREWARM, child, FIRM, until_s)
        else:
            at_s, until_s = prewarm_times(orders[at], rows, function, function, now_s)
            if at_s >= 0:
                version = rows[function].num_arrivals
                push(flow.heap, at_s, PREWARM, function, version, until_s)


@njit_borrowing()
def _learn(rows: Records, plans: Plans, function: int, now_s: float) -> None:
    """Count the gap that an arrival ends."""
    if rows[function].num_running == 0 and rows[function].last_end_s >= 0:
        gap_s = now_s - rows[function].last_end_s
        rows[function].num_gaps += 1
        if gap_s >= plans.edges_s[-1]:
            rows[function].num_outside += 1
        else:
            place = _bin(plans.edges_s, gap_s)
            rows[function].squares += 2 * plans.gaps[function, place] + 1
            plans.gaps[function, place] += 1
    between_s = now_s - rows[function].last_arrival_s
    if rows[function].num_arrivals == 1:
        rows[function].mean_gap_s = between_s
    elif rows[function].num_arrivals > 1:
        away_s = abs(between_s - rows[function].mean_gap_s)
        rows[function].spread_s += 0.3 * (away_s - rows[function].spread_s)
        rows[function].mean_gap_s += 0.3 * (between_s - rows[function].mean_gap_s)
    rows[function].num_arrivals += 1
    rows[function].last_arrival_s = now_s


@njit_borrowing()
def _bin(edges_s: NDArray, gap_s: float) -> int:
    """Return the bin of a gap, which is below the last edge."""
    low, high = 0, len(edges_s) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if edges_s[middle] <= gap_s:
            low = middle
        else:
            high = middle
    return low


@njit_borrowing()
def _find(places: Records, pods: Records, place: int, now_s: float) -> int:
    """Return the newest ready pod with a free slot, else the one soonest ready, else -1."""
    pod, soonest = places[place].head, -1
    while pod >= 0:
        if pods[pod].ready_s <= now_s:
            return pod
        if soonest < 0 or pods[pod].ready_s < pods[soonest].ready_s:
            soonest = pod
        pod = pods[pod].after
    return soonest


@njit_borrowing()
def _may_wait(rows: Records, places: Records, delay_s: float, place: int) -> bool:
    """Say whether a request is held back: its pods could serve it before the deadline."""
    function = places[place].function
    if delay_s <= 0 or not rows[function].is_async or places[place].num_pods == 0:
        return False
    slots = places[place].num_pods * places[place].slots
    expected_s = (places[place].num_queued + 1) * rows[function].mean_duration_s / slots
    return expected_s <= delay_s


@njit_borrowing()
def _bind(flow: Flow, pod: int, request: int, status: int, now_s: float) -> None:
    """Put a request on a free slot of a pod."""
    pods, requests, place = flow.pods, flow.requests, flow.pods[pod].place
    begin_s = max(now_s, pods[pod].ready_s)
    requests[request].wait_s = begin_s - requests[request].time_s + flow.places[place].rtt_s
    requests[request].status = status
    if pods[pod].free == flow.places[place].slots:
        pods[pod].since_s = begin_s
    if begin_s > now_s and pods[pod].kind == AHEAD:
        pods[pod].is_late = 1
    pods[pod].free -= 1
    if pods[pod].free == 0:
        unlink(flow.places, pods, pod)
    flow.functions[flow.places[place].function].num_running += 1
    push(flow.heap, begin_s + requests[request].duration_s, END, pod, request, 0.0)


@njit_borrowing()
def _end(flow: Flow, plans: Plans, pod: int, request: int, now_s: float) -> None:
    """Free a slot; an idle pod gets its plan."""
    pods, rows, place = flow.pods, flow.functions, flow.pods[pod].place
    function, slots = flow.places[place].function, flow.places[place].slots
    rows[function].num_running -= 1
    rows[function].num_ends += 1
    away_s = flow.requests[request].duration_s - rows[function].mean_duration_s
    rows[function].mean_duration_s += away_s / rows[function].num_ends
    rows[function].last_end_s = now_s
    pods[pod].last_end_s = now_s
    pods[pod].free += 1
    if pods[pod].free == 1:
        link(flow.places, pods, pod)
    if pods[pod].free == slots:
        pods[pod].busy_s += now_s - pods[pod].since_s
    _drain(flow, pod, now_s)
    if pods[pod].free < slots:
        return
    if rows[function].num_running > 0:
        keep_s, prewarm_s, until_s = plans.keep[0], math.inf, math.inf
    else:
        keep_s, prewarm_s, until_s = _plan(rows, plans, function, now_s)
    if keep_s <= 0:
        kill_pod(flow, pod, now_s)
    else:
        set_timer(flow.heap, pods, pod, now_s + keep_s)
    if prewarm_s < math.inf:
        version = rows[function].num_arrivals
        push(flow.heap, now_s + prewarm_s, PREWARM, function, version, now_s + until_s)


@njit_borrowing()
def _plan(rows: Records, plans: Plans, function: int, now_s: float):
    """Return the plan in force, made anew once the gaps have grown by 3 %."""
    # The oracle's plan is for one gap, so it holds for no other.
    if plans.keep_kind == KEEP_ORACLE:
        return idle_plan(plans, rows, function, now_s)
    gaps, made = rows[function].num_gaps, plans.made
    if gaps >= rows[function].plan_until:
        keep_s, prewarm_s, until_s = idle_plan(plans, rows, function, now_s)
        made[function, 0], made[function, 1], made[function, 2] = keep_s, prewarm_s, until_s
        rows[function].plan_until = gaps + 1 + gaps // 32
    return made[function, 0], made[function, 1], made[function, 2]


@njit_borrowing()
def _drain(flow: Flow, pod: int, now_s: float) -> None:
    """Put requests that were held back on a pod's free slots."""
    places, requests, place = flow.places, flow.requests, flow.pods[pod].place
    while flow.pods[pod].free > 0 and places[place].queue_head >= 0:
        request = places[place].queue_head
        places[place].queue_head = requests[request].after
        # Those that gave up stay in the queue until their turn comes.
        if requests[request].status == QUEUED:
            places[place].num_queued -= 1
            _bind(flow, pod, request, HELD, now_s)


@njit_borrowing()
def _give_up(flow: Flow, supply: Supply, request: int, place: int, now_s: float) -> None:
    """Start a pod for a request whose time to wait is over."""
    if flow.requests[request].status == QUEUED:
        flow.places[place].num_queued -= 1
        pod = start_pod(flow, supply, place, BY_REQUEST, now_s)
        _bind(flow, pod, request, COLD, now_s)
        _drain(flow, pod, now_s)


@njit_borrowing()
def _prewarm(
    flow: Flow, supply: Supply, function: int, version: int, until_s: float, now_s: float
) -> None:
    """Start a pod ahead, or keep one that is there."""
    rows, pods = flow.functions, flow.pods
    if version != FIRM and rows[function].num_arrivals != version:
        return
    place = function * flow.settings[0].regions + rows[function].region
    pod = _find(flow.places, pods, place, now_s)
    if pod < 0:
        pod = start_pod(flow, supply, place, AHEAD, now_s)
        set_timer(flow.heap, pods, pod, max(until_s, pods[pod].ready_s))
        _drain(flow, pod, now_s)
    elif pods[pod].free == flow.places[place].slots:
        pods[pod].expire_s = max(pods[pod].expire_s, until_s)


@njit_borrowing()
def _expire(flow: Flow, pod: int, now_s: float) -> None:
    """End an idle pod whose time is over; look again later where it was used since."""
    pods, slots = flow.pods, flow.places[flow.pods[pod].place].slots
    if pods[pod].timer_s != now_s:
        return  # an earlier event took the place of this one
    pods[pod].timer_s = math.inf
    if pods[pod].end_s == math.inf and pods[pod].free == slots:
        if pods[pod].expire_s <= now_s:
            kill_pod(flow, pod, now_s)
        else:
            set_timer(flow.heap, pods, pod, pods[pod].expire_s)
