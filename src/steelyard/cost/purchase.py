"""What an accelerator cost when it was bought, and what it can be rented for, from dated prices."""

import datetime
from dataclasses import dataclass

from steelyard.catalog.market import Chip, PriceObservation, family_of, price_observations
from steelyard.cost.assumptions import Assumptions
from steelyard.errors import CatalogError

__all__ = ["Purchase", "Rent", "acquired_on", "purchase_of", "rent_of", "server_price_factor"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Purchase:
    """Price of an accelerator with its share of the server.

    Attributes:
        usd: US dollars of the day.
        chip_usd: the accelerator's own part of it.
        date: day of the price.
        source: where the price stood.
    """

    usd: float
    chip_usd: float
    date: datetime.date
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rent:
    """Rent of an accelerator with a commitment of three years.

    Attributes:
        usd_per_hour: US dollars of the day.
        observation: the price it comes from.
        is_converted: whether it follows from another term by the vendor's usual discount.
    """

    usd_per_hour: float
    observation: PriceObservation
    is_converted: bool


def server_price_factor(family: str, assumptions: Assumptions) -> float:
    """Return the price of a server over that of its accelerators."""
    return assumptions.server_price.get(family, assumptions.server_price[""])


def purchase_of(chip: Chip, assumptions: Assumptions) -> Purchase:
    """Return the first known price of a chip's family, that of a server where one is known.

    The price of a single unit is multiplied by what a server costs beside its chips.

    Args:
        chip: chip whose family is looked up.
        assumptions: prices of servers over their chips.

    Returns:
        The price.

    Raises:
        CatalogError: no price of the family is known.

    Source: Cottier et al. 2024 (arXiv 2405.21015), appendix A.
    """
    family = family_of(chip.name)
    sold = [item for item in price_observations(family) if item.purchase_usd]
    servers = [item for item in sold if item.unit == "server"]
    if not sold:
        raise CatalogError(
            f"no purchase price is known for {chip.name}",
            hint="give a purchase price",
        )
    first = (servers or sold)[0]
    factor = server_price_factor(family, assumptions)
    listed = (first.purchase_usd or 0.0) * assumptions.price_factor
    whole = listed * factor if first.unit == "chip" else listed
    unit = {"chip": f"one chip x {factor:g} for its server", "server": "in a server"}
    said = unit.get(first.unit, "server not told apart")
    return Purchase(
        usd=whole,
        chip_usd=whole / factor,
        date=first.date,
        source=f"{first.chip}, {first.source} {first.date}, {said}",
    )


def acquired_on(chip: Chip, purchase: Purchase, assumptions: Assumptions) -> datetime.date:
    """Return the first day on which the hardware can be had.

    Args:
        chip: chip with its release.
        purchase: its price.
        assumptions: days from release to delivery.

    Returns:
        A TPU's release; of other chips the later of the price's day and release plus delivery.
    """
    if chip.release_date is None:
        return purchase.date
    # TPUs are not sold: those who make them have them from the release on.
    if chip.kind == "tpu":
        return chip.release_date
    waited = datetime.timedelta(days=assumptions.delivery_days)
    return max(purchase.date, chip.release_date + waited)


def rent_of(chip: Chip, vendor: str, day: datetime.date, assumptions: Assumptions) -> Rent:
    """Return the rent nearest in time, of this chip before its family's, of the vendor before all.

    A rent with a commitment of three years comes first; where a vendor lists none it is found from
    the one on demand by the usual discount.

    Args:
        chip: chip that is rented.
        vendor: such as "Amazon Web Services".
        day: when the contract is made.
        assumptions: discounts, and a correction of rents.

    Returns:
        The rent.

    Raises:
        CatalogError: no rent of the family is known.

    Source: Cottier et al. 2024 (arXiv 2405.21015), appendix A.
    """
    family = family_of(chip.name)
    rented = [item for item in price_observations(family) if item.vendor]
    of_vendor = [item for item in rented if item.vendor == vendor] or rented
    # Vendors often list "NVIDIA A100" without the variant that they rent out.
    generic = [item for item in of_vendor if item.chip.endswith(f" {family}")]
    exact = [item for item in of_vendor if item.chip == chip.name]
    found = exact or generic or of_vendor
    if not found:
        raise CatalogError(f"no rent is known for {chip.name}", hint="give a rent per hour")
    committed = [item for item in found if item.three_year_usd_per_hour] or found
    nearest = min(committed, key=lambda item: abs((item.date - day).days))
    return _three_years(nearest, assumptions)


def _three_years(item: PriceObservation, assumptions: Assumptions) -> Rent:
    """Convert a rent to a commitment of three years where it has another term."""

    def rent(usd: float, *, is_converted: bool = True) -> Rent:
        found = usd * assumptions.rent_factor
        return Rent(usd_per_hour=found, observation=item, is_converted=is_converted)

    if item.three_year_usd_per_hour:
        return rent(item.three_year_usd_per_hour, is_converted=False)
    three = assumptions.three_year_discount
    left = 1 - three.get(item.vendor, three[""])
    if item.on_demand_usd_per_hour:
        return rent(item.on_demand_usd_per_hour * left)
    one = assumptions.one_year_discount
    return rent((item.one_year_usd_per_hour or 0.0) / (1 - one.get(item.vendor, one[""])) * left)
