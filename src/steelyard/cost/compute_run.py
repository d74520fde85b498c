"""A training run as hardware and time, and what it costs: bought, amortized, rented, developed."""

import datetime
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from steelyard.catalog.hardware import Site
from steelyard.catalog.market import Chip, family_of
from steelyard.cost.assumptions import Assumptions
from steelyard.cost.carbon import grid_g_per_kwh
from steelyard.cost.development import Staff, development_of
from steelyard.cost.energy import J_PER_KWH, average_power_w
from steelyard.cost.estimate import CostEstimate, Swing, estimate_with_interval, tornado
from steelyard.cost.money import depreciated_value, hourly_usd
from steelyard.cost.purchase import (
    Purchase,
    acquired_on,
    purchase_of,
    rent_of,
    server_price_factor,
)
from steelyard.errors import CatalogError, ConfigError, SteelyardWarning

__all__ = ["DAYS_PER_YEAR", "ComputeRun"]

DAYS_PER_YEAR = 365.25
_AMOUNTS = ("chip_hours", "flop", "num_chips", "hours")
_VENDORS = (
    (("Google", "DeepMind"), "Google Cloud"),
    (("Microsoft", "OpenAI"), "Microsoft Azure"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeRun:
    """A training run; what it used is given as chip-hours, as FLOP, or as chips and hours.

    Attributes:
        chip: accelerator, from `catalog.market.chip`.
        chip_hours: accelerator-hours, None when unknown.
        flop: operations of the run, None when unknown.
        mfu: model FLOP/s over peak; the usual one where FLOP are counted and it is None.
        num_chips: accelerators, None when unknown.
        hours: duration, None when unknown.
        start: first day, None when unknown.
        published: day of publication; the end of the run and the usual wait when None.
        organization: who runs it: decides the facility's overhead and the cloud that is compared.
        site: place with its overhead, electricity price and carbon, in place of the organization's.
        server_usd: price of a chip with its share of the server, new at the start; the published
            one when None.
        rent_usd: rent of a chip and hour; the published one when None.
        assumptions: constants of the price.

    Source: Cottier et al. 2024 (arXiv 2405.21015), section 2 and appendix A.
    """

    chip: Chip
    chip_hours: float | None = None
    flop: float | None = None
    mfu: float | None = None
    num_chips: float | None = None
    hours: float | None = None
    start: datetime.date | None = None
    published: datetime.date | None = None
    organization: str = ""
    site: Site | None = None
    server_usd: float | None = None
    rent_usd: float | None = None
    assumptions: Assumptions = field(default_factory=Assumptions)

    def __post_init__(self) -> None:
        """Refuse a run whose chip-hours cannot be known, and numbers that no run has."""
        for name in (*_AMOUNTS, "mfu", "server_usd", "rent_usd"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value:g}, but must be positive")
        if self.mfu is not None and self.mfu > 1:
            raise ConfigError(f"mfu is {self.mfu:g}, but is a fraction of the peak: at most 1")
        half = {"num_chips": self.num_chips, "hours": self.hours}
        missing = [name for name, value in half.items() if value is None]
        if missing and self.chip_hours is None and self.flop is None:
            raise ConfigError(
                f"the chip-hours of the run are unknown: {' and '.join(missing)} of num_chips x "
                f"hours missing, and neither chip_hours nor flop is given",
                hint="give one of chip_hours, flop (with mfu where it is known), or num_chips and "
                "hours",
            )

    @classmethod
    def published_on(
        cls, day: datetime.date, *, hours: float | None = None, **values: object
    ) -> "ComputeRun":
        """Make a run from the day of its publication: it ended the usual wait before.

        Args:
            day: day of publication.
            hours: duration; the usual one decides the start where it is None.
            **values: the other fields.

        Returns:
            The run with its start.
        """
        known = values.get("assumptions")
        chosen = known if isinstance(known, Assumptions) else Assumptions()
        lasted = datetime.timedelta(hours=hours or chosen.usual_hours)
        start = day - lasted - datetime.timedelta(days=chosen.publication_days)
        return cls(start=start, published=day, hours=hours, **values)  # pyright: ignore[reportArgumentType]

    @property
    def used_chip_hours(self) -> float:
        """Accelerator-hours: as given, else chips times hours, else FLOP over achieved FLOP/s.

        Raises:
            CatalogError: the FLOP are known, and the chip's peak is not.
        """
        # The least derived comes first: chip-hours as published, then their factors. FLOP last, as
        # they need an MFU, the least certain of all.
        if self.chip_hours:
            return self.chip_hours
        if self.num_chips and self.hours:
            return self.num_chips * self.hours
        if not self.chip.peak_flops_per_s:
            raise CatalogError(
                f"no peak FLOP/s is known for {self.chip.name}",
                hint="give chip-hours, or chips and hours",
            )
        reached = self.chip.peak_flops_per_s * (self.mfu or self.assumptions.usual_mfu)
        return (self.flop or 0.0) / reached / 3600

    @property
    def lasted_hours(self) -> float:
        """Wall time: as given, else chip-hours over chips, else the usual one."""
        if self.hours:
            return self.hours
        if self.num_chips:
            return self.used_chip_hours / self.num_chips
        return self.assumptions.usual_hours

    @property
    def published_day(self) -> datetime.date | None:
        """Day of publication, None where the start is unknown too."""
        if self.published or self.start is None:
            return self.published
        wait = datetime.timedelta(hours=self.lasted_hours, days=self.assumptions.publication_days)
        return self.start + wait

    @property
    def energy_j(self) -> float:
        """Electric energy, servers and facility included.

        Raises:
            CatalogError: the chip's power is unknown.
        """
        # Several TPUs have no published rating: an assumed one stands for them.
        if not self.chip.tdp_w and self.chip.kind != "tpu":
            raise CatalogError(
                f"no power is known for {self.chip.name}", hint="choose a chip with a rated power"
            )
        family = family_of(self.chip.name)
        rated = self.chip.tdp_w or self.assumptions.tpu_tdp_w
        watts = average_power_w(rated, self.chip.kind, family, self.assumptions)
        pue = self.site.pue if self.site else self.assumptions.pue(self.organization)
        return watts * pue * self.used_chip_hours * 3600

    @property
    def carbon_g(self) -> float:
        """Grams of CO2 equivalent of the energy, by the grid of the site in the run's months.

        Raises:
            CatalogError: no site is named, or its carbon intensity is unknown.
        """
        if self.site is None:
            raise CatalogError("no site is named, so its grid is unknown", hint="name a site")
        grams = grid_g_per_kwh(self.site, self.start, self.lasted_hours)
        return self.energy_j / J_PER_KWH * grams

    def amortized(self) -> CostEstimate:
        """Estimate the share of the hardware's life that the run uses, and its electricity.

        Returns:
            Parts "accelerators", "rest of servers", "network" and "electricity". The hardware is
            worth what it cost when it was acquired less what it lost until the start. Warns where
            the start lies before the chip's release: the earliest possible one is taken.

        Raises:
            CatalogError: no price of the chip, of electricity, or no power is known.
        """
        self._warn_if_early(self._bought())
        return self._estimate(lambda run: run._amortized())

    def acquisition(self) -> CostEstimate:
        """Estimate what buying the whole cluster costs.

        Returns:
            Parts "accelerators", "rest of servers" and "network".

        Raises:
            CatalogError: no price of the chip is known.
            ConfigError: the number of chips is unknown.
        """
        return self._estimate(lambda run: run._acquisition())

    def cloud(self, vendor: str = "") -> CostEstimate:
        """Estimate what renting costs, with a commitment of three years.

        Args:
            vendor: such as "Amazon Web Services"; the one nearest to the organization when empty.

        Returns:
            One part, "rent".

        Raises:
            CatalogError: no rent of the chip is known.
        """
        return self._estimate(lambda run: run._cloud(vendor))

    def development(self, staff: Staff, seed: int = 0) -> CostEstimate:
        """Estimate the whole development: experiments and people beside the final run.

        Args:
            staff: people who made the model.
            seed: seed of the draws behind the interval.

        Returns:
            The amortized parts times the experiments, and "staff".

        Raises:
            CatalogError: the amortized cost is unknown.
        """
        factor = self.assumptions.experiment_factor
        return development_of(self.amortized(), staff, factor, np.random.default_rng(seed))

    def swings(self) -> list[Swing]:
        """Say how far each assumption moves the amortized cost, the widest first."""
        return tornado(
            lambda other: replace(self, assumptions=other)._amortized().total_usd, self.assumptions
        )

    def _estimate(self, make: "Callable[[ComputeRun], CostEstimate]") -> CostEstimate:
        """Make an estimate with the interval of its assumptions."""
        return estimate_with_interval(
            lambda other: make(replace(self, assumptions=other)), self.assumptions
        )

    def _amortized(self) -> CostEstimate:
        """Estimate the amortized cost without its interval."""
        chosen = self.assumptions
        bought = self._bought()
        worth = depreciated_value(bought.usd, self._years_owned(bought), chosen)
        servers, network = (usd * self.used_chip_hours for usd in hourly_usd(worth, chosen))
        # Chips and the rest of their servers lose value alike.
        chips = servers * bought.chip_usd / bought.usd
        parts = {"accelerators": chips, "rest of servers": servers - chips, "network": network}
        kwh = self.energy_j / J_PER_KWH
        return self._made(
            "amortized", parts | {"electricity": kwh * self._kwh_usd()}, bought.source
        )

    def _acquisition(self) -> CostEstimate:
        """Estimate the purchase without its interval."""
        if self.num_chips is None:
            raise ConfigError(
                "the number of chips is unknown, so there is nothing to buy", hint="give num_chips"
            )
        bought = self._bought()
        servers = self.num_chips * bought.usd
        # The network is a share of the whole cluster, itself included.
        share = self.assumptions.interconnect_fraction
        chips = servers / server_price_factor(family_of(self.chip.name), self.assumptions)
        parts = {"accelerators": chips, "rest of servers": servers - chips}
        network = servers * share / (1 - share)
        return self._made("acquisition", parts | {"network": network}, bought.source)

    def _cloud(self, vendor: str) -> CostEstimate:
        """Estimate the rent without its interval."""
        nearest = next(
            (
                cloud
                for words, cloud in _VENDORS
                if any(word in self.organization for word in words)
            ),
            "Amazon Web Services",
        )
        if self.rent_usd is not None:
            usd = self.rent_usd * self.assumptions.rent_factor * self.used_chip_hours
            return self._made("cloud", {"rent": usd}, "rent as given")
        day = self.start or self.chip.release_date or datetime.date.today()
        signed = day - datetime.timedelta(days=self.assumptions.publication_days)
        found = rent_of(self.chip, vendor or nearest, signed, self.assumptions)
        seen = found.observation
        term = "converted to three years" if found.is_converted else "for three years"
        said = f"{seen.vendor} {seen.chip}, {seen.date}, {found.usd_per_hour:.2f} USD/h {term}"
        return self._made("cloud", {"rent": found.usd_per_hour * self.used_chip_hours}, said)

    def _made(self, method: str, parts: dict[str, float], source: str) -> CostEstimate:
        """Return an estimate in the dollars of the run's publication."""
        usd = math.fsum(parts.values())
        day = self.published_day or datetime.date.today()
        return CostEstimate(
            method=method,
            parts_usd=parts,
            low_usd=usd,
            high_usd=usd,
            month=f"{day:%Y-%m}",
            source=f"{source}; {self.assumptions.version}",
        )

    def _bought(self) -> Purchase:
        """Return the price of the hardware: as given, else the published one."""
        if self.server_usd is None:
            return purchase_of(self.chip, self.assumptions)
        usd = self.server_usd * self.assumptions.price_factor
        part = usd / server_price_factor(family_of(self.chip.name), self.assumptions)
        # A price that is given is one of the start, so that nothing has been lost of it yet.
        day = self.start or datetime.date.today()
        return Purchase(usd=usd, chip_usd=part, date=day, source="price as given")

    def _years_owned(self, bought: Purchase) -> float:
        """Return the age of the hardware at the start, 0 where the start would be before it."""
        if self.server_usd is not None:
            return 0.0
        if self.start is None:
            return self.assumptions.years_in_service
        days = (self.start - acquired_on(self.chip, bought, self.assumptions)).days
        # A run before the first sale had hardware that was new.
        return max(0, days) / DAYS_PER_YEAR

    def _kwh_usd(self) -> float:
        """Return the price of electricity: the site's, else the US industrial one of the year."""
        if self.site is None:
            day = self.published_day or datetime.date.today()
            return self.assumptions.electricity(day.year)
        if not self.site.price_usd_per_kwh:
            raise CatalogError(
                f"no price of electricity is known for {self.site.name}",
                hint="add price_usd_per_kwh to a record in the user catalog, or name no site",
            )
        return self.site.price_usd_per_kwh * self.assumptions.electricity_factor

    def _warn_if_early(self, bought: Purchase) -> None:
        """Warn of a start before the chip was sold."""
        release = self.chip.release_date
        if self.start is None or release is None or self.start >= release:
            return
        first = acquired_on(self.chip, bought, self.assumptions)
        warnings.warn(
            f"{self.chip.name} was released on {release}, after the start on {self.start}: a start "
            f"on {first} is priced",
            SteelyardWarning,
            stacklevel=3,
        )
