"""What policies of a platform decide, what they are told, and how the compiled loop knows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Delay",
    "FunctionState",
    "IdlePlan",
    "KeepAlive",
    "PoolSizer",
    "Prewarm",
    "PrewarmOrder",
    "RegionChoice",
    "Rule",
]

# Numbers of the policies that the compiled loop has: it cannot call a Python class. A class without
# a rule runs on the event loop, and a test holds both equal.
KEEP_FIXED, KEEP_HISTOGRAM, KEEP_UTILITY, KEEP_ORACLE = range(4)
PREWARM_TIMER, PREWARM_CHAIN, PREWARM_FORECAST = range(3)


class Rule(NamedTuple):
    """A policy of this package as numbers, for the compiled loop.

    Attributes:
        kind: which policy of its protocol.
        values: its parameters, in the order that the loop expects.
    """

    kind: int
    values: tuple[float, ...]


class IdlePlan(NamedTuple):
    """What to do with a pod that has become idle, in seconds from then.

    Attributes:
        keep_s: how long it stays; 0 ends it at once.
        prewarm_s: when a pod should be started again; infinite for never.
        until_s: how long that one stays without a request.
    """

    keep_s: float
    # Infinite, and not 0: a pod ended at once and started again at once would be a cold start.
    prewarm_s: float = np.inf
    until_s: float = np.inf


class PrewarmOrder(NamedTuple):
    """A pod to have ready before it is asked for.

    Attributes:
        function: whose pod.
        start_s: when to start it, seconds of virtual time.
        until_s: when to end it if no request came.
        is_firm: whether it stands when the function is called before `start_s`.
    """

    function: int
    start_s: float
    until_s: float
    is_firm: bool = False


@dataclass(slots=True)
class FunctionState:
    """What policies are told of a function.

    Attributes:
        function: its position in the workload.
        period_s: period of its timer, 0 for none.
        is_async: whether its callers do not wait.
        slots: requests that a pod serves at a time.
        start_mean_s: mean start-up of its runtime.
        lead_s: start-up that 99 % of starts of its runtime stay below.
        edges_s: edges of the bins of gaps.
        gaps: times from the function's last end to its next arrival, counted by bin.
        num_gaps: gaps seen, those beyond the last edge included.
        num_outside: gaps beyond the last edge.
        sum_squares: sum of the squared counts.
        num_arrivals: requests so far.
        last_arrival_s: arrival of the last one.
        mean_gap_s: smoothed time between arrivals.
        gap_spread_s: smoothed distance of these times from their mean.
        mean_duration_s: mean execution so far.
        num_ends: executions that have ended.
        num_running: requests being served, or waiting for a pod that starts.
        num_pods: pods alive or starting in its present region.
        num_queued: requests held back by a delay policy.
    """

    function: int
    period_s: float
    is_async: bool
    slots: int
    start_mean_s: float
    lead_s: float
    edges_s: NDArray[np.float64]
    gaps: NDArray[np.int64]
    num_gaps: int = 0
    num_outside: int = 0
    sum_squares: int = 0
    num_arrivals: int = 0
    last_arrival_s: float = 0.0
    mean_gap_s: float = 0.0
    gap_spread_s: float = 0.0
    mean_duration_s: float = 0.0
    num_ends: int = 0
    num_running: int = 0
    num_pods: int = 0
    num_queued: int = 0


@runtime_checkable
class KeepAlive(Protocol):
    """Decides how long an idle pod stays."""

    @property
    def edges_s(self) -> NDArray[np.float64]:
        """Edges of the bins in which it wants gaps counted."""
        ...

    @property
    def default_s(self) -> float:
        """Seconds that a pod stays which idles while others of its function run."""
        ...

    @property
    def is_cached(self) -> bool:
        """Whether a plan holds until the function's gaps have grown by 3 %."""
        ...

    def plan(self, state: FunctionState, now_s: float) -> IdlePlan:
        """Decide on the pod when its function's last request has ended."""
        ...


@runtime_checkable
class Prewarm(Protocol):
    """Decides which pods to start ahead, at each arrival."""

    def orders(
        self, state: FunctionState, children: Sequence[FunctionState], now_s: float
    ) -> list[PrewarmOrder]:
        """Return pods to start; `children` are the functions that this one calls."""
        ...


@runtime_checkable
class PoolSizer(Protocol):
    """Decides how many pods a pool reserves, once a step."""

    def size(self, needs: NDArray[np.int64]) -> int:
        """Return pods for the coming step; `needs` are the most needed in each step before."""
        ...


@runtime_checkable
class RegionChoice(Protocol):
    """Decides in which region each function's next pods start, once a step."""

    def place(
        self, home: NDArray[np.int64], start_s: NDArray[np.float64], rtt_s: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Return a region per function; `start_s` are recent means by region, NaN where none."""
        ...


@runtime_checkable
class Delay(Protocol):
    """Decides how long a request without a free slot may wait for one."""

    def wait_s(self, state: FunctionState) -> float:
        """Return seconds; 0 starts a pod now."""
        ...
