"""The policies of `operate.coldstart` once more, compiled; tests hold both equal step for step."""

import math

from steelyard.jit import njit_borrowing
from steelyard.sim.serverless.heap import Records
from steelyard.sim.serverless.policies import (
    KEEP_HISTOGRAM,
    KEEP_ORACLE,
    KEEP_UTILITY,
    PREWARM_CHAIN,
    PREWARM_TIMER,
)
from steelyard.sim.serverless.state import Plans

__all__ = ["idle_plan", "prewarm_times"]


@njit_borrowing()
def idle_plan(plans: Plans, rows: Records, function: int, now_s: float):
    """Return keep, prewarm and until of a pod that idles from now, seconds from now."""
    values, period_s = plans.keep, rows[function].period_s
    if values[1] > 0 and period_s > 0:
        if period_s > 2 * (rows[function].lead_s + values[2]):
            return 0.0, math.inf, math.inf
        return period_s + values[2], math.inf, math.inf
    if plans.keep_kind == KEEP_HISTOGRAM:
        return _histogram(plans, rows, function)
    if plans.keep_kind == KEEP_UTILITY:
        return _utility(plans, rows, function), math.inf, math.inf
    if plans.keep_kind == KEEP_ORACLE:
        gap_s = plans.next_s[rows[function].last_request] - now_s
        lead_s = rows[function].lead_s
        if gap_s == math.inf:
            return 0.0, math.inf, math.inf
        if gap_s <= lead_s + values[2]:
            return gap_s + values[2], math.inf, math.inf
        return 0.0, gap_s - lead_s, gap_s + values[2]
    return values[0], math.inf, math.inf


@njit_borrowing()
def _histogram(plans: Plans, rows: Records, function: int):
    """Return the plan of the hybrid histogram."""
    values, edges = plans.keep, plans.edges_s
    total, outside = rows[function].num_gaps, rows[function].num_outside
    # The classes say why each branch is there; here the order of the arithmetic is theirs, so that
    # both loops agree to the last bit.
    inside = total - outside
    if total > 0 and outside > values[7] * total:
        expected = max(rows[function].mean_gap_s - rows[function].mean_duration_s, 0.0)
        return 0.0, (1.0 - values[8]) * expected, (1.0 + values[8]) * expected
    bins = len(edges) - 1
    if inside > 0:
        mean = inside / bins
        spread = math.sqrt(max(rows[function].squares / bins - mean * mean, 0.0))
    if inside == 0 or spread < values[6] * mean:
        return values[0], math.inf, math.inf
    seen, head, tail = 0, -1, -1
    for place in range(bins):
        seen += plans.gaps[function, place]
        if head < 0 and seen >= values[3] * inside:
            head = place
        if seen >= values[4] * inside:
            tail = place
            break
    prewarm_s = edges[head] * (1.0 - values[5])
    until_s = edges[tail + 1] * (1.0 + values[5])
    if prewarm_s > 0:
        return 0.0, prewarm_s, until_s
    return until_s, math.inf, math.inf


@njit_borrowing()
def _utility(plans: Plans, rows: Records, function: int) -> float:
    """Return the keep-alive with the largest expected gain."""
    values, edges = plans.keep, plans.edges_s
    total = rows[function].num_gaps
    if total < values[4]:
        return values[0]
    saved_s = rows[function].start_mean_s * (values[3] + 1.0)
    seen, waited, best, keep_s = 0, 0.0, 0.0, 0.0
    for place in range(len(edges) - 1):
        count = plans.gaps[function, place]
        seen += count
        waited += count * (edges[place] + edges[place + 1]) / 2.0
        gain = seen * saved_s - waited - (total - seen) * edges[place + 1]
        if gain > best:
            best, keep_s = gain, edges[place + 1]
    return keep_s


@njit_borrowing()
def prewarm_times(
    order: Records, rows: Records, function: int, target: int, now_s: float
) -> tuple[float, float]:
    """Return start and end of an order for `target` at an arrival; the start is < 0 for none.

    Args:
        order: record of the policy: kind and two numbers.
        rows: all functions.
        function: who was called.
        target: whose pod it is.
        now_s: time of the call, seconds.

    Returns:
        Both times, seconds.
    """
    lead_s = rows[target].lead_s
    if order.kind == PREWARM_TIMER:
        period_s = rows[function].period_s
        if period_s > 2 * (lead_s + order.first):
            return now_s + period_s - lead_s - order.first, now_s + period_s + order.first
        return -1.0, 0.0
    if order.kind == PREWARM_CHAIN:
        ahead_s = rows[function].mean_duration_s
        return now_s + max(ahead_s - lead_s, 0.0), now_s + ahead_s + order.first
    mean_s = rows[function].mean_gap_s
    is_regular = (
        rows[function].num_arrivals >= order.second
        and rows[function].spread_s <= order.first * mean_s
    )
    start_s = (1.0 - order.first) * mean_s - lead_s
    if is_regular and start_s > 0:
        return now_s + start_s, now_s + (1.0 + order.first) * mean_s
    return -1.0, 0.0
