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
from steelyard.cost.vector_search import IndexShape, predict
from steelyard.cost.vector_search.tenant_work import filter_work, scan_work, tree_work
from steelyard.errors import InfeasibleError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.plan.retrieve.tenancy_goal import TenancyGoal
from steelyard.plan.retrieve.tenancy_probes import (
    CODED_WIDTH,
    own_cells,
    shared_cells,
    tree_search,
)

__all__ = ["TenancyOption", "TenancyPlan", "TenancyWay", "plan_tenancy"]

TenancyWay = Literal["plain scan", "cluster tree", "shared index, filtered", "index per tenant"]
_LEAST_FOR_CELLS = 1000
"""Vectors of a tenant from which on cells are tried for its own index."""
_VECTORS_PER_NODE, _NODE_BYTES = 72, 20
_CHUNK_FILLED, _CHUNK_BYTES, _TENANT_BYTES = 60, 320.0, 80.0
"""Vectors of a chunk of a tenant's list, its bytes with its share of the directory and of room for
more, and bytes of a tenant."""
_FACTOR: Mapping[TenancyWay, float] = {
    "plain scan": 1.05,
    "cluster tree": 1.2,
    "shared index, filtered": 1.3,
    "index per tenant": 1.3,
}
"""Factor around the work that holds 80 % of tenants of other vectors."""
_BYTES_FACTOR = 1.1
_COLDER = {"tenant scan": 1.1, "tenant tree": 1.35, "tenant filter": 1.1}
"""Measured over predicted times on the cells of the fit: queries of several tenants in turn find
colder caches than a calibration, which asks one tenant again and again."""
_CALL_SHARE = 0.7
"""Share of the time per call of an index of cells that searches of small ones took on the cells of
the fit: a calibration has larger ones, whose fit leaves some of their work with the call."""
_CODED_COLDER = 1.1
"""The same of trees where all codes of a tenant are looked at in a row."""


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
    known = _completed(rates)
    # Of ways that do the same work, the first is taken: it needs the least.
    options = [
        _scan(goal, known),
        _tree(goal, known),
        _filtered(goal, known),
        _own(goal, known),
    ]
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


def _completed(rates: SearchRates) -> SearchRates:
    """Return rates with those of searches for tenants."""
    usual = reference_search_rates()
    return replace(
        rates,
        query_s={**usual.query_s, **rates.query_s},
        query_relative={**usual.query_relative, **rates.query_relative},
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
    size = goal.own_vectors
    return TenancyOption(
        way="plain scan",
        setting=f"all {size:,} vectors of the tenant",
        memory_bytes=_bytes(_tree_bytes(goal)),
        query_s=_seconds("tenant scan", scan_work(size, goal.dim), rates, "plain scan"),
    )


def _tree(goal: TenancyGoal, rates: SearchRates) -> TenancyOption:
    size = goal.own_vectors
    done = tree_search(size, goal.dim, goal.recall, goal.k)
    memory = _bytes(_tree_bytes(goal))
    if done.scanned >= size and not done.compared:
        return replace(_scan(goal, rates), way="cluster tree", memory_bytes=memory)
    what = "codes" if done.compared else "vectors"
    query = _seconds("tenant tree", tree_work(done, goal.dim), rates, "cluster tree")
    if not done.expanded:
        warmer = _CODED_COLDER / _COLDER["tenant tree"]
        query = Estimate(*(warmer * end for end in (query.value, query.low, query.high)))
    return TenancyOption(
        way="cluster tree",
        setting=f"{done.scanned:,.0f} {what} of {size:,}",
        memory_bytes=memory,
        query_s=query,
    )


def _filtered(goal: TenancyGoal, rates: SearchRates) -> TenancyOption:
    """Price one index of all vectors; who sees everything needs no bitmap."""
    size, total = goal.own_vectors, goal.vectors
    nlist = max(1, round(2 * total**0.5)) if total >= _LEAST_FOR_CELLS else 1
    shape = _cells(total, goal.dim, nlist)
    memory = shape.memory_bytes
    if size == total:
        return _of_index(
            shape,
            own_cells(total, nlist, goal.locality, goal.recall, goal.k),
            memory,
            goal,
            rates,
            "shared index, filtered",
        )
    memory += goal.tenants * math.ceil(total / 8)
    cells = shared_cells(size, total, nlist, goal.locality, goal.recall, goal.k)
    # Around a tenant's homes cells hold more of its vectors than elsewhere.
    admitted = min(cells * size / nlist * math.exp(0.18 * goal.locality), float(size))
    work = filter_work(cells, nlist, min(cells * total / nlist, float(total)), admitted, goal.dim)
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
        shape = _cells(size, goal.dim, nlist)
        # All tenants have an index; that of the mean one tells what they take.
        memory = _cells(mean, goal.dim, min(nlist, mean)).memory_bytes * goal.tenants
        cells = own_cells(size, nlist, goal.locality, goal.recall, goal.k)
        found.append(_of_index(shape, cells, memory, goal, rates, "index per tenant"))
    return min(found, key=lambda option: option.query_s.value)


def _of_index(
    shape: IndexShape,
    cells: float,
    memory: float,
    goal: TenancyGoal,
    rates: SearchRates,
    way: TenancyWay,
) -> TenancyOption:
    """Price a search of an index without a filter."""
    saved = (1 - _CALL_SHARE) * rates.query_s["ivf"]["call"]
    # Between whole numbers of cells, so that a query's time grows evenly with the recall.
    low, high = max(1, math.floor(cells)), min(math.ceil(cells), shape.nlist)
    ends = [predict(shape, count, rates, k=goal.k).query.value for count in (low, high)]
    value = ends[0] + (cells - low) * (ends[1] - ends[0]) if high > low else ends[0]
    return TenancyOption(
        way=way,
        setting=f"{cells:,.0f} of {shape.nlist:,} cells" if shape.nlist > 1 else "all vectors",
        memory_bytes=_bytes(memory),
        query_s=_spread(value - saved, rates.query_relative[shape.kind], way),
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
    """Return the seconds of some work with their interval."""
    known = rates.query_s[kind]
    value = _COLDER[kind] * sum(known[part] * count for part, count in work.items())
    return _spread(value, rates.query_relative[kind], way)


def _spread(value: float, relative: float, way: TenancyWay) -> Estimate:
    """Join doubt about rates with doubt about the work, which are independent."""
    factor = math.exp(math.hypot(math.log1p(relative), math.log(_FACTOR[way])))
    return Estimate(value, value / factor, value * factor)
