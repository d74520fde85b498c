"""Two designs of a cluster for the same work: when the cheaper, slower one pays."""

import math
from dataclasses import dataclass, replace

from steelyard.catalog.hardware import Site
from steelyard.cost.assumptions import Assumptions
from steelyard.cost.money import HOURS_PER_YEAR
from steelyard.errors import ConfigError
from steelyard.plan.machine import MachineDesign

__all__ = ["DesignComparison", "WorkCost", "compare_designs", "work_cost"]

_HOURS_PER_MONTH = HOURS_PER_YEAR / 12


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkCost:
    """What a piece of work takes on a design.

    Attributes:
        seconds: its time.
        usd: hardware and electricity of that time.
    """

    seconds: float
    usd: float

    def with_delay(self, usd_per_month: float) -> float:
        """Return the cost with what waiting for the result costs."""
        return self.usd + usd_per_month * self.seconds / 3600 / _HOURS_PER_MONTH


@dataclass(frozen=True, kw_only=True, slots=True)
class DesignComparison:
    """A design over another one, storage left out of both.

    Attributes:
        speed: rate of large products over the other's.
        price: purchase price over the other's.
        node_price: price of a node over the other's.
        power: average IT power over the other's.
        usd_per_hour: what an hour of the whole cluster costs, hardware and electricity.
        other_usd_per_hour: the same of the other.
    """

    speed: float
    price: float
    node_price: float
    power: float
    usd_per_hour: float
    other_usd_per_hour: float

    @property
    def equal_speed_price(self) -> float:
        """Price over the other's if it grew to the same speed, were both to scale alike."""
        return self.price / self.speed

    @property
    def work_price(self) -> float:
        """Cost of a piece of work over the other's where nobody waits for its result."""
        return self.usd_per_hour / self.other_usd_per_hour / self.speed

    @property
    def even_delay_usd_per_month(self) -> float:
        """Cost of a month's wait for the result at which both are worth the same.

        A slower design pays below it, a faster one above it; it is the same for work of any size,
        as time and cost grow alike. Negative where the slower one costs more even so; infinite
        where both are equally fast.
        """
        # Time lost per hour of the other's work; below 0 where this one is faster.
        slower = 1 / self.speed - 1
        if not slower:
            return math.inf
        saved = self.other_usd_per_hour - self.usd_per_hour / self.speed
        return saved / slower * _HOURS_PER_MONTH

    def pays(self, delay_usd_per_month: float = 0.0) -> bool:
        """Say whether work costs less on it than on the other, delay included."""
        hourly = delay_usd_per_month / _HOURS_PER_MONTH
        return (self.usd_per_hour + hourly) / self.speed < self.other_usd_per_hour + hourly

    def work(self, other_seconds: float) -> tuple[WorkCost, WorkCost]:
        """Return what a piece of work takes on both.

        Args:
            other_seconds: its time on the other.

        Returns:
            Time and cost on this design and on the other.
        """
        seconds = other_seconds / self.speed
        return (
            WorkCost(seconds=seconds, usd=self.usd_per_hour * seconds / 3600),
            WorkCost(seconds=other_seconds, usd=self.other_usd_per_hour * other_seconds / 3600),
        )


def compare_designs(
    design: MachineDesign,
    other: MachineDesign,
    site: Site,
    assumptions: Assumptions | None = None,
) -> DesignComparison:
    """Compare two designs for the same work.

    Args:
        design: one of them.
        other: the one that it is compared with.
        site: place with its overhead and electricity price.
        assumptions: how fast hardware loses value.

    Returns:
        Speed is the mean of the ratios over the number types whose products were measured on both,
        else that of the 16-bit rates. Storage is left out, as both would need the same.

    Raises:
        CatalogError: a price or a rate is not known.
    """
    # Data do not depend on the accelerator: both need the same storage.
    mine, its = replace(design, storage_nodes=0), replace(other, storage_nodes=0)
    hours = [item.hourly_usd(site, assumptions) * item.num_accelerators for item in (mine, its)]
    return DesignComparison(
        speed=_speed(design, other),
        price=mine.compute_usd / its.compute_usd,
        node_price=design.node.usd / other.node.usd,
        power=mine.power_w / its.power_w,
        usd_per_hour=hours[0],
        other_usd_per_hour=hours[1],
    )


def work_cost(
    design: MachineDesign,
    flop: float,
    site: Site,
    *,
    mfu: float,
    assumptions: Assumptions | None = None,
) -> WorkCost:
    """Return what a training of some FLOP takes on a design that does nothing else meanwhile.

    Args:
        design: the cluster.
        flop: model FLOP of the work.
        site: place with its overhead and electricity price.
        mfu: model FLOP/s over the rate of the design, in (0, 1].
        assumptions: how fast hardware loses value.

    Returns:
        Time and cost.

    Raises:
        ConfigError: the FLOP or the fraction cannot be.
        CatalogError: a price or a rate is not known.
    """
    if not (0 < flop < math.inf and 0 < mfu <= 1):
        raise ConfigError(
            f"work of {flop:g} FLOP at {mfu:g} of the peak cannot be",
            hint="give positive FLOP, and a fraction in (0, 1]",
        )
    seconds = flop / (design.flops_per_s * mfu)
    hourly = design.hourly_usd(site, assumptions) * design.num_accelerators
    return WorkCost(seconds=seconds, usd=hourly * seconds / 3600)


def _speed(design: MachineDesign, other: MachineDesign) -> float:
    """Return the rate of a design over another's."""
    mine, its = design.gemm_flops_per_s, other.gemm_flops_per_s
    both = sorted(mine.keys() & its.keys())
    if not both:
        # Peaks of both: a measured rate over a peak would make the measured one look slow.
        peaks = [replace(item, gemm_flops_per_s={}).flops_per_s for item in (design, other)]
        return peaks[0] / peaks[1]
    ratio = sum(mine[name] / its[name] for name in both) / len(both)
    return ratio * design.num_accelerators / other.num_accelerators
