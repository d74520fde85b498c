"""One account from racks to grid by hour: energy, water, carbon and money, kept at each level."""

from dataclasses import dataclass, fields

import numpy as np

from steelyard.catalog.hardware import Site
from steelyard.cost.energy import J_PER_KWH
from steelyard.cost.money import electricity_usd
from steelyard.sim.datacenter import STEP_S, SiteRun

__all__ = ["SiteAccount", "hourly_account"]


@dataclass(frozen=True, slots=True)
class SiteAccount:
    """Sums by hour of one scenario; racks, cooling and battery add up to the grid.

    Attributes:
        it_kwh: racks, their fans included.
        crac_kwh: fans of the room.
        chiller_kwh: compressor.
        tower_kwh: fan of the tower.
        pumps_kwh: pumps.
        battery_kwh: charged less discharged.
        grid_kwh: bought.
        water_l: used by the tower.
        carbon_kg: carbon of what is bought.
        usd: price of what is bought.
        violations: steps above a limit of temperature.
    """

    it_kwh: np.ndarray
    crac_kwh: np.ndarray
    chiller_kwh: np.ndarray
    tower_kwh: np.ndarray
    pumps_kwh: np.ndarray
    battery_kwh: np.ndarray
    grid_kwh: np.ndarray
    water_l: np.ndarray
    carbon_kg: np.ndarray
    usd: np.ndarray
    violations: np.ndarray

    def totals(self) -> dict[str, float]:
        """Return the sums over all hours, by name."""
        return {item.name: float(getattr(self, item.name).sum()) for item in fields(self)}


def hourly_account(run: SiteRun, site: Site, scenario: int = 0) -> SiteAccount:
    """Sum what a run metered by hour.

    Args:
        run: its last hour may be cut short.
        site: place whose price counts.
        scenario: which of the run's scenarios.

    Returns:
        The account.

    Raises:
        CatalogError: the site's price of electricity is unknown.
    """
    starts = np.arange(0, run.rows.shape[0], round(3600 / STEP_S))

    def hours(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values[:, scenario], starts)

    def kwh(name: str) -> np.ndarray:
        return hours(run.column(name)) * STEP_S / J_PER_KWH

    # Of what is bought: a battery that is charged is paid for then, and not when it is used.
    grid = kwh("grid_w")
    usd_per_kwh = electricity_usd(J_PER_KWH, site)
    return SiteAccount(
        it_kwh=kwh("it_w"),
        crac_kwh=kwh("crac_w"),
        chiller_kwh=kwh("chiller_w"),
        tower_kwh=kwh("tower_w"),
        pumps_kwh=kwh("pumps_w"),
        battery_kwh=kwh("charge_w") - kwh("discharge_w"),
        grid_kwh=grid,
        water_l=hours(run.column("water_l_per_s")) * STEP_S,
        carbon_kg=hours(run.column("carbon_g")) / 1e3,
        usd=grid * usd_per_kwh,
        violations=hours(run.is_violated.astype(float)),
    )
