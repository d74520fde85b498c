"""How tenants should share vectors: four ways by predicted bytes and time of a query.

Each tenant sees some of the vectors. A plain scan compares all that the tenant sees; a tree finds
them through one list per tenant; one index of cells serves all through a bitmap per tenant; or each
tenant has an index of its own, which copies what several see.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from steelyard.catalog.search_rates import SearchRates, reference_search_rates
from steelyard.cost.vector_search import IndexShape
from steelyard.cost.vector_search.tenant_work import (
    SEARCHES,
    filter_work,
    own_work,
    scan_work,
    tree_work,
)
from steelyard.errors import InfeasibleError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.plan.retrieve.tenancy_goal import TenancyGoal
from steelyard.plan.retrieve.tenancy_probes import (
    CODED_WIDTH,
    admitted_more,
    beside,
    closeness,
    own_cells,
    shared_cells,
    tree_search,
)

__all__ = ["TenancyOption", "TenancyPlan", "TenancyWay", "plan_tenancy", "price_ways"]

TenancyWay = Literal["plain scan", "cluster tree", "shared index, filtered", "index per tenant"]
_LEAST_FOR_CELLS = 1000
"""Vectors of a tenant from which on cells are tried for its own index."""
_VECTORS_PER_NODE, _NODE_BYTES = 72, 20
_CHUNK_FILLED, _CHUNK_BYTES, _TENANT_BYTES = 60, 320.0, 80.0
"""Vectors of a chunk of a tenant's list, its bytes with its share of the directory and of room for
more, and bytes of a tenant."""
_FACTOR: Mapping[TenancyWay, float] = {
    "plain scan": 1.02,
    "cluster tree": 1.34,
    "shared index, filtered": 1.34,
    "index per tenant": 1.39,
}
"""Factor around the work of a query beyond the call that holds 80 % of tenants of other vectors,
found on counts of work; what looks at everything has that of a scan."""
_CALL_FACTOR = 1.07
"""Factor around the time of a call: two runs of one are hardly closer."""
_BYTES_FACTOR = 1.1


@dataclass(frozen=True, kw_only=True)
class TenancyOption:
    """One way to search for tenants.

    Attributes:
        way: the way.
        setting: what a query looks into, in words.
        memory_bytes: bytes for all tenants.
        query_s: median seconds of a query of the tenant.
        lost: why it is not the answer, empty for the answer.
    """

    way: TenancyWay
    setting: str
    memory_bytes: Estimate
    query_s: Estimate
    lost: str = ""


@dataclass(frozen=True, kw_only=True)
class TenancyPlan:
    """The fastest way that fits into memory, and the others.

    Attributes:
        goal: what was wanted.
        chosen: the answer.
        others: the other three with the reason each lost, the fastest first.
    """

    goal: TenancyGoal
    chosen: TenancyOption
    others: Sequence[TenancyOption]


def plan_tenancy(goal: TenancyGoal, rates: SearchRates) -> TenancyPlan:
    """Choose how tenants share vectors.

    Args:
        goal: what is wanted.
        rates: how fast the machine searches; rates of searches for tenants that an older
            calibration lacks are those of the package's machine.

    Returns:
        The plan.

    Raises:
        InfeasibleError: no way fits into memory, or the fastest that does may take longer than
            allowed; the nearest is named.
    """
    # Of ways that do the same work, the first is taken: it needs the least.
    options = price_ways(goal, rates)
    fitting = [option for option in options if _fits(option, goal)]
    if not fitting:
        least = min(options, key=lambda option: option.memory_bytes.value)
        raise InfeasibleError(
            f"no way to share fits into {goal.memory_bytes / 1e9:,.3g} GB: the smallest, "
            f"{least.way}, takes {least.memory_bytes.value / 1e9:,.3g} GB",
            hint="give more memory, or narrower vectors",
        )
    best = min(fitting, key=lambda option: option.query_s.value)
    if goal.latency_s and best.query_s.high > goal.latency_s:
        raise InfeasibleError(
            f"the fastest way that fits, {best.way}, may take {best.query_s.high * 1e3:,.3g} ms "
            f"(80 %), {goal.latency_s * 1e3:,.3g} ms are wanted",
            hint="allow a longer time, a lower recall or more memory",
        )
    others = [_lost(option, best, goal) for option in options if option is not best]
    others.sort(key=lambda option: option.query_s.value)
    return TenancyPlan(goal=goal, chosen=best, others=others)


def price_ways(goal: TenancyGoal, rates: SearchRates) -> list[TenancyOption]:
    """Price all ways to share, whether they fit or not.

    Args:
        goal: what is wanted.
        rates: as of `plan_tenancy`.

    Returns:
        A plain scan, a tree, a shared index with a filter, an index per tenant.
    """
    known = _completed(rates)
    return [_scan(goal, known), _tree(goal, known), _filtered(goal, known), _own(goal, known)]


def _completed(rates: SearchRates) -> SearchRates:
    """Return rates with those of searches for tenants, where parts are those of today."""
    usual = reference_search_rates()
    kinds = [
        kind
        for kind, own in rates.query_s.items()
        if kind not in SEARCHES or own.keys() == usual.query_s[kind].keys()
    ]
    return replace(
        rates,
        query_s={**usual.query_s, **{kind: rates.query_s[kind] for kind in kinds}},
        query_relative={**usual.query_relative, **{k: rates.query_relative[k] for k in kinds}},
    )


def _fits(option: TenancyOption, goal: TenancyGoal) -> bool:
    return not goal.memory_bytes or option.memory_bytes.value <= goal.memory_bytes


def _lost(option: TenancyOption, best: TenancyOption, goal: TenancyGoal) -> TenancyOption:
    """Return an option with the reason why it lost."""
    reasons = []
    if not _fits(option, goal):
        ratio = option.memory_bytes.value / goal.memory_bytes
        reasons.append(f"takes {ratio:.3g} times the memory that there is")
    ratio = option.query_s.value / best.query_s.value
    if ratio > 1.005:
        reasons.append(f"a query takes {ratio:.3g} times as long")
    elif not reasons:
        reasons.append("does the same work for this tenant")
    return replace(option, lost=", ".join(reasons))


def _scan(goal: TenancyGoal, rates: SearchRates) -> TenancyOption:
    size, share = goal.own_vectors, goal.own_vectors / goal.vectors
    work = scan_work(size, goal.dim, beside(share, closeness(goal.locality, share)), goal.vectors)
    return TenancyOption(
        way="plain scan",
        setting=f"all {size:,} vectors of the tenant",
        memory_bytes=_bytes(_tree_bytes(goal)),
        query_s=_seconds("tenant scan", work, rates, "plain scan"),
    )


def _tree(goal: TenancyGoal, rates: SearchRates) -> TenancyOption:
    size, share = goal.own_vectors, goal.own_vectors / goal.vectors
    done = tree_search(size, goal.dim, goal.recall, goal.k, goal.hardness)
    memory = _bytes(_tree_bytes(goal))
    if done.scanned >= size and not done.compared:
        return replace(_scan(goal, rates), way="cluster tree", memory_bytes=memory)
    what = "codes" if done.compared else "vectors"
    near = beside(share, closeness(goal.locality, share))
    return TenancyOption(
        way="cluster tree",
        setting=f"{done.scanned:,.0f} {what} of {size:,}",
        memory_bytes=memory,
        query_s=_seconds(
            "tenant tree",
            tree_work(done, size, goal.dim, near, goal.vectors),
            rates,
            "cluster tree" if done.expanded else "plain scan",
        ),
    )


def _filtered(goal: TenancyGoal, rates: SearchRates) -> TenancyOption:
    """Price one index of all vectors; who sees everything needs no bitmap."""
    size, total = goal.own_vectors, goal.vectors
    nlist = max(1, round(2 * total**0.5)) if total >= _LEAST_FOR_CELLS else 1
    memory = _cells(total, goal.dim, nlist).memory_bytes
    if size == total:
        return _of_index(total, nlist, memory, goal, rates, "shared index, filtered")
    memory += goal.tenants * math.ceil(total / 8)
    share = size / total
    cells = shared_cells(share, nlist, goal.recall, goal.k, goal.hardness)
    visited = cells * total / nlist
    # Around a tenant's homes cells hold more of its vectors than elsewhere.
    more = admitted_more(closeness(goal.locality, share))
    admitted = min(visited * share * more, float(size))
    work = filter_work(cells, nlist, visited, admitted, size, goal.dim, total)
    return TenancyOption(
        way="shared index, filtered",
        setting=f"{cells:,.0f} of {nlist:,} cells",
        memory_bytes=_bytes(memory),
        query_s=_seconds("tenant filter", work, rates, "shared index, filtered"),
    )


def _own(goal: TenancyGoal, rates: SearchRates) -> TenancyOption:
    """Price an index per tenant, of cells where they are faster and there are enough vectors."""
    size = goal.own_vectors
    mean = max(1, round(goal.grants / goal.tenants))
    found = []
    for nlist in (1, round(2 * size**0.5)) if size >= _LEAST_FOR_CELLS else (1,):
        # All tenants have an index; that of the mean one tells what they take.
        memory = _cells(mean, goal.dim, min(nlist, mean)).memory_bytes * goal.tenants
        found.append(_of_index(size, nlist, memory, goal, rates, "index per tenant"))
    return min(found, key=lambda option: option.query_s.value)


def _of_index(
    size: int, nlist: int, memory: float, goal: TenancyGoal, rates: SearchRates, way: TenancyWay
) -> TenancyOption:
    """Price a search of an index without a filter."""
    close = closeness(goal.locality, size / goal.vectors)
    cells = own_cells(size, nlist, close, goal.recall, goal.k, goal.hardness)
    work = own_work(cells, nlist, cells * size / nlist, size, goal.dim)
    return TenancyOption(
        way=way,
        setting=f"{cells:,.0f} of {nlist:,} cells" if nlist > 1 else "all vectors",
        memory_bytes=_bytes(memory),
        query_s=_seconds("tenant own", work, rates, way if nlist > 1 else "plain scan"),
    )


def _cells(count: int, dim: int, nlist: int) -> IndexShape:
    """Return the shape of an index of whole vectors; cells of mean size are looked into."""
    return IndexShape(kind="ivf", num_vectors=count, dim=dim, nlist=nlist, scan_ratio=1.0)


def _tree_bytes(goal: TenancyGoal) -> float:
    """Return the bytes of a tree with its vectors, their codes, and what all tenants see."""
    code = 8.0 * (math.ceil(goal.dim / 64) + 1) if goal.dim >= CODED_WIDTH else 0.0
    rows = goal.vectors * (4.0 * goal.dim + code + 16.0)
    nodes = goal.vectors / _VECTORS_PER_NODE * (4.0 * goal.dim + _NODE_BYTES)
    chunks = math.ceil(goal.grants / goal.tenants / _CHUNK_FILLED)
    lists = goal.tenants * (_CHUNK_BYTES * chunks + _TENANT_BYTES)
    return rows + nodes + lists


def _bytes(total: float) -> Estimate:
    return Estimate(total, total / _BYTES_FACTOR, total * _BYTES_FACTOR)


def _seconds(kind: str, work: Mapping[str, float], rates: SearchRates, way: TenancyWay) -> Estimate:
    """Return the seconds of some work; doubt about rates and about the work are independent.

    What every call takes is known better than what comes on top.
    """
    spent = {part: rates.query_s[kind][part] * count for part, count in work.items()}
    call = spent.pop("call")
    rest = sum(spent.values())
    doubts = math.log1p(rates.query_relative[kind]), math.log(_FACTOR[way])
    factor = math.exp(math.hypot(*doubts))
    return Estimate(
        call + rest, call / _CALL_FACTOR + rest / factor, call * _CALL_FACTOR + rest * factor
    )
