"""An estimate of what a run costs: its parts, its interval, and the dollars it is in."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from steelyard.catalog.market import index_months, price_index
from steelyard.cost.assumptions import RANGES, Assumptions, with_assumptions
from steelyard.errors import CatalogError

__all__ = ["CostEstimate", "Swing", "estimate_with_interval", "tornado"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CostEstimate:
    """What a run costs by one method.

    Attributes:
        method: "amortized", "acquisition", "cloud" or "development".
        parts_usd: US dollars by part.
        low_usd: lower end of the 80 % interval.
        high_usd: upper end.
        month: month whose dollars these are, such as "2023-03".
        source: prices and assumptions that it rests on.
    """

    method: str
    parts_usd: Mapping[str, float]
    low_usd: float
    high_usd: float
    month: str
    source: str

    @property
    def total_usd(self) -> float:
        """Sum of the parts."""
        return math.fsum(self.parts_usd.values())

    @property
    def shares(self) -> dict[str, float]:
        """Fraction of the total by part."""
        return {name: usd / self.total_usd for name, usd in self.parts_usd.items()}

    def in_dollars_of(self, month: str) -> "CostEstimate":
        """Return the same cost in the dollars of another month.

        Args:
            month: such as "2024-12", inside the price index.

        Returns:
            The estimate, converted by the producer price index of data processing and hosting.

        Raises:
            CatalogError: the month lies outside of the index.
        """
        first, last = index_months()
        if month > last:
            raise CatalogError(
                f"no price index is known for {month!r}",
                hint=f"give a month from {first} to {last}",
            )
        factor = price_index(month) / price_index(self.month)
        return replace(
            self,
            parts_usd={name: usd * factor for name, usd in self.parts_usd.items()},
            low_usd=self.low_usd * factor,
            high_usd=self.high_usd * factor,
            month=month,
        )


class Swing(NamedTuple):
    """How far one assumption moves a cost.

    Attributes:
        name: name of the assumption.
        low: lower end of its 80 % range.
        high: upper end.
        usd_at_low: cost at the lower end, the others as they are.
        usd_at_high: cost at the upper end.
    """

    name: str
    low: float
    high: float
    usd_at_low: float
    usd_at_high: float


def tornado(cost: Callable[[Assumptions], float], assumptions: Assumptions) -> list[Swing]:
    """Move each assumption through its range and say what the cost does.

    Args:
        cost: cost in US dollars under given assumptions.
        assumptions: the others, and the middle of each.

    Returns:
        Swings, the widest first; assumptions that move nothing are left out. A range that does not
        hold the assumed value is moved to it.
    """
    found = []
    for name, (low, high) in RANGES.items():
        ends = sorted(_about(getattr(assumptions, name), name, end) for end in (low, high))
        usd = [cost(with_assumptions({name: end}, assumptions)) for end in ends]
        if not math.isclose(*usd, rel_tol=1e-9):
            found.append(Swing(name, *ends, *usd))
    return sorted(found, key=lambda item: -abs(item.usd_at_high - item.usd_at_low))


def _about(value: float, name: str, end: float) -> float:
    """Return an end of a range, in proportion to another middle where the user chose one."""
    published = getattr(Assumptions(), name)
    if value == published:
        return end
    moved = end * value / published
    # A share or a utilization stays below 1, and an overhead at 1 or more.
    if name.endswith("_pue") or name == "experiment_factor":
        return max(1.0, moved)
    return min(moved, 0.99) if published < 1 else moved


def estimate_with_interval(
    make: Callable[[Assumptions], CostEstimate], assumptions: Assumptions
) -> CostEstimate:
    """Return an estimate with the interval that the ranges of its assumptions make together.

    The assumptions are taken as independent: the squares of the log changes add up, those that
    raise the cost for the upper end and those that lower it for the lower one.

    Args:
        make: estimate under given assumptions.
        assumptions: middle of each.

    Returns:
        The estimate with its 80 % interval.
    """
    middle = make(assumptions)
    total = middle.total_usd
    raised = lowered = 0.0
    for item in tornado(lambda other: make(other).total_usd, assumptions):
        changes = [math.log(usd / total) for usd in (item.usd_at_low, item.usd_at_high)]
        raised += max(0.0, *changes) ** 2
        lowered += min(0.0, *changes) ** 2
    return replace(
        middle,
        low_usd=total * math.exp(-math.sqrt(lowered)),
        high_usd=total * math.exp(math.sqrt(raised)),
    )
