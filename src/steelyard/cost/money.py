"""What an accelerator-hour costs: rent, or amortized hardware, interconnect and electricity."""

import math
from dataclasses import replace
from datetime import date
from typing import NamedTuple

from steelyard.catalog.hardware import Accelerator, Site
from steelyard.cost.assumptions import Assumptions
from steelyard.cost.energy import J_PER_KWH, run_energy_j
from steelyard.errors import CatalogError, ConfigError

__all__ = [
    "GIVEN",
    "Assumptions",
    "ChipHour",
    "chip_hour",
    "dated",
    "depreciated_value",
    "electricity_usd",
    "hourly_usd",
    "known_purchase_usd",
    "with_rent",
]

HOURS_PER_YEAR = 8766.0
OLD_PRICE = ", older than 12 months"
"""How the source of a price ends that stood there long ago."""
GIVEN = "rent as given"
"""Source of a rent that the user named."""


_PURCHASES = (
    ("V100", 18625.0, "DGX-1 at release, 149,000 USD / 8 (2017)"),
    ("A100", 24875.0, "DGX A100 320GB at release, 199,000 USD / 8 (2020)"),
    ("H100", 33750.0, "DGX H100, 270,000 USD / 8 (2023)"),
    ("B200", 47409.0, "DGX B200 from a reseller, per accelerator (2024)"),
    ("A800", 24875.0, "as A100"),
)
"""Server price per accelerator. Source: Epoch AI price table, CC BY 4.0 (arXiv 2405.21015)."""


class ChipHour(NamedTuple):
    """Price of one accelerator for an hour.

    Attributes:
        hardware_usd: cost of the amortized server with its accelerator, or the rent.
        interconnect_usd: cost of the network's share, 0 when rented.
        electricity_usd: cost of electricity, facility overhead included, 0 when rented.
        method: "rented", "amortized" or "own".
        source: where the price stands.
    """

    hardware_usd: float
    interconnect_usd: float
    electricity_usd: float
    method: str
    source: str

    @property
    def total_usd(self) -> float:
        """Sum of the parts."""
        return self.hardware_usd + self.interconnect_usd + self.electricity_usd


def known_purchase_usd(accelerator: Accelerator) -> tuple[float, str]:
    """Return a published price per accelerator and its source, (0, "") if none is known.

    The price is that of a server where one is known, else that of the chip alone.
    """
    servers = (row[1:] for row in _PURCHASES if row[0] in accelerator.name.upper())
    chip = dated(accelerator.purchase_source, accelerator.purchase_date)
    return next(servers, (accelerator.purchase_usd, chip))


def with_rent(accelerator: Accelerator, usd_per_hour: float) -> Accelerator:
    """Return a record with another rent, which was given.

    Args:
        accelerator: record of the catalog.
        usd_per_hour: rent of one accelerator and hour.

    Returns:
        The record.

    Raises:
        ConfigError: the rent is not above 0.
    """
    if not 0 < usd_per_hour < math.inf:
        raise ConfigError(
            f"a rent of {usd_per_hour:g} USD per hour is not above 0", hint="such as 2.5 USD"
        )
    return replace(accelerator, price_usd_per_hour=usd_per_hour, price_date="", price_source=GIVEN)


def dated(source: str, month: str, today: date | None = None) -> str:
    """Return the source of a price with its month, and whether that is long ago.

    Args:
        source: where the price stands.
        month: when it stood there, such as "2025-06", or empty when unknown.
        today: day to compare with; the current one when not given.

    Returns:
        The source; a price older than twelve months says so.
    """
    if not month:
        return source
    day = today or date.today()
    year, number = (int(part) for part in month.split("-")[:2])
    months = 12 * (day.year - year) + day.month - number
    return f"{source}, {month}" + (OLD_PRICE if months > 12 else "")


def depreciated_value(
    purchase_usd: float, years: float, assumptions: Assumptions | None = None
) -> float:
    """Return what hardware is worth after some years: it loses a factor of 10^0.14 per year.

    The hourly cost of `chip_hour` is minus its derivative, so over all time it sums to the price.

    Args:
        purchase_usd: price when new.
        years: age of the hardware.
        assumptions: constants of the amortization.

    Returns:
        US dollars.
    """
    return purchase_usd * 10 ** (-(assumptions or Assumptions()).depreciation * years)


def hourly_usd(worth_usd: float, assumptions: Assumptions) -> tuple[float, float]:
    """Return what an hour of hardware costs, and its part of the cluster's network.

    Args:
        worth_usd: what an accelerator with its share of the server is worth now.
        assumptions: constants of the amortization.

    Returns:
        US dollars of the hardware and of the network per hour.

    Source: Cottier et al. 2024 (arXiv 2405.21015), appendix A: value x 0.14 ln(10) / 8766 per hour,
        interconnect 19 % of the cluster.
    """
    hardware = worth_usd * assumptions.depreciation * math.log(10) / HOURS_PER_YEAR
    share = assumptions.interconnect_fraction
    return hardware, hardware * share / (1 - share)


def electricity_usd(energy_j: float, site: Site) -> float:
    """Return the price of electric energy at a site.

    Args:
        energy_j: facility overhead included.
        site: place that pays for it.

    Returns:
        US dollars.

    Raises:
        CatalogError: the site's price of electricity is unknown.
    """
    if not site.price_usd_per_kwh:
        raise CatalogError(
            f"no price of electricity is known for {site.name}",
            hint="add price_usd_per_kwh to a record in the user catalog, or give a rent per hour",
        )
    return energy_j / J_PER_KWH * site.price_usd_per_kwh


def chip_hour(
    accelerator: Accelerator,
    site: Site,
    *,
    purchase_usd: float | None = None,
    rent_usd: float | None = None,
    assumptions: Assumptions | None = None,
) -> ChipHour:
    """Price one hour of one accelerator.

    Args:
        accelerator: record whose list rent is used when neither price is given; a processor without
            one costs electricity only.
        site: place with its price of electricity and facility overhead.
        purchase_usd: server price per accelerator, to amortize instead of renting.
        rent_usd: rent per hour, electricity included.
        assumptions: constants of the amortization.

    Returns:
        The parts in US dollars.

    Raises:
        CatalogError: no price of the accelerator is known, or none of the electricity it needs.
        ConfigError: both prices are given, or one is negative.
    """
    if None not in (purchase_usd, rent_usd) or min(purchase_usd or 0, rent_usd or 0) < 0:
        raise ConfigError(
            "give one of purchase_usd and rent_usd, not negative",
            hint="leave both out for the catalog's list price",
        )
    # What is given comes first, then the catalog's list rent, then a published purchase price.
    if rent_usd is not None:
        return ChipHour(rent_usd, 0.0, 0.0, "rented", GIVEN)
    rent = accelerator.price_usd_per_hour
    if purchase_usd is None and rent:
        is_given = accelerator.price_source == GIVEN
        listed = dated(f"list rent of {accelerator.name}", accelerator.price_date)
        source = GIVEN if is_given else listed
        return ChipHour(rent, 0.0, 0.0, "rented", source)
    price, source = purchase_usd, "purchase price as given"
    if price is None:
        price, source = known_purchase_usd(accelerator)
    if not price and accelerator.kind != "cpu":
        raise CatalogError(
            f"no price is known for {accelerator.name}",
            hint="give a purchase price or a rent per hour",
        )
    energy = run_energy_j(accelerator, num_accelerators=1, duration_s=3600, pue=site.pue)
    electricity = electricity_usd(energy, site)
    if not price:
        return ChipHour(0.0, 0.0, electricity, "own", "own machine: electricity only")
    chosen = assumptions or Assumptions()
    worth = depreciated_value(price, chosen.years_in_service, chosen)
    return ChipHour(*hourly_usd(worth, chosen), electricity, "amortized", source)
