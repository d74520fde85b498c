"""Which index a goal needs before any is built: bytes, times, machines, money, and why others lost.

Every kind of index is tried with several numbers of cells and codes, for all tenants together and
for each alone; `cost.vector_search` gives bytes and times, `plan.retrieve.probing` the cells that a
recall needs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from steelyard.catalog.hardware import Accelerator
from steelyard.catalog.search_rates import SearchRates
from steelyard.catalog.storage import StorageTier
from steelyard.cost.vector_search import IndexKind, IndexShape, predict
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.plan.retrieve.index_goal import IndexGoal
from steelyard.plan.retrieve.probing import USUAL, ProbeRule, ceiling_of, probes_for

__all__ = ["IndexOption", "IndexPlan", "MachineOffer", "plan_index"]

Sharing = Literal["one index", "one per tenant", "shared, each tenant listed", "shared, filtered"]

_HOURS_PER_MONTH = 730.5
_BUSY = 0.6
"""Share of a core's time that may be taken: beyond it queries wait as long as they take."""
_GRANT_BYTES = 4.0
_MOST_MACHINES = 1000
_ALIKE = 1.01


@dataclass(frozen=True, kw_only=True)
class MachineOffer:
    """A part of a machine of the catalog that is rented.

    Attributes:
        name: the machine.
        memory_bytes: memory of the part.
        cores: cores of the part.
        usd_per_hour: rent of the part.
        source: where the price stands.
    """

    name: str
    memory_bytes: float
    cores: float
    usd_per_hour: float
    source: str

    @classmethod
    def of(cls, chip: Accelerator, memory_bytes: float, cores_whole: float) -> "MachineOffer":
        """Return the part of a machine with so much memory.

        Args:
            chip: a processor of the catalog with a rent.
            memory_bytes: memory that is wanted; all when 0.
            cores_whole: cores of the whole machine.

        Returns:
            The part; cores and rent go with the memory.

        Raises:
            ConfigError: it has no rent, or less memory.
        """
        wanted = memory_bytes or chip.memory_bytes
        if not chip.price_usd_per_hour or wanted > chip.memory_bytes:
            raise ConfigError(
                f"{chip.name} has {chip.memory_bytes / 1e9:,.0f} GB for "
                f"{chip.price_usd_per_hour:g} USD an hour, {wanted / 1e9:,.0f} GB are wanted",
                hint="give another --machine with a rent, or less memory",
            )
        share = wanted / chip.memory_bytes
        return cls(
            name=chip.name,
            memory_bytes=wanted,
            cores=max(1.0, cores_whole * share),
            usd_per_hour=chip.price_usd_per_hour * share,
            source=chip.price_source,
        )


@dataclass(frozen=True, kw_only=True)
class IndexOption:
    """One index for a goal.

    Attributes:
        shape: kind and sizes of one index.
        nprobe: cells that a query looks into.
        sharing: who shares an index.
        memory_bytes: bytes of all.
        build_s: seconds of all builds on one machine.
        query_s: seconds of a query.
        recall: share of the neighbours that is found at most with its codes.
        machines: machines that hold and serve it.
        usd_per_month: rent and storage.
        lost: why it is not the answer, empty for the answer.
    """

    shape: IndexShape
    nprobe: int
    sharing: Sharing
    memory_bytes: Estimate
    build_s: Estimate
    query_s: Estimate
    recall: Estimate
    machines: Estimate
    usd_per_month: Estimate
    lost: str = ""

    @property
    def name(self) -> str:
        """The index in words."""
        shape = self.shape
        parts: list[str] = [str(shape.kind)]
        if shape.nlist > 1:
            parts.append(f"{self.nprobe:,} of {shape.nlist:,} cells")
        if shape.code_centers:
            code = shape.parts if shape.kind == "ivfpq" else shape.parts // 2
            parts.append(f"{code}-byte codes")
            parts.append(f"{shape.rerank} compared again" if shape.rerank else "codes alone")
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class IndexPlan:
    """The cheapest index of a goal, and what else there was.

    Attributes:
        goal: what was wanted.
        offer: machine that was priced.
        chosen: the answer.
        others: the best option of each kind and sharing that lost, the cheapest first.
        binding: what stands in the way of a cheaper one.
    """

    goal: IndexGoal
    offer: MachineOffer
    chosen: IndexOption
    others: Sequence[IndexOption]
    binding: str


def plan_index(
    goal: IndexGoal,
    rates: SearchRates,
    offer: MachineOffer,
    tier: StorageTier,
    *,
    rule: ProbeRule = USUAL,
) -> IndexPlan:
    """Find the cheapest index for a goal.

    Args:
        goal: what is wanted.
        rates: how fast machines search; the rented one is taken to be as fast a core.
        offer: machine that is rented.
        tier: storage that keeps a copy.
        rule: how many cells a recall needs.

    Returns:
        The plan.

    Raises:
        InfeasibleError: nothing reaches the goal; the nearest miss is named.
    """
    places = _Places(goal, rates, offer, tier, rule)
    options = [_judged(option, goal) for option in _options(places)]
    good = [option for option in options if not option.lost]
    if not good:
        nearest = min(options, key=lambda option: _miss(option, goal))
        raise InfeasibleError(
            f"no index reaches the goal; the nearest, {nearest.name} ({nearest.sharing}), "
            f"{nearest.lost}",
            hint="allow a longer time, a lower recall or more memory a machine",
        )
    least_usd = min(option.usd_per_month.value for option in good)
    # Storage makes cents of difference: of options that cost the same, the fastest is taken.
    alike = [option for option in good if option.usd_per_month.value <= _ALIKE * least_usd]
    best = min(alike, key=lambda option: option.query_s.value)
    others = _losers(options, best, goal)
    cheaper = [option for option in options if _is_cheaper(option, best) and option.lost]
    nearest = min(cheaper, key=lambda option: _miss(option, goal), default=None)
    binding = f"{nearest.name} ({nearest.sharing}) {nearest.lost}" if nearest else ""
    return IndexPlan(
        goal=goal,
        offer=offer,
        chosen=best,
        others=others,
        binding=binding or "nothing that is cheaper was found",
    )


def _is_cheaper(option: IndexOption, best: IndexOption) -> bool:
    return _ALIKE * option.usd_per_month.value < best.usd_per_month.value


def _miss(option: IndexOption, goal: IndexGoal) -> float:
    """Return how far an option is from a goal."""
    slow = max(option.query_s.value / goal.latency_s, 1)
    missed = (1.01 - option.recall.value) / (1.01 - goal.recall)
    return slow * max(missed, 1) * max(option.machines.value / _MOST_MACHINES, 1)


def _losers(
    options: Sequence[IndexOption], best: IndexOption, goal: IndexGoal
) -> list[IndexOption]:
    """Return the best other option of each kind and sharing, with the reason it lost."""
    groups: dict[tuple[str, str], list[IndexOption]] = {}
    for option in options:
        if option is not best:
            groups.setdefault((option.shape.kind, option.sharing), []).append(option)
    found = []
    for group in groups.values():
        good = [option for option in group if not option.lost]
        least = min(good, key=lambda option: option.usd_per_month.value, default=None)
        least = least or min(group, key=lambda option: _miss(option, goal))
        if not least.lost:
            ratio = least.usd_per_month.value / best.usd_per_month.value
            dearer = f"costs {ratio:.2g} times as much"
            if ratio < _ALIKE:
                dearer = f"costs as much, and a query takes {least.query_s.value * 1e3:.3g} ms"
            least = replace(least, lost=dearer)
        found.append(least)
    return sorted(found, key=lambda option: option.usd_per_month.value)


def _judged(option: IndexOption, goal: IndexGoal) -> IndexOption:
    """Return an option with the reason why it cannot be the answer."""
    if option.recall.value < goal.recall:
        lost = f"finds {option.recall.value:.2f} of the neighbours at most"
    elif option.query_s.high > goal.latency_s:
        lost = (
            f"a query may take {option.query_s.high * 1e3:,.3g} ms "
            f"(80 %: {option.query_s.low * 1e3:,.3g} to {option.query_s.high * 1e3:,.3g})"
        )
    elif option.machines.value > _MOST_MACHINES:
        lost = f"takes {option.machines.value:,.0f} machines"
    else:
        lost = ""
    return replace(option, lost=lost)


@dataclass(frozen=True, slots=True)
class _Places:
    """What every option is priced with."""

    goal: IndexGoal
    rates: SearchRates
    offer: MachineOffer
    tier: StorageTier
    rule: ProbeRule


def _options(places: _Places) -> Iterator[IndexOption]:
    """Yield every index that is tried."""
    goal = places.goal
    sharings: tuple[Sharing, ...] = ("one index",)
    if goal.tenants > 1:
        sharings = ("one per tenant", "shared, each tenant listed", "shared, filtered")
    for sharing in sharings:
        held = goal.own_vectors if sharing != "one index" else goal.vectors
        if sharing == "shared, filtered":
            held = goal.vectors
        for shape in _shapes(held, goal.dim, sharing):
            if shape.kind in places.rates.query_s:
                yield _priced(shape, sharing, places)


def _shapes(count: int, dim: int, sharing: Sharing) -> Iterator[IndexShape]:
    """Yield shapes of an index of so many vectors."""
    yield IndexShape(kind="flat", num_vectors=count, dim=dim)
    for factor in (1, 2, 4, 8):
        cells = round(factor * count**0.5)
        if not 2 <= cells <= count // 8:
            continue
        yield IndexShape(kind="ivf", num_vectors=count, dim=dim, nlist=cells)
        # Lists of tenants keep whole vectors; no codes stand beside them.
        if sharing == "shared, each tenant listed":
            continue
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


def _priced(shape: IndexShape, sharing: Sharing, places: _Places) -> IndexOption:
    """Return an option with what it takes and costs."""
    goal, offer = places.goal, places.offer
    ceiling = ceiling_of(shape)
    # What codes lose must not be lost a second time by cells.
    needed = min(goal.recall / max(ceiling.value, goal.recall), 0.999)
    wide = goal.tenants / goal.seen_by if sharing == "shared, filtered" else 1.0
    probes = probes_for(shape, needed, wide, places.rule)
    memory = _memory(shape, sharing, goal)
    fitting = [max(1, math.ceil(value / offer.memory_bytes)) for value in _ends(memory)]
    # Tenants lie on machines whole; one index is cut into shards that all answer every query.
    shards = 1 if sharing == "one per tenant" else fitting[0]
    part = _part_of(shape, shards)
    query = _query(part, probes, places.rates)
    busy = [goal.queries_per_s * shards * took / _BUSY / offer.cores for took in _ends(query)]
    counts = [max(held, math.ceil(load)) for held, load in zip(fitting, busy, strict=True)]
    machines = Estimate(*map(float, counts))
    usd = _scaled(machines, offer.usd_per_hour * _HOURS_PER_MONTH)
    stored = places.tier.usd_per_gb_month * memory.value / 1e9
    # A search looks at one tenant's lists of a shared index, its build at all vectors at once.
    is_listed = sharing == "shared, each tenant listed"
    built = replace(shape, num_vectors=goal.vectors) if is_listed else part
    build = predict(built, min(round(probes.value), built.nlist), places.rates).build
    builds = {"one per tenant": goal.tenants, "shared, each tenant listed": 1}.get(sharing, shards)
    return IndexOption(
        shape=shape,
        nprobe=round(probes.value),
        sharing=sharing,
        memory_bytes=memory,
        build_s=_scaled(Estimate(build.value, build.low, build.high), builds),
        query_s=query,
        recall=ceiling,
        machines=machines,
        usd_per_month=Estimate(usd.value + stored, usd.low + stored, usd.high + stored),
    )


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


def _memory(shape: IndexShape, sharing: Sharing, goal: IndexGoal) -> Estimate:
    """Return the bytes of all."""
    total = shape.memory_bytes
    if sharing == "one per tenant":
        total *= goal.tenants
    elif sharing == "shared, each tenant listed":
        whole = replace(shape, num_vectors=goal.vectors)
        total = whole.memory_bytes + _GRANT_BYTES * goal.vectors * goal.seen_by
    elif sharing == "shared, filtered":
        total += _GRANT_BYTES * goal.vectors * goal.seen_by
    return Estimate(total, total / 1.05, total * 1.05)


def _ends(found: Estimate) -> tuple[float, float, float]:
    """Return the value and the ends of its interval."""
    return found.value, found.low, found.high


def _scaled(found: Estimate, factor: float) -> Estimate:
    return Estimate(found.value * factor, found.low * factor, found.high * factor)
