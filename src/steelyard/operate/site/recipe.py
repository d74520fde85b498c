"""What `steelyard operate datacenter` is asked: a site, a load, a time and controllers."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steelyard import catalog
from steelyard.catalog.datacenter import DataCenterSpec
from steelyard.errors import TraceError, require
from steelyard.sim.datacenter import Plant, SiteYear, generated_year, join_year, read_column

__all__ = ["SiteRecipe"]

_STEPS_PER_HOUR = 4
_YEAR_HOURS = 8760


@dataclass(frozen=True, kw_only=True)
class SiteRecipe:
    """A comparison of controllers on one site.

    Args:
        datacenter: catalog name of the data center, or a TOML file of one's own.
        site: catalog name of the site whose price of electricity counts; that of the data center
            when empty.
        weather: CSV of hourly weather in local time (dry_bulb_c, wet_bulb_c); a generated year when
            not given.
        carbon: CSV of hourly carbon_g_per_kwh in UTC; needed where weather is given.
        utc_offset_h: local standard time minus UTC.
        load: CSV with a column of hourly load: cpu_utilisation in [0, 1], or it_w in watts; shorter
            ones repeat. A generated day when not given.
        start_day: day of the year to begin with, from 0.
        days: days to simulate, 1 to 366.
        setpoint_c: the fixed setpoint that others are compared with.
        flexible_share: share of the work that may wait.
        delay_h: hours of the question what delaying that work would change.
        ppo_steps: steps of training for a learned controller; 0 for none.
        seed: seed of what is generated and learned.
    """

    datacenter: str = "free-cooled-1mw"
    site: str = ""
    weather: Path | None = None
    carbon: Path | None = None
    utc_offset_h: int = 0
    load: Path | None = None
    start_day: int = 190
    days: int = 1
    setpoint_c: float = 18.0
    flexible_share: float = 0.2
    delay_h: float = 3.0
    ppo_steps: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values that no site has."""
        require(
            self,
            start_day=(0 <= self.start_day < 366, "in [0, 365]"),
            days=(1 <= self.days <= 366, "in [1, 366]"),
            flexible_share=(0 <= self.flexible_share <= 1, "in [0, 1]"),
            delay_h=(0 <= self.delay_h <= 24, "in [0, 24]"),
            ppo_steps=(self.ppo_steps >= 0, "0 or more"),
            carbon=((self.weather is None) == (self.carbon is None), "given with weather"),
        )

    def spec(self) -> DataCenterSpec:
        """Look the data center up."""
        return catalog.datacenter(self.datacenter)

    def year(self) -> SiteYear:
        """Read or generate weather and carbon.

        Returns:
            The year.

        Raises:
            TraceError: a file cannot be used.
        """
        # One without the other is refused above: measured weather on a made grid is no site's.
        if self.weather is None or self.carbon is None:
            return generated_year(self.seed)
        return join_year(self.weather, self.carbon, utc_offset_h=self.utc_offset_h)

    def loads(self, plant: Plant) -> tuple[np.ndarray, bool]:
        """Read or generate the load by step of a year.

        Args:
            plant: its racks say which load a metered power stands for.

        Returns:
            Load in [0, 1], and whether it stands for a metered power.

        Raises:
            TraceError: the file holds neither column, or a value is not in range.
        """
        if self.load is None:
            hours = np.arange(_YEAR_HOURS)
            noise = np.random.default_rng([self.seed, 1]).normal(0, 0.02, hours.size)
            return _held(0.55 + 0.15 * np.sin(2 * np.pi * (hours - 9) / 24) + noise), False
        # Either column will do; a file with neither is refused for the one that is tried last.
        try:
            values = read_column(self.load, "cpu_utilisation")
        except TraceError:
            return _held(plant.load_of(read_column(self.load, "it_w"))), True
        wrong = np.flatnonzero((values < 0) | (values > 1))
        if wrong.size:
            row = int(wrong[0])
            raise TraceError(
                f"{self.load} row {row + 1}: cpu_utilisation is {values[row]:g}, not in [0, 1]",
                hint="give it as a fraction of the whole site",
            )
        return _held(values), False


def _held(hourly: np.ndarray) -> np.ndarray:
    """Return steps of a year from hours, which repeat where they end."""
    return np.repeat(np.resize(hourly, _YEAR_HOURS), _STEPS_PER_HOUR)
