"""What changes in a run of the compiled loop, as tables that grow where a run is long.

Tables are arrays of records: a kernel's compile time grows with the arrays it is handed.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.sim.serverless.heap import Heap, Records, make_heap
from steelyard.sim.serverless.tables import Tables

__all__ = ["PODS", "State", "make_pods", "make_state"]

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
        ("wait_s", "f8"),  # from arrival until it ran; NaN where it never did
        ("status", "i8"),  # as in the result; below 0 while it is not served
        ("after", "i8"),  # next in the queue of its place
    ]
)
_FUNCTIONS = np.dtype(
    [
        ("region", "i8"),
        ("num_starts", "i8"),
        ("num_arrivals", "i8"),
        ("num_running", "i8"),
        ("num_ends", "i8"),
        ("num_gaps", "i8"),
        ("num_outside", "i8"),
        ("squares", "i8"),
        ("plan_until", "i8"),  # gaps at which the plan is made anew
        ("last_arrival_s", "f8"),
        ("last_end_s", "f8"),
        ("mean_gap_s", "f8"),
        ("spread_s", "f8"),
        ("mean_duration_s", "f8"),
        ("next_s", "f8"),  # next arrival after the last one
    ]
)
_PLACES = np.dtype(
    [
        ("head", "i8"),  # newest pod with a free slot
        ("num_pods", "i8"),  # alive or starting
        ("queue_head", "i8"),
        ("queue_tail", "i8"),
        ("num_queued", "i8"),
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


class State(NamedTuple):
    """All that a run changes."""

    heap: Heap
    pods: Records
    parts_s: NDArray[np.float64]
    """Parts of each pod's start, [pods, P]."""
    requests: Records
    functions: Records
    gaps: NDArray[np.int32]
    """Gaps by function and bin."""
    plan: NDArray[np.float64]
    """Plan in force, [F, 3]."""
    places: Records
    cells: Records
    pools: Records
    regions: Records
    scheduler_s: NDArray[np.float64]
    """When each scheduler is free, [R, schedulers]."""
    counts: NDArray[np.int64]
    """Pods, next request, events, pods alive, most alive at a time."""


NUM_PODS, NEXT, EVENTS, ALIVE, PEAK = range(5)


def make_pods(capacity: int, num_parts: int) -> tuple[Records, NDArray[np.float64]]:
    """Return an empty table of so many pods, and their parts."""
    return np.zeros(capacity, dtype=PODS), np.zeros((capacity, num_parts))


def make_state(tables: Tables, num_schedulers: int) -> State:
    """Return the state before the first event."""
    count, regions, pools = len(tables.functions), len(tables.rtt_s), len(tables.refill_s)
    requests = np.zeros(len(tables.requests), dtype=_REQUESTS)
    requests["wait_s"], requests["status"], requests["after"] = np.nan, -1, -1
    functions = np.zeros(count, dtype=_FUNCTIONS)
    functions["region"], functions["last_end_s"] = tables.functions["home"], -1.0
    places = np.zeros(count * regions, dtype=_PLACES)
    for name in ("head", "queue_head", "queue_tail"):
        places[name] = -1
    pods, parts_s = make_pods(max(1024, len(requests) // 8), tables.shares.shape[1])
    return State(
        make_heap(4096),
        pods,
        parts_s,
        requests,
        functions,
        np.zeros((count, len(tables.edges_s) - 1), dtype=np.int32),
        np.zeros((count, 3)),
        places,
        np.zeros(regions * tables.clusters * pools, dtype=_CELLS),
        np.zeros(regions * pools, dtype=_POOLS),
        np.zeros(regions, dtype=_REGIONS),
        np.zeros((regions, num_schedulers)),
        np.zeros(5, dtype=np.int64),
    )
