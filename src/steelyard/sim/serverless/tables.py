"""Platform and workload as arrays: what never changes in a run, and what does."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.sim.serverless.draws import GRID
from steelyard.sim.serverless.heap import Records
from steelyard.sim.serverless.platform import Platform
from steelyard.sim.serverless.policies import Rule
from steelyard.sim.serverless.startup import StartUp
from steelyard.sim.serverless.workload import Workload

__all__ = ["Tables", "make_tables", "rule_of"]

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_LEAD_DRAWS = 4000
_FUNCTIONS = np.dtype(
    [
        ("runtime", "i8"),
        ("size", "i8"),  # pool of its starts, -1 where they use none
        ("slots", "i8"),
        ("is_async", "i8"),
        ("home", "i8"),
        ("child_begin", "i8"),
        ("child_end", "i8"),
        ("period_s", "f8"),
        ("lead_s", "f8"),
        ("start_mean_s", "f8"),
        # What follows changes in a run of the compiled loop.
        ("region", "i8"),
        ("num_starts", "i8"),
        ("num_arrivals", "i8"),
        ("num_running", "i8"),
        ("num_ends", "i8"),
        ("num_gaps", "i8"),
        ("num_outside", "i8"),
        ("squares", "i8"),
        ("plan_until", "i8"),  # gaps at which the plan is made anew
        ("last_request", "i8"),
        ("last_arrival_s", "f8"),
        ("last_end_s", "f8"),  # -1 before the first
        ("mean_gap_s", "f8"),
        ("spread_s", "f8"),
        ("mean_duration_s", "f8"),
    ]
)
"""A function's constants and its state side by side: an event reads both."""
_ORDERS = np.dtype([("kind", "i8"), ("first", "f8"), ("second", "f8")])


class Tables(NamedTuple):
    """Constants of a run; F functions, U runtimes, P parts, R regions, C pools."""

    functions: Records
    child: _Ints
    curves: _Floats
    shares: _Floats
    factors: _Floats
    stages: _Floats
    rtt_s: _Floats
    edges_s: _Floats
    keep_kind: int
    keep: _Floats
    orders: Records
    """Policies of starts ahead: kind and two numbers."""
    delay_s: float
    refill_s: _Floats
    clusters: int
    pool_part: int
    queue_part: int
    """Part to which waiting for a scheduler adds, -1 for none."""
    service_s: float
    has_pools: bool
    seed: int
    horizon_s: float


def rule_of(policy: object) -> Rule | None:
    """Return a policy's numbers for the compiled loop; None for a policy of a caller's own."""
    make = getattr(policy, "rule", None)
    return make() if callable(make) else None  # pyright: ignore[reportReturnType]


def make_tables(platform: Platform, workload: Workload, seed: int) -> Tables:
    """Lay a platform and its workload out as arrays.

    Args:
        platform: the platform; its policies may be of any class.
        workload: requests.
        seed: seed of the start-ups.

    Returns:
        The arrays; policies without numbers leave theirs empty.

    Raises:
        ConfigError: the seed is negative, or a name is unknown.
        TraceError: a size class has no pool.
    """
    if seed < 0:
        raise ConfigError(f"seed is {seed}, but must be 0 or more")
    platform.check(workload)
    kinds = [item.arrays() for item in platform.start_ups.values()]
    parts = platform.part_names
    queue = platform.schedulers
    keep = rule_of(platform.keep_alive) or Rule(-1, ())
    orders = [rule_of(item) or Rule(-1, ()) for item in platform.prewarm]
    delay = rule_of(platform.delay) or Rule(-1, (0.0,))
    return Tables(
        functions=_functions(platform, workload),
        child=np.array(
            [child for item in workload.functions for child in item.children], dtype=np.int64
        ),
        curves=np.stack([item[0] for item in kinds]),
        shares=np.stack([item[1] for item in kinds]),
        factors=np.stack([item[2] for item in kinds]),
        stages=np.array([item.values_s for item in platform.stages]).reshape(
            len(platform.stages), GRID + 1
        ),
        rtt_s=np.ascontiguousarray(platform.rtt_s, dtype=np.float64),
        edges_s=np.ascontiguousarray(platform.keep_alive.edges_s, dtype=np.float64),
        keep_kind=keep.kind,
        keep=np.array(keep.values, dtype=np.float64),
        orders=np.array(
            [(item.kind, *(*item.values, 0.0, 0.0)[:2]) for item in orders], dtype=_ORDERS
        ),
        delay_s=float(delay.values[0]),
        refill_s=np.array([item.refill_s for item in platform.pools], dtype=np.float64),
        clusters=platform.clusters,
        pool_part=parts.index(platform.pool_part) if platform.pools else -1,
        queue_part=parts.index(queue.part) if queue else -1,
        service_s=queue.service_s if queue else 0.0,
        has_pools=bool(platform.pools),
        seed=seed,
        horizon_s=workload.horizon_s,
    )


def _functions(platform: Platform, workload: Workload) -> Records:
    """Return functions as records."""
    names, regions = list(platform.start_ups), list(platform.regions)
    sizes = [pool.size_class for pool in platform.pools]
    leads, means = _leads(list(platform.start_ups.values()))
    rows = np.zeros(len(workload.functions), dtype=_FUNCTIONS)
    begin = 0
    for row, item in zip(rows, workload.functions, strict=True):
        runtime = names.index(item.runtime)
        is_pooled = bool(sizes) and platform.start_ups[item.runtime].is_pooled
        end = begin + len(item.children)
        row["runtime"], row["size"] = runtime, sizes.index(item.size_class) if is_pooled else -1
        row["slots"], row["is_async"], row["period_s"] = item.slots, item.is_async, item.period_s
        row["home"] = row["region"] = regions.index(item.home) if item.home else 0
        row["child_begin"], row["child_end"], begin = begin, end, end
        row["lead_s"], row["start_mean_s"] = leads[runtime], means[runtime]
        row["last_end_s"] = -1.0
    return rows


def _leads(start_ups: list[StartUp]) -> tuple[_Floats, _Floats]:
    """Return the time that 99 % of starts stay below and the mean, by runtime."""
    leads, means = [], []
    for item in start_ups:
        total = item.sample(_LEAD_DRAWS, seed=0).sum(axis=1)
        leads.append(np.quantile(total, 0.99))
        means.append(total.mean())
    return np.array(leads), np.array(means)
