"""What an accelerator-hour costs.

Rented, or amortized hardware with interconnect and electricity.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from steelyard.catalog.hardware import Accelerator, Site
from steelyard.cost.energy import run_energy_j
from steelyard.errors import ConfigError

__all__ = ["Assumptions", "ChipHour", "chip_hour", "depreciated_value", "known_purchase_usd"]

HOURS_PER_YEAR = 8766.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumptions:
    """Constants of the amortized price; override any.

    Attributes:
        depreciation: orders of magnitude of value lost per year.
        interconnect_fraction: network's share of a cluster's hardware cost.
        years_in_service: age of the hardware at the start of the run.

    Source: Cottier et al. 2024 (arXiv 2405.21015), appendix A.
    """

    depreciation: float = 0.14
    interconnect_fraction: float = 0.19
    years_in_service: float = 1.0


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
        hardware_usd: amortized server with its accelerator, or the rent.
        interconnect_usd: network's share, 0 when rented.
        electricity_usd: with facility overhead, 0 when rented.
        method: "rented", "amortized" or "own".
        source: of the price.
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
    """Return a published server price per accelerator and its source, (0, "") when none is kept."""
    return next(
        ((price, source) for name, price, source in _PURCHASES if name in accelerator.name.upper()),
        (0.0, ""),
    )


def depreciated_value(
    purchase_usd: float, years: float, assumptions: Assumptions | None = None
) -> float:
    """Return what hardware is worth after some years: price times 10 to the minus 0.14 per year.

    The hourly cost of `chip_hour` is minus its derivative, so over all time it sums to the price.
    """
    chosen = assumptions or Assumptions()
    return purchase_usd * 10 ** (-chosen.depreciation * years)


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
        accelerator: its own list rent is used when neither price is given; a processor without one
            costs electricity only.
        site: electricity price and facility overhead.
        purchase_usd: server price per accelerator; amortizes instead of renting.
        rent_usd: rent per hour, electricity included.
        assumptions: constants of the amortization.

    Returns:
        The parts in US dollars.

    Raises:
        ConfigError: both prices are given, one is negative, or nothing is known of a price.

    Source: Cottier et al. 2024, appendix A: value x 0.14 ln(10) / 8766 per hour, interconnect 19 %
        of the cluster.
    """
    if (purchase_usd is not None and rent_usd is not None) or min(
        purchase_usd or 0, rent_usd or 0
    ) < 0:
        raise ConfigError(
            "give one of purchase_usd and rent_usd, not negative",
            hint="leave both out for the catalog's list price",
        )
    electricity = (
        run_energy_j(accelerator, num_accelerators=1, duration_s=3600, pue=site.pue)
        / 3.6e6
        * site.price_usd_per_kwh
    )
    if purchase_usd is None and rent_usd is None and accelerator.price_usd_per_hour:
        return ChipHour(
            accelerator.price_usd_per_hour, 0.0, 0.0, "rented", f"list price of {accelerator.name}"
        )
    if rent_usd is not None:
        return ChipHour(rent_usd, 0.0, 0.0, "rented", "rent as given")
    price, source = (
        (purchase_usd, "purchase price as given")
        if purchase_usd is not None
        else known_purchase_usd(accelerator)
    )
    if not price and accelerator.kind == "cpu":
        return ChipHour(0.0, 0.0, electricity, "own", "own machine: electricity only")
    if not price:
        raise ConfigError(
            f"no price is known for {accelerator.name}",
            hint="give a purchase price or a rent per hour",
        )
    chosen = assumptions or Assumptions()
    hardware = (
        depreciated_value(price, chosen.years_in_service, chosen)
        * chosen.depreciation
        * math.log(10)
        / HOURS_PER_YEAR
    )
    share = chosen.interconnect_fraction
    return ChipHour(hardware, hardware * share / (1 - share), electricity, "amortized", source)
