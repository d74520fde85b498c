"""Indexes that a goal may be met by, with bytes, times, machines and money.

Whole vectors that tenants share, and an index of them per tenant, are priced by
`plan.retrieve.tenancy`; codes, and indexes without tenants, by `cost.vector_search` with the cells
that `plan.retrieve.probing` says.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from steelyard.catalog.search_rates import SearchRates, reference_search_rates
from steelyard.catalog.storage import StorageTier
from steelyard.cost.vector_search import IndexKind, IndexShape, predict
from steelyard.cost.vector_search.tenant_work import tree_build_work
from steelyard.laws.fitting.estimate import Estimate
from steelyard.plan.retrieve.index_goal import IndexGoal
from steelyard.plan.retrieve.machine_offer import MachineOffer
from steelyard.plan.retrieve.probing import ProbeRule, ceiling_of, probes_for
from steelyard.plan.retrieve.tenancy import TenancyOption, TenancyWay, price_ways
from steelyard.plan.retrieve.tenancy_goal import TenancyGoal

__all__ = ["IndexOption", "IndexPlaces", "index_options"]

Sharing = Literal["one index", "one per tenant", "shared, each tenant listed", "shared, filtered"]

_SHARINGS: Mapping[TenancyWay, Sharing] = {
    "plain scan": "shared, each tenant listed",
    "cluster tree": "shared, each tenant listed",
    "shared index, filtered": "shared, filtered",
    "index per tenant": "one per tenant",
}
_WHOLE = Estimate(1.0, 1.0, 1.0)
"""Recall that whole vectors allow."""
_HOURS_PER_MONTH = 730.5
_BUSY = 0.6
"""Share of a core's time that may be taken: beyond it queries wait as long as they take."""


@dataclass(frozen=True, kw_only=True)
class IndexOption:
    """One index for a goal.

    Attributes:
        shape: kind and sizes of one index; none of a way of tenants to share whole vectors.
        nprobe: cells that a query looks into; 0 without a shape.
        sharing: who shares an index.
        memory_bytes: bytes of all.
        build_s: seconds of all builds on one machine.
        query_s: seconds of a query.
        recall: share of the neighbours that is found at most with its codes.
        machines: machines that hold and serve it.
        usd_per_month: rent and storage.
        way: how tenants share whole vectors; None with a shape.
        setting: what a query of that way looks at.
        lost: why it is not the answer, empty for the answer.
    """

    shape: IndexShape | None = None
    nprobe: int = 0
    sharing: Sharing
    memory_bytes: Estimate
    build_s: Estimate
    query_s: Estimate
    recall: Estimate = _WHOLE
    machines: Estimate
    usd_per_month: Estimate
    way: TenancyWay | None = None
    setting: str = ""
    lost: str = ""

    @property
    def kind(self) -> str:
        """Its kind, or the way to share."""
        return self.shape.kind if self.shape else str(self.way)

    @property
    def name(self) -> str:
        """The index in words."""
        shape = self.shape
        if shape is None:
            return f"{self.way}: {self.setting}"
        parts: list[str] = [str(shape.kind)]
        if shape.nlist > 1:
            parts.append(f"{self.nprobe:,} of {shape.nlist:,} cells")
        if shape.code_centers:
            code = shape.parts if shape.kind == "ivfpq" else shape.parts // 2
            parts.append(f"{code}-byte codes")
            parts.append(f"{shape.rerank} compared again" if shape.rerank else "codes alone")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class IndexPlaces:
    """What every option is priced with.

    Attributes:
        goal: what is wanted.
        rates: how fast machines search.
        offer: machine that is rented.
        tier: storage that keeps a copy.
        rule: how many cells a recall needs.
        hardness: cells that vectors of tenants need over those of usual vectors.
    """

    goal: IndexGoal
    rates: SearchRates
    offer: MachineOffer
    tier: StorageTier
    rule: ProbeRule
    hardness: float


def index_options(places: IndexPlaces) -> Iterator[IndexOption]:
    """Yield every index that is tried.

    Args:
        places: what they are priced with.

    Yields:
        One of them; whether it reaches the goal is not looked at.
    """
    goal = places.goal
    if goal.tenants < 2:
        for shape in _shapes(goal.vectors, goal.dim):
            if shape.kind in places.rates.query_s:
                yield _priced(shape, "one index", places)
        return
    for shape in _shapes(goal.own_vectors, goal.dim):
        # Whole vectors are priced once, with the other ways to share.
        if shape.kind in places.rates.query_s and shape.code_centers:
            yield _priced(shape, "one per tenant", places)
    for way, sharing in _SHARINGS.items():
        yield _shared(way, sharing, places)


def _shapes(count: int, dim: int) -> Iterator[IndexShape]:
    """Yield shapes of an index of so many vectors."""
    yield IndexShape(kind="flat", num_vectors=count, dim=dim)
    for factor in (1, 2, 4, 8):
        cells = round(factor * count**0.5)
        if not 2 <= cells <= count // 8:
            continue
        yield IndexShape(kind="ivf", num_vectors=count, dim=dim, nlist=cells)
        kinds: tuple[tuple[IndexKind, tuple[int, ...]], ...] = (
            ("ivfpq", (4, 8, 16)),
            ("fastscan", (2,)),
        )
        for kind, dividers in kinds:
            for divider in dividers:
                if dim % divider:
                    continue
                for again in (0, 2, 4, 8, 16, 32) if kind == "ivfpq" else (2, 4, 8, 16, 32):
                    yield IndexShape(
                        kind=kind,
                        num_vectors=count,
                        dim=dim,
                        nlist=cells,
                        parts=dim // divider,
                        rerank=again,
                    )


def _priced(shape: IndexShape, sharing: Sharing, places: IndexPlaces) -> IndexOption:
    """Return an option with what it takes and costs."""
    goal = places.goal
    ceiling = ceiling_of(shape)
    # What codes lose must not be lost a second time by cells.
    needed = min(goal.recall / max(ceiling.value, goal.recall), 0.999)
    probes = probes_for(shape, needed, places.rule)
    copies = goal.tenants if sharing == "one per tenant" else 1
    total = shape.memory_bytes * copies
    memory = Estimate(total, total / 1.05, total * 1.05)
    shards = 1 if copies > 1 else _machines_for(memory.value, places.offer)
    part = _part_of(shape, shards)
    build = predict(part, min(round(probes.value), part.nlist), places.rates).build
    took = _Took(
        memory_bytes=memory,
        build_s=_scaled(Estimate(build.value, build.low, build.high), max(copies, shards)),
        query_s=_query(part, probes, places.rates),
        shards=shards,
    )
    found = _offered(took, sharing, places)
    return replace(found, shape=shape, nprobe=round(probes.value), recall=ceiling)


def _shared(way: TenancyWay, sharing: Sharing, places: IndexPlaces) -> IndexOption:
    """Return a way of tenants to share whole vectors as an option."""
    goal = places.goal
    whole = _way(goal, places, way)
    shards = 1
    if sharing != "one per tenant":
        shards = _machines_for(whole.memory_bytes.value, places.offer)
    count = max(goal.tenants, goal.vectors // shards)
    part = _way(replace(goal, vectors=count), places, way)
    took = _Took(
        memory_bytes=whole.memory_bytes,
        build_s=_way_built(way, count, shards, places),
        query_s=part.query_s,
        shards=shards,
    )
    each = f" on each of {shards} machines" if shards > 1 else ""
    return replace(_offered(took, sharing, places), way=way, setting=f"{part.setting}{each}")


def _way(goal: IndexGoal, places: IndexPlaces, way: TenancyWay) -> TenancyOption:
    priced = price_ways(TenancyGoal.of(goal, hardness=places.hardness), places.rates)
    return next(option for option in priced if option.way == way)


def _way_built(way: TenancyWay, count: int, shards: int, places: IndexPlaces) -> Estimate:
    """Return the seconds of all builds of a way."""
    rates, goal = places.rates, places.goal
    if way in ("plain scan", "cluster tree"):
        known = {**reference_search_rates().build_s, **rates.build_s}
        total = sum(known[part] * n for part, n in tree_build_work(count, goal.dim).items())
        factor = 1 + rates.build_relative
        return _scaled(Estimate(total, total / factor, total * factor), shards)
    size, copies = (
        (count, shards) if way != "index per tenant" else (goal.own_vectors, goal.tenants)
    )
    cells = max(1, min(round(2 * size**0.5), size))
    shape = IndexShape(kind="ivf", num_vectors=size, dim=goal.dim, nlist=cells)
    build = predict(shape, 1, rates).build
    return _scaled(Estimate(build.value, build.low, build.high), copies)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Took:
    """What an index takes: bytes and builds of all, a query of one of its shards."""

    memory_bytes: Estimate
    build_s: Estimate
    query_s: Estimate
    shards: int


def _offered(took: _Took, sharing: Sharing, places: IndexPlaces) -> IndexOption:
    """Return an index with the machines that it needs, and what they cost."""
    goal, offer = places.goal, places.offer
    # Tenants lie on machines whole; one index is cut into shards that all answer every query.
    fitting = [_machines_for(value, offer) for value in _ends(took.memory_bytes)]
    load = goal.queries_per_s * took.shards / _BUSY / offer.cores
    busy = [math.ceil(load * took_s) for took_s in _ends(took.query_s)]
    machines = Estimate(*(float(max(pair)) for pair in zip(fitting, busy, strict=True)))
    usd = _scaled(machines, offer.usd_per_hour * _HOURS_PER_MONTH)
    stored = places.tier.usd_per_gb_month * took.memory_bytes.value / 1e9
    return IndexOption(
        sharing=sharing,
        memory_bytes=took.memory_bytes,
        build_s=took.build_s,
        query_s=took.query_s,
        machines=machines,
        usd_per_month=Estimate(usd.value + stored, usd.low + stored, usd.high + stored),
    )


def _machines_for(needed_bytes: float, offer: MachineOffer) -> int:
    return max(1, math.ceil(needed_bytes / offer.memory_bytes))


def _query(part: IndexShape, probes: Estimate, rates: SearchRates) -> Estimate:
    """Return the seconds of a query of one machine."""
    seconds = []
    for nprobe in _ends(probes):
        found = predict(part, max(1, min(round(nprobe), part.nlist)), rates).query
        seconds.append((found.value, found.low, found.high))
    return _combined(seconds)


def _part_of(shape: IndexShape, shards: int) -> IndexShape:
    """Return what one machine holds of an index: some of the vectors, in as many cells."""
    count = max(1, shape.num_vectors // shards)
    return replace(shape, num_vectors=count, nlist=max(1, min(shape.nlist, count)))


def _combined(seconds: Sequence[tuple[float, float, float]]) -> Estimate:
    """Join doubt about cells with doubt about times, which are independent."""
    middle, low, high = seconds
    down = math.hypot(math.log(middle[0] / low[0]), math.log(middle[0] / middle[1]))
    up = math.hypot(math.log(high[0] / middle[0]), math.log(middle[2] / middle[0]))
    return Estimate(middle[0], middle[0] * math.exp(-down), middle[0] * math.exp(up))


def _ends(found: Estimate) -> tuple[float, float, float]:
    """Return the value and the ends of its interval."""
    return found.value, found.low, found.high


def _scaled(found: Estimate, factor: float) -> Estimate:
    return Estimate(found.value * factor, found.low * factor, found.high * factor)
