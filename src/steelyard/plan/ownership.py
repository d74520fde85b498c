"""Buy or rent, now or later: from which use owning pays, and when waiting stops paying."""

import math
from dataclasses import dataclass

from scipy.optimize import brentq

from steelyard.cost.assumptions import Assumptions
from steelyard.cost.money import HOURS_PER_YEAR
from steelyard.errors import require
from steelyard.laws.fitting.estimate import Estimate

__all__ = ["Ownership", "Waiting", "buy_or_rent", "wait"]

MONTHS_PER_YEAR = 12.0
_FARTHEST_YEARS = 100.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ownership:
    """What an accelerator-hour costs its owner, by how much it is used.

    Attributes:
        loss_usd: value lost over the years, per accelerator.
        used_usd_per_hour: electricity and what else only use costs.
        rent_usd_per_hour: rent of the same.
        years: how long it is kept.
    """

    loss_usd: float
    used_usd_per_hour: float
    rent_usd_per_hour: float
    years: float

    def usd_per_hour(self, utilization: float) -> float:
        """Return the price of a used hour; infinite where nothing is used."""
        hours = self.years * HOURS_PER_YEAR * utilization
        return self.used_usd_per_hour + (self.loss_usd / hours if hours else math.inf)

    @property
    def break_even_utilization(self) -> float:
        """Part of the time from which owning is cheaper; above 1 where it never is."""
        # Where an hour's electricity alone exceeds the rent, no use pays the purchase back.
        gain = self.rent_usd_per_hour - self.used_usd_per_hour
        return self.loss_usd / (self.years * HOURS_PER_YEAR) / gain if gain > 0 else math.inf


def buy_or_rent(
    purchase_usd: float,
    *,
    electricity_usd_per_hour: float,
    rent_usd_per_hour: float,
    years: float,
    assumptions: Assumptions | None = None,
) -> Ownership:
    """Compare a purchase that is sold after some years with renting.

    Args:
        purchase_usd: price of an accelerator with its share of servers and network.
        electricity_usd_per_hour: electricity of a used hour, overhead included.
        rent_usd_per_hour: rent of an hour.
        years: how long it is kept.
        assumptions: how fast it loses value.

    Returns:
        The costs of owning and the break-even use.

    Raises:
        ConfigError: a price or the years are not positive.
    """
    made = Ownership(
        loss_usd=purchase_usd * (1 - 10 ** (-(assumptions or Assumptions()).depreciation * years)),
        used_usd_per_hour=electricity_usd_per_hour,
        rent_usd_per_hour=rent_usd_per_hour,
        years=years,
    )
    require(
        made,
        loss_usd=(made.loss_usd > 0, "positive"),
        rent_usd_per_hour=(rent_usd_per_hour > 0, "positive"),
        years=(years > 0, "positive"),
        used_usd_per_hour=(electricity_usd_per_hour >= 0, "at least 0"),
    )
    return made


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A piece of work whose cost and duration fall the later it begins.

    Attributes:
        cost_usd: cost of the work now.
        duration_years: how long it takes now.
        cost_growth: factor per year by which the work for a dollar grows.
        speed_growth: factor per year by which the same machines' successors are faster.
        delay_usd_per_year: what a year of waiting for the result costs.
    """

    cost_usd: float
    duration_years: float
    cost_growth: float
    speed_growth: float
    delay_usd_per_year: float

    def __post_init__(self) -> None:
        """Refuse what no work has."""
        require(
            self,
            cost_usd=(self.cost_usd > 0, "positive"),
            duration_years=(self.duration_years > 0, "positive"),
            cost_growth=(self.cost_growth > 0, "positive"),
            speed_growth=(self.speed_growth > 0, "positive"),
            delay_usd_per_year=(self.delay_usd_per_year >= 0, "at least 0"),
        )

    def cost_at(self, years: float) -> float:
        """Return what the work costs when it begins after some years."""
        return self.cost_usd * self.cost_growth**-years

    def finished_at(self, years: float) -> float:
        """Return in how many years from now it is done when it begins after `years`."""
        return years + self.duration_years * self.speed_growth**-years

    def total_at(self, years: float) -> float:
        """Return the cost of the work and of the delay until it is done."""
        return self.cost_at(years) + self.delay_usd_per_year * self.finished_at(years)

    @property
    def best_start_years(self) -> float:
        """Years from now at which waiting stops paying; 0 for now, infinite for never.

        The total is convex: its slope changes sign once.
        """
        if self._slope(0.0) >= 0:
            return 0.0
        # Without a cost of delay each year saves money, and the slope has no change of sign to
        # find.
        if self._slope(_FARTHEST_YEARS) < 0:
            return math.inf
        return float(brentq(self._slope, 0.0, _FARTHEST_YEARS))  # pyright: ignore[reportArgumentType]

    def _slope(self, years: float) -> float:
        """Return how the total changes with the start."""
        saved = math.log(self.cost_growth) * self.cost_at(years)
        faster = math.log(self.speed_growth) * self.duration_years * self.speed_growth**-years
        return self.delay_usd_per_year * (1 - faster) - saved

    @property
    def earliest_finish_start_years(self) -> float:
        """Years to wait for the earliest result, whatever it costs; 0 for now."""
        rate = math.log(self.speed_growth)
        # Waiting brings the result sooner only while the work shrinks faster than time passes.
        gain = rate * self.duration_years
        return math.log(gain) / rate if gain > 1 else 0.0


def wait(
    cost_usd: float,
    duration_years: float,
    speed_growth: Estimate,
    *,
    delay_usd_per_month: float,
    assumptions: Assumptions | None = None,
) -> tuple[Waiting, Estimate]:
    """Say when the same work is best begun.

    Args:
        cost_usd: cost of the work now.
        duration_years: how long it takes now.
        speed_growth: factor per year by which accelerators grow faster, as
            `laws.growth.growth_per_year(laws.growth.chip_trend(...))` returns it.
        delay_usd_per_month: what a month of waiting for the result costs.
        assumptions: the fall of prices: the work for a dollar grows as hardware loses value.

    Returns:
        The work, and the years to its best start with the ends that the growth's interval gives.

    Raises:
        ConfigError: a cost, duration or growth is not positive.
    """
    chosen = assumptions or Assumptions()

    def at(growth: float) -> Waiting:
        return Waiting(
            cost_usd=cost_usd,
            duration_years=duration_years,
            cost_growth=10**chosen.depreciation,
            speed_growth=growth,
            delay_usd_per_year=delay_usd_per_month * MONTHS_PER_YEAR,
        )

    middle = at(speed_growth.value)
    # Faster growth may mean to wait longer (cheaper work) or shorter (sooner done): sort the ends.
    ends = sorted(at(end).best_start_years for end in (speed_growth.low, speed_growth.high))
    best = middle.best_start_years
    return middle, Estimate(best, min(best, ends[0]), max(best, ends[1]))
