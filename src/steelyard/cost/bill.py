"""The bill of a run: energy, money and carbon as forecasts."""

from dataclasses import dataclass

from steelyard.catalog.hardware import Accelerator, Site
from steelyard.cost.assumptions import Assumptions
from steelyard.cost.carbon import run_carbon_g
from steelyard.cost.energy import run_energy_j
from steelyard.cost.money import GIVEN, ChipHour, chip_hour, known_purchase_usd
from steelyard.errors import CatalogError, ConfigError
from steelyard.quantity import Forecast, Provenance

__all__ = ["Bill", "bill"]

_PRICE_WIDTHS = {"rented": 0.4, "amortized": 0.3, "own": 1.0}
"""Half-width of a price by how it was found: rents differ by vendor and term, amortization by
purchase price and age."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """What a run uses and costs, as far as the catalog knows.

    Attributes:
        forecasts: run.energy, and run.cost and run.carbon where they are known.
        unknown: quantities without a forecast, each with what is missing.
        hour: price of an accelerator-hour, None where it is unknown.
    """

    forecasts: list[Forecast]
    unknown: dict[str, str]
    hour: ChipHour | None = None


def bill(
    *,
    duration_s: float,
    num_accelerators: float,
    accelerator: Accelerator,
    site: Site,
    pue: float = 0.0,
    purchase_usd: float | None = None,
    rent_usd: float | None = None,
    prefers_rent: bool = False,
    draw: float | None = None,
    duration_relative: float = 0.0,
    assumptions: Assumptions | None = None,
) -> Bill:
    """Forecast what a run uses and costs.

    An unknown price or carbon intensity leaves its own line out and says so; the others stand.

    Args:
        duration_s: wall time, positive.
        num_accelerators: accelerators that run that long.
        accelerator: record with power and price.
        site: place with its facility overhead, electricity price and carbon intensity.
        pue: overhead that replaces the site's where the cluster's own is known, 0 to keep it.
        purchase_usd: server price per accelerator, to amortize. An accelerator with neither rent
            nor price given is amortized when its purchase price is known, else rented by the
            catalog's list price.
        rent_usd: rent per hour.
        prefers_rent: whether the catalog's list rent, where there is one, comes before amortizing.
        draw: average over rated power.
        duration_relative: half-width of the duration's own 80 % interval, as a fraction.
        assumptions: constants of the amortization.

    Returns:
        Forecasts with 80 % intervals, and what is unknown. Cost and carbon rest on stated
        assumptions.

    Raises:
        ConfigError: the duration or number is not positive, or both prices are given.
    """
    if not (duration_s > 0 and num_accelerators > 0):
        raise ConfigError(
            f"duration_s {duration_s} and num_accelerators {num_accelerators} must be positive"
        )
    overhead = pue or site.pue
    energy = run_energy_j(
        accelerator,
        num_accelerators=num_accelerators,
        duration_s=duration_s,
        pue=overhead,
        draw=draw,
    )
    kind: Provenance = "derived" if accelerator.tdp_w else "assumed"
    # Widths multiply: a run that takes longer draws its uncertain power for longer.
    width = (1.2 if accelerator.tdp_w else 2.0) * (1 + duration_relative) - 1
    said = _power_source(accelerator, overhead)
    found = [Forecast.about("run.energy", energy, relative=width, provenance=kind, source=said)]
    unknown: dict[str, str] = {}
    price: ChipHour | None = None
    try:
        price = _price(
            accelerator, site, purchase_usd, rent_usd, assumptions, prefers_rent=prefers_rent
        )
        usd = price.total_usd * num_accelerators * duration_s / 3600
        found.append(_cost(usd, price, duration_relative))
    except CatalogError as error:
        unknown["run.cost"] = f"{error}; {error.hint}"
    try:
        grams = run_carbon_g(energy, site)
        said += f"; {site.carbon_g_per_kwh:g} g/kWh at {site.name}"
        found.append(
            Forecast.about("run.carbon", grams, relative=width + 0.1, provenance=kind, source=said)
        )
    except CatalogError as error:
        unknown["run.carbon"] = f"{error}; {error.hint}"
    return Bill(forecasts=found, unknown=unknown, hour=price)


def _price(
    accelerator: Accelerator,
    site: Site,
    purchase_usd: float | None,
    rent_usd: float | None,
    assumptions: Assumptions | None,
    *,
    prefers_rent: bool,
) -> ChipHour:
    """Price an accelerator-hour: by what is given, else amortized, else by the list rent."""
    is_rented = prefers_rent and accelerator.price_usd_per_hour
    known, source = known_purchase_usd(accelerator)
    if purchase_usd is None and rent_usd is None and known and not is_rented:
        price = chip_hour(accelerator, site, purchase_usd=known, assumptions=assumptions)
        return price._replace(source=source)
    return chip_hour(
        accelerator, site, purchase_usd=purchase_usd, rent_usd=rent_usd, assumptions=assumptions
    )


def _power_source(accelerator: Accelerator, pue: float) -> str:
    """Say what the energy of a run rests on."""
    power = "rated power" if accelerator.tdp_w else "typical power of its kind (rating unknown)"
    return f"{accelerator.name}: {power} x server x average draw (arXiv 2405.21015), PUE {pue:g}"


def _cost(usd: float, price: ChipHour, duration_relative: float) -> Forecast:
    """Forecast the money of a run."""
    width = 0.0 if price.source == GIVEN else _PRICE_WIDTHS[price.method]
    return Forecast.about(
        "run.cost",
        usd,
        # A rent that was given is what is paid: the hours alone are uncertain.
        relative=(1 + width) * (1 + duration_relative) - 1,
        provenance="derived" if price.source == GIVEN else "assumed",
        source=f"{price.method}: {price.source}",
    )
