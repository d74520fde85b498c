"""What `steelyard sim chain` is asked: a row, its requests, its scaling, and where it stands."""

from dataclasses import dataclass
from pathlib import Path

from steelyard import catalog
from steelyard.catalog.datacenter import DataCenterSpec
from steelyard.errors import require
from steelyard.operate.power.scaling import ScalingRules
from steelyard.sim.datacenter import SiteYear, generated_year, join_year
from steelyard.sim.power import RowScenario

__all__ = ["ChainScenario"]


@dataclass(frozen=True, kw_only=True)
class ChainScenario:
    """A row of servers under a load by day and night, at a site.

    Args:
        model: model that is served, one of those whose power was measured.
        tensor_parallel: accelerators of a server.
        servers: servers of the row.
        days: time to simulate, from a Monday; whole quarters of an hour.
        load: work at the busiest moment over what all servers can do.
        night: rate in the small hours over that of the afternoon.
        slots: requests that a server works on at once.
        startup_s: median time from asking for a server until its engine works, weights loaded.
        target: share of the slots that are to be in use.
        allowed: share of the time in which more may be in use.
        datacenter: catalog name of the data center, or a TOML file of one's own.
        start_day: day of the year at which the row begins, from 0.
        weather: CSV of hourly weather in local time (dry_bulb_c, wet_bulb_c); a generated year when
            not given.
        carbon: CSV of hourly carbon_g_per_kwh in UTC; needed where weather is given.
        utc_offset_h: local standard time minus UTC.
        seed: seed of requests, start-ups and generated weather.
    """

    model: str = "bloom-176b"
    tensor_parallel: int = 8
    servers: int = 20
    days: float = 1.0
    load: float = 0.7
    night: float = 0.3
    slots: int = 2
    startup_s: float = 180.0
    target: float = 0.7
    allowed: float = 0.05
    datacenter: str = "h100-pod"
    start_day: int = 190
    weather: Path | None = None
    carbon: Path | None = None
    utc_offset_h: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values that cannot be; the row and the rules refuse theirs."""
        require(
            self,
            start_day=(0 <= self.start_day < 366, "in [0, 365]"),
            carbon=((self.weather is None) == (self.carbon is None), "given with weather"),
        )
        self.row_scenario()
        self.rules()

    def row_scenario(self) -> RowScenario:
        """Return the row and its requests."""
        return RowScenario(
            model=self.model,
            tensor_parallel=self.tensor_parallel,
            servers=self.servers,
            days=self.days,
            load=self.load,
            night=self.night,
            slots=self.slots,
            seed=self.seed,
        )

    def rules(self) -> ScalingRules:
        """Return how servers are scaled."""
        return ScalingRules(startup_s=self.startup_s, target=self.target, allowed=self.allowed)

    def spec(self) -> DataCenterSpec:
        """Look the data center up.

        Returns:
            The record.

        Raises:
            CatalogError: it is unknown or broken.
        """
        return catalog.datacenter(self.datacenter)

    def year(self) -> SiteYear:
        """Read or generate weather and carbon.

        Returns:
            The year.

        Raises:
            TraceError: a file cannot be used.
        """
        if self.weather is None or self.carbon is None:
            return generated_year(self.seed)
        return join_year(self.weather, self.carbon, utc_offset_h=self.utc_offset_h)
