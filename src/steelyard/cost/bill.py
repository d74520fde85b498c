"""The bill of a run: energy, money and carbon as forecasts."""

from steelyard.catalog.hardware import Accelerator, Site
from steelyard.cost.carbon import run_carbon_g
from steelyard.cost.energy import run_energy_j
from steelyard.cost.money import Assumptions, ChipHour, chip_hour, known_purchase_usd
from steelyard.errors import ConfigError
from steelyard.quantity import Forecast, Provenance

__all__ = ["bill"]


def bill(
    *,
    duration_s: float,
    num_accelerators: float,
    accelerator: Accelerator,
    site: Site,
    pue: float = 0.0,
    purchase_usd: float | None = None,
    rent_usd: float | None = None,
    draw: float | None = None,
    duration_relative: float = 0.0,
    assumptions: Assumptions | None = None,
) -> list[Forecast]:
    """Forecast what a run uses and costs.

    Args:
        duration_s: wall time, positive.
        num_accelerators: how many run that long.
        accelerator: power and price.
        site: facility overhead, electricity price, carbon intensity.
        pue: overrides the site's where the cluster's own is known, 0 to keep the site's.
        purchase_usd: server price per accelerator, to amortize; a GPU with neither rent nor price
            given is amortized when its price is kept, else the catalog's rent is taken.
        rent_usd: rent per hour.
        draw: average over rated power.
        duration_relative: half-width of the duration's own 80 % interval, as a fraction.
        assumptions: constants of the amortization.

    Returns:
        run.energy, run.cost and run.carbon, with 80 % intervals. Cost and carbon rest on stated
        assumptions.

    Raises:
        ConfigError: the duration or number is not positive, or no price is known.
    """
    if not (duration_s > 0 and num_accelerators > 0):
        raise ConfigError(
            f"a bill needs a positive duration and number of accelerators, got {duration_s} s and "
            f"{num_accelerators}"
        )
    known, _ = known_purchase_usd(accelerator)
    purchase = known if purchase_usd is None and rent_usd is None and known else purchase_usd
    overhead = pue or site.pue
    energy = run_energy_j(
        accelerator,
        num_accelerators=num_accelerators,
        duration_s=duration_s,
        pue=overhead,
        draw=draw,
    )
    price = chip_hour(
        accelerator, site, purchase_usd=purchase, rent_usd=rent_usd, assumptions=assumptions
    )
    cost = price.total_usd * num_accelerators * duration_s / 3600
    power = "rated power" if accelerator.tdp_w else "typical power of its kind (rating unknown)"
    said = (
        f"{accelerator.name}: {power} x server x average draw (arXiv 2405.21015), PUE {overhead:g}"
    )
    widths = (0.2 if accelerator.tdp_w else 1.0, *_price_widths(price))
    energy_width, cost_width = (((1 + width) * (1 + duration_relative)) - 1 for width in widths)
    carbon_source = f"{said}; {site.carbon_g_per_kwh:g} g/kWh at {site.name}"
    carbon = run_carbon_g(energy, site)
    provenance: Provenance = "derived" if accelerator.tdp_w else "assumed"
    return [
        Forecast.about(
            "run.energy", energy, relative=energy_width, provenance=provenance, source=said
        ),
        Forecast.about(
            "run.cost",
            cost,
            relative=cost_width,
            provenance="assumed",
            source=f"{price.method}: {price.source}",
        ),
        Forecast.about(
            "run.carbon",
            carbon,
            relative=energy_width + 0.1,
            provenance=provenance,
            source=carbon_source,
        ),
    ]


def _price_widths(price: ChipHour) -> tuple[float]:
    """Return the half-width of a price: rents differ by vendor and term, amortization by purchase price and age."""
    return ({"rented": 0.4, "amortized": 0.3, "own": 1.0}[price.method],)
