"""Which index a goal needs before any is built: bytes, times, machines, money, and why others lost.

Every kind of index is tried with several numbers of cells and codes, for all tenants together and
for each alone; `plan.retrieve.index_options` prices them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from steelyard.catalog.search_rates import SearchRates
from steelyard.catalog.storage import StorageTier
from steelyard.errors import InfeasibleError
from steelyard.plan.retrieve.index_goal import IndexGoal
from steelyard.plan.retrieve.index_options import IndexOption, IndexPlaces, index_options
from steelyard.plan.retrieve.machine_offer import MachineOffer
from steelyard.plan.retrieve.probing import USUAL, ProbeRule

__all__ = ["IndexPlan", "plan_index"]

_MOST_MACHINES = 1000
_ALIKE = 1.01


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
    hardness: float = 1.0,
) -> IndexPlan:
    """Find the cheapest index for a goal.

    Args:
        goal: what is wanted.
        rates: how fast machines search; the rented one is taken to be as fast a core.
        offer: machine that is rented.
        tier: storage that keeps a copy.
        rule: how many cells a recall needs.
        hardness: cells that vectors of tenants need over those of usual vectors.

    Returns:
        The plan.

    Raises:
        InfeasibleError: nothing reaches the goal; the nearest miss is named.
    """
    places = IndexPlaces(goal, rates, offer, tier, rule, hardness)
    options = [_judged(option, goal) for option in index_options(places)]
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
            groups.setdefault((option.kind, option.sharing), []).append(option)
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
