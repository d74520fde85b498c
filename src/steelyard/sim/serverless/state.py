"""What a run of the compiled loop reads and changes, as tables that grow where a run is long.

Tables are few, and arrays of records: each array that a compiled function is handed costs it seven
arguments at every call, and time to compile.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.sim.serverless.heap import Heap, Records, make_heap
from steelyard.sim.serverless.policies import KEEP_ORACLE
from steelyard.sim.serverless.tables import Tables
from steelyard.sim.serverless.workload import Workload

__all__ = ["PODS", "Flow", "Plans", "State", "Supply", "make_pods", "make_state"]

PODS = np.dtype(
    [
        ("place", "i8"),  # function times regions plus region
        ("kind", "i8"),  # 0 started by a request, 1 ahead of one
        ("stage", "i8"),  # of the pools' search that found it; -1 without pools
        ("is_late", "i8"),  # 1 where it was started ahead, yet a request waited for it
        ("free", "i8"),  # slots without a request
        ("after", "i8"),  # neighbours in its place's list of pods with a free slot, newest first
        ("before", "i8"),
        ("start_s", "f8"),
        ("ready_s", "f8"),
        ("end_s", "f8"),  # infinite while it lives
        ("last_end_s", "f8"),  # end of its last request; -1 before the first
        ("busy_s", "f8"),
        ("since_s", "f8"),  # when the present busy time began
        ("expire_s", "f8"),
        ("timer_s", "f8"),  # time of its pending expiry event; infinite for none
    ]
)
"""One row per pod that was ever started, in the order of starting."""

_REQUESTS = np.dtype(
    [
        ("time_s", "f8"),
        ("duration_s", "f8"),
        ("wait_s", "f8"),  # from arrival until it ran; NaN where it never did
        ("function", "i8"),
        ("status", "i8"),  # as in the result; below 0 while it is not served
        ("after", "i8"),  # next in the queue of its place
    ]
)
_PLACES = np.dtype(
    [
        ("head", "i8"),  # newest pod with a free slot
        ("num_pods", "i8"),  # alive or starting
        ("queue_head", "i8"),
        ("queue_tail", "i8"),
        ("num_queued", "i8"),
        ("function", "i8"),
        ("region", "i8"),
        ("slots", "i8"),
        ("rtt_s", "f8"),  # from the function's home
    ]
)
"""Rows by function and region; -1 stands for no pod and no request."""
_CELLS = np.dtype(
    [
        ("idle", "i8"),
        ("filling", "i8"),
        ("target", "i8"),
        ("area", "f8"),  # pod-seconds kept so far, those being filled included
        ("since_s", "f8"),
    ]
)
"""Rows by region, cluster and pool."""
_POOLS = np.dtype([("taken", "i8"), ("most_taken", "i8")])
"""Rows by region and pool: starts of the last `refill_s` seconds, which is what a pool needed."""
_REGIONS = np.dtype([("start_sum_s", "f8"), ("num_starts", "i8")])
_SETTINGS = np.dtype(
    [
        ("seed", "i8"),
        ("regions", "i8"),
        ("clusters", "i8"),
        ("has_pools", "i8"),
        ("pool_part", "i8"),
        ("queue_part", "i8"),
        ("service_s", "f8"),
        ("delay_s", "f8"),
    ]
)


class Flow(NamedTuple):
    """What every event touches.

    Attributes:
        heap: events to come; arrivals are read from `requests` in place.
        requests: requests in the order of time.
        functions: constants and counters, as in `Tables`.
        places: functions by region.
        pods: every pod.
        counts: pods, next request, events, pods alive, most alive at a time.
        settings: one row of numbers.
    """

    heap: Heap
    requests: Records
    functions: Records
    places: Records
    pods: Records
    counts: NDArray[np.int64]
    settings: Records


class Supply(NamedTuple):
    """What a start takes: its draws, reserved pods, schedulers.

    Attributes:
        curves: quantiles of the parts, [U, P, 201].
        shares: fraction of starts that have the part, [U, P].
        factors: factors of the copula, [U, P, P].
        stages: quantiles of the pools' stages, [3, 201].
        parts_s: parts of each pod's start, [pods, P].
        cells: pools by cluster.
        pools: pools by region.
        regions: starts by region.
        refill_s: time at which each pool is refilled.
        scheduler_s: when each scheduler is free, [R, schedulers].
    """

    curves: NDArray[np.float64]
    shares: NDArray[np.float64]
    factors: NDArray[np.float64]
    stages: NDArray[np.float64]
    parts_s: NDArray[np.float64]
    cells: Records
    pools: Records
    regions: Records
    refill_s: NDArray[np.float64]
    scheduler_s: NDArray[np.float64]


class Plans(NamedTuple):
    """Policies as numbers, and what they have learned.

    Attributes:
        keep_kind: keep-alive policy.
        keep: its parameters.
        edges_s: edges of the bins of gaps.
        gaps: gaps by function and bin.
        made: plan in force, [F, 3].
        orders: policies of starts ahead.
        child: whom a function calls, all in a row.
        next_s: next arrival of each request's function, infinite for none; empty unless it is
            looked at.
    """

    keep_kind: int
    keep: NDArray[np.float64]
    edges_s: NDArray[np.float64]
    gaps: NDArray[np.int32]
    made: NDArray[np.float64]
    orders: Records
    child: NDArray[np.int64]
    next_s: NDArray[np.float64]


class State(NamedTuple):
    """All of a run."""

    flow: Flow
    supply: Supply
    plans: Plans


NUM_PODS, NEXT, EVENTS, ALIVE, PEAK = range(5)


def make_pods(capacity: int, num_parts: int) -> tuple[Records, NDArray[np.float64]]:
    """Return an empty table of so many pods, and their parts."""
    return np.zeros(capacity, dtype=PODS), np.zeros((capacity, num_parts))


def make_state(tables: Tables, workload: Workload, num_schedulers: int) -> State:
    """Return the state before the first event.

    Args:
        tables: platform and workload as arrays.
        workload: whose requests arrive.
        num_schedulers: schedulers of a region.

    Returns:
        The state.
    """
    regions, pools = len(tables.rtt_s), len(tables.refill_s)
    pods, parts_s = make_pods(max(1024, len(workload) // 8), tables.shares.shape[1])
    settings = np.zeros(1, dtype=_SETTINGS)
    settings["regions"] = regions
    for name in ("seed", "clusters", "has_pools", "pool_part", "queue_part"):
        settings[name] = getattr(tables, name)
    settings["service_s"], settings["delay_s"] = tables.service_s, tables.delay_s
    flow = Flow(
        make_heap(4096),
        _requests(workload),
        tables.functions,
        _places(tables),
        pods,
        np.zeros(5, dtype=np.int64),
        settings,
    )
    supply = Supply(
        tables.curves,
        tables.shares,
        tables.factors,
        tables.stages,
        parts_s,
        np.zeros(regions * tables.clusters * pools, dtype=_CELLS),
        np.zeros(regions * pools, dtype=_POOLS),
        np.zeros(regions, dtype=_REGIONS),
        tables.refill_s,
        np.zeros((regions, num_schedulers)),
    )
    return State(flow, supply, _plans(tables, workload))


def _requests(workload: Workload) -> Records:
    """Return requests as records."""
    rows = np.zeros(len(workload), dtype=_REQUESTS)
    rows["time_s"], rows["duration_s"] = workload.time_s, workload.duration_s
    rows["function"], rows["wait_s"] = workload.function, np.nan
    rows["status"], rows["after"] = -1, -1
    return rows


def _places(tables: Tables) -> Records:
    """Return functions by region, without pods."""
    count, regions = len(tables.functions), len(tables.rtt_s)
    places = np.zeros(count * regions, dtype=_PLACES)
    for name in ("head", "queue_head", "queue_tail"):
        places[name] = -1
    places["function"] = np.repeat(np.arange(count), regions)
    places["region"] = np.tile(np.arange(regions), count)
    places["slots"] = np.repeat(tables.functions["slots"], regions)
    places["rtt_s"] = tables.rtt_s[tables.functions["home"]].ravel()
    return places


def _plans(tables: Tables, workload: Workload) -> Plans:
    """Return the policies, which have learned nothing."""
    count = len(tables.functions)
    next_s = np.zeros(0)
    # Sorting by function takes as long as a tenth of the run, and only the oracle looks ahead.
    if tables.keep_kind == KEEP_ORACLE:
        next_s = np.full(len(workload), np.inf)
        order = np.argsort(workload.function, kind="stable")
        same = workload.function[order[1:]] == workload.function[order[:-1]]
        next_s[order[:-1][same]] = workload.time_s[order[1:][same]]
    return Plans(
        tables.keep_kind,
        tables.keep,
        tables.edges_s,
        np.zeros((count, len(tables.edges_s) - 1), dtype=np.int32),
        np.zeros((count, 3)),
        tables.orders,
        tables.child,
        next_s,
    )
