"""The fleet that holds on a day not seen, beside the one that holds on the average day."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.service.days import DayLoad
from steelyard.plan.service.search import ServiceCandidate
from steelyard.serve.client.summary import Slo
from steelyard.sim.fleet.instance import ReplicaGroup

__all__ = ["DayPlacement", "TomorrowPlan", "plan_tomorrow", "tomorrows"]

_MOST_TIMES = 8
"""How much larger than its busiest part asks for a fleet may become."""
_CHANGES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class DayPlacement:
    """A fleet with what became of days on it.

    Attributes:
        candidate: arrangement of an instance.
        instances: how many.
        seen: attainment on each day that was given.
        tomorrow: attainment on each day that may come: those given, then those drawn.
    """

    candidate: ServiceCandidate
    instances: int
    seen: tuple[float, ...]
    tomorrow: tuple[float, ...]

    @property
    def devices(self) -> int:
        """Accelerators of the fleet."""
        return self.instances * self.candidate.arrangement.num_devices

    @property
    def groups(self) -> tuple[ReplicaGroup, ...]:
        """The fleet as the simulator takes it."""
        return fleet_of(self.candidate, self.instances)


@dataclass(frozen=True, kw_only=True, slots=True)
class TomorrowPlan:
    """Two fleets for several days.

    Attributes:
        average: fewest accelerators that hold on the average of the days given.
        lasting: fewest that hold on the wanted share of the days that may come.
        factors: changes of the rate from a day to another that were drawn from.
    """

    average: DayPlacement
    lasting: DayPlacement
    factors: tuple[float, ...]


def fleet_of(candidate: ServiceCandidate, instances: int) -> tuple[ReplicaGroup, ...]:
    """Return so many instances of a candidate as one fleet."""
    groups = candidate.arrangement.groups
    return tuple(replace(group, count=group.count * instances) for group in groups)


def tomorrows(days: Sequence[DayLoad], generator: np.random.Generator, count: int) -> list[DayLoad]:
    """Return days that may come: those that were, faster or slower as days differ.

    Args:
        days: days that were, in their order, two at least.
        generator: source of the draws.
        count: days to return.

    Returns:
        Days in turn; each changed by the ratio of the rates of a day and one of the five after it.
    """
    factors = _factors(days)
    return [
        days[place % len(days)].faster(float(generator.choice(factors))) for place in range(count)
    ]


def _factors(days: Sequence[DayLoad]) -> tuple[float, ...]:
    """Return how the busiest part changes from a day to later ones, and to earlier ones."""
    peaks = [day.peak_per_s for day in days]
    found = []
    for place, before in enumerate(peaks):
        for after in peaks[place + 1 : place + 1 + _CHANGES]:
            # Few days show no trend to rely on: each change may come the other way round.
            found += [after / before, before / after]
    return tuple(found)


@dataclass
class _Trial:
    """A candidate on days, each size of its fleet simulated once."""

    candidate: ServiceCandidate
    days: Sequence[DayLoad]
    drawn: Sequence[DayLoad]
    slo: Slo
    progress: Callable[[str], None]
    known: dict[tuple[int, bool], tuple[float, ...]] = field(default_factory=dict)

    def on(self, instances: int, *, is_drawn: bool) -> tuple[float, ...]:
        """Return the attainment of each day given, or of each day drawn."""
        key = (instances, is_drawn)
        if key not in self.known:
            self.progress(f"{instances} x {self.candidate.arrangement.words}")
            groups = fleet_of(self.candidate, instances)
            days = self.drawn if is_drawn else self.days
            self.known[key] = tuple(day.attainment(groups, self.slo) for day in days)
        return self.known[key]

    def all_on(self, instances: int) -> tuple[float, ...]:
        """Return the attainment of the days given and the days drawn."""
        return self.on(instances, is_drawn=False) + self.on(instances, is_drawn=True)

    def placed(
        self, holds: Callable[[tuple[float, ...]], bool], peak_per_s: float, *, is_drawn: bool
    ) -> list[DayPlacement]:
        """Return the smallest fleet that holds, none where a very large one does not."""
        assert self.candidate.goodput is not None
        instances = peak_per_s / self.candidate.goodput.rate_per_s

        def enough(count: int) -> bool:
            return holds(self.all_on(count) if is_drawn else self.on(count, is_drawn=False))

        count = _fewest(enough, max(round(instances), 1), math.ceil(_MOST_TIMES * instances))
        if not count:
            return []
        return [
            DayPlacement(
                candidate=self.candidate,
                instances=count,
                seen=self.on(count, is_drawn=False),
                tomorrow=self.all_on(count),
            )
        ]


def _fewest(holds: Callable[[int], bool], start: int, most: int) -> int:
    """Return the fewest instances that hold; 0 where `most` do not."""
    low, high = 0, max(start, 1)
    while not holds(high):
        if high >= most:
            return 0
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def plan_tomorrow(
    found: Sequence[ServiceCandidate],
    days: Sequence[DayLoad],
    slo: Slo,
    share: float,
    generator: np.random.Generator,
    *,
    sure: float = 0.9,
    draws: int = 12,
    arrangements: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> TomorrowPlan:
    """Choose fleets for days.

    Args:
        found: arrangements of a search over all days, the best first.
        days: days that were, in their order, two at least.
        slo: limits of the first and of further tokens.
        share: share of a day's requests that has to keep both.
        generator: source of the days that may come.
        sure: share of the days that may come on which the share has to be kept.
        draws: days that may come.
        arrangements: how many of the best arrangements to try.
        progress: told of each fleet that is simulated.

    Returns:
        The fleets.

    Raises:
        ConfigError: there are fewer than two days.
        InfeasibleError: no fleet holds; names the day and what is reached on it.
    """
    if len(days) < 2:
        raise ConfigError(
            f"{len(days)} day shows nothing of how days differ", hint="give two days and more"
        )
    carried = [item for item in found if item.goodput and item.goodput.rate_per_s > 0]
    coming = [*days, *tomorrows(days, generator, draws)]
    peak = max(day.peak_per_s for day in days)

    def for_average(shares: tuple[float, ...]) -> bool:
        return float(np.mean(shares[: len(days)])) >= share

    def for_most(shares: tuple[float, ...]) -> bool:
        return float(np.mean(np.asarray(shares) >= share)) >= sure

    average: list[DayPlacement] = []
    lasting: list[DayPlacement] = []
    for candidate in carried[:arrangements]:
        trial = _Trial(candidate, days, coming[len(days) :], slo, progress)
        average += trial.placed(for_average, peak, is_drawn=False)
        lasting += trial.placed(for_most, peak, is_drawn=True)
    if not average or not lasting:
        raise _infeasible(carried[0], coming, slo, share, peak)
    # Of equal fleets that which keeps more on its worst day.
    chosen = [
        min(made, key=lambda item: (item.devices, -min(item.tomorrow)))
        for made in (average, lasting)
    ]
    return TomorrowPlan(average=chosen[0], lasting=chosen[1], factors=_factors(days))


def _infeasible(
    candidate: ServiceCandidate, days: Sequence[DayLoad], slo: Slo, share: float, peak: float
) -> InfeasibleError:
    """Say on which day the best arrangement fails however many there are."""
    assert candidate.goodput is not None
    most = math.ceil(_MOST_TIMES * peak / candidate.goodput.rate_per_s)
    groups = fleet_of(candidate, most)
    worst, reached = min(
        ((day, day.attainment(groups, slo)) for day in days), key=lambda item: item[1]
    )
    return InfeasibleError(
        f"{share:.0%} of the requests keep both limits on too few days: with {most} x "
        f"{candidate.arrangement.words} a day like {worst.name} reaches {reached:.1%}",
        hint=f"raise a limit, or ask for --attainment {math.floor(100 * reached) / 100:.2f}",
    )
