"""From requests to carbon: replicas that start cold, a row's watts, a site, and its grid."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard import catalog
from steelyard.catalog.datacenter import DataCenterSpec
from steelyard.cost.energy import J_PER_KWH
from steelyard.cost.money import electricity_usd
from steelyard.errors import ConfigError
from steelyard.operate.cooling import TrimAndRespond
from steelyard.operate.power.answers import KindAccount, RowMeters, account_kinds, row_meters
from steelyard.operate.power.chain_scenario import ChainScenario
from steelyard.operate.power.scaling import SCALERS, ScaledRow, ScalingRules, scale_row
from steelyard.operate.site import SiteAccount, hourly_account
from steelyard.sim.datacenter import (
    STEP_S,
    DataCenter,
    Plant,
    SiteRun,
    SiteYear,
    simulate_site,
    windows,
)
from steelyard.sim.power import PUBLISHED_MIX, RowRequests, RowScenario
from steelyard.sim.power.state import IDLE

__all__ = ["AnswerChain", "ChainRun", "run_chain"]

Array = NDArray[np.float64]
_LEAD = 96
"""Steps of a site before those that count: one day, so that its setpoint has settled."""


@dataclass(frozen=True, slots=True)
class ChainRun:
    """One scaler from requests to the grid; energy and carbon are those of one row.

    Attributes:
        name: name of the scaler.
        scaled: servers and what commanded them.
        meters: where the row's energy went.
        site: the site with as many rows as it holds.
        rows: their number.
        account: the site's account by hour.
        kinds: what each kind's answers took.
        carbon_g: carbon of one row.
        usd: electricity of one row.
    """

    name: str
    scaled: ScaledRow
    meters: RowMeters
    site: SiteRun
    rows: int
    account: SiteAccount
    kinds: list[KindAccount]
    carbon_g: float
    usd: float

    @property
    def grid_j(self) -> float:
        """Energy bought for one row."""
        return float(self.account.grid_kwh.sum()) * J_PER_KWH / self.rows

    @property
    def pue(self) -> float:
        """Energy of the site over that of its racks."""
        return float(self.site.pue[0])

    def gaps(self) -> dict[str, float]:
        """Return how far each level's sum is from the next, relative; rounding alone."""
        account = self.account.totals()
        parts = ("it_kwh", "crac_kwh", "chiller_kwh", "tower_kwh", "pumps_kwh", "battery_kwh")
        racks_j = account["it_kwh"] * J_PER_KWH / self.rows
        return self.meters.gaps | {
            "rows to racks": abs(racks_j / self.meters.meter_j - 1),
            "racks and cooling to grid": abs(
                sum(account[name] for name in parts) / account["grid_kwh"] - 1
            ),
            "kinds to grid": abs(sum(item.grid_j for item in self.kinds) / self.grid_j - 1),
            "kinds to carbon": abs(sum(item.carbon_g for item in self.kinds) / self.carbon_g - 1),
        }

    def figures(self) -> dict[str, float | str]:
        """Return the levels' totals by name, for tables and JSON."""
        plant, details = self.scaled.plant, self.scaled.report.outcome.details
        waits = plant.state.first_s - plant.requests.arrival_s
        idle, starts = self.meters.spent_j[:, IDLE:].sum(axis=0)
        return {
            "scaler": self.name,
            "answers": float(sum(item.finished for item in self.kinds)),
            "server_hours": details["server_hours"],
            "starting_hours": details["starting_hours"],
            "starts": details["starts"],
            "first_token_p50_s": float(np.nanquantile(waits, 0.5)),
            "first_token_p99_s": float(np.nanquantile(waits, 0.99)),
            "row_j": self.meters.meter_j,
            "idle_j": float(idle),
            "starting_j": float(starts),
            "peak": float(self.meters.spent_j.sum(axis=1).max() / STEP_S / plant.row.budget_w),
            "pue": self.pue,
            "grid_j": self.grid_j,
            "water_l": float(self.account.water_l.sum()) / self.rows,
            "carbon_g": self.carbon_g,
            "usd": self.usd,
            "largest_gap": max(self.gaps().values()),
        }


@dataclass(frozen=True, slots=True)
class AnswerChain:
    """The same requests under several scalers.

    Attributes:
        scenario: the row, its requests, how it is scaled and where it stands.
        runs: runs of the scalers, by name.
        source: where weather and carbon come from.
    """

    scenario: ChainScenario
    runs: dict[str, ChainRun]
    source: str


def run_chain(
    scenario: ChainScenario,
    *,
    scalers: Sequence[str] = SCALERS,
    requests: RowRequests | None = None,
    kinds: Sequence[str] = tuple(kind.name for kind in PUBLISHED_MIX),
) -> AnswerChain:
    """Follow requests to replicas, watts, cooling and carbon under each scaler.

    A forecast is learned on a time before that is drawn anew with the next seed; the oracle knows
    the load as it is with all servers on. The site's setpoint follows trim and respond, and its
    battery rests.

    Args:
        scenario: the row, its requests, how it is scaled and where it stands.
        scalers: some of `SCALERS`.
        requests: what arrives, in place of the scenario's own.
        kinds: names of the kinds of requests.

    Returns:
        The chain of each scaler.

    Raises:
        ConfigError: an unknown scaler, a time that is not of whole quarters of an hour, or a row
            that the site cannot hold.
    """
    asked = scenario.row_scenario()
    row, rules, duration_s = asked.row(), scenario.rules(), asked.duration_s
    if duration_s % STEP_S:
        raise ConfigError(
            f"{asked.days:g} days are {duration_s:g} s, but a site counts in quarters of an hour",
            hint="give days of whole quarters of an hour, such as 0.25",
        )
    given = asked.requests() if requests is None else requests
    year, spec = scenario.year(), scenario.spec()
    known = _known_loads(asked, rules, given, scalers)
    runs = {}
    for name in dict.fromkeys(scalers):
        scaled = scale_row(
            name,
            row,
            given,
            rules,
            duration_s=duration_s,
            known=known.get(name),
            seed=asked.seed,
        )
        meters = row_meters(scaled.plant, kinds)
        runs[name] = _followed(scaled, meters, spec, year, scenario.start_day)
    return AnswerChain(scenario, runs, year.source)


def _known_loads(
    asked: RowScenario, rules: ScalingRules, requests: RowRequests, scalers: Sequence[str]
) -> dict[str, Array]:
    """Return what scalers have to know: the load before, or the load itself."""
    before = replace(asked, seed=asked.seed + 1).requests()
    return {
        name: scale_row("all on", asked.row(), of, rules, duration_s=asked.duration_s).load
        for name, of in (("oracle", requests), ("forecast", before))
        if name in scalers
    }


def _followed(
    scaled: ScaledRow,
    meters: RowMeters,
    spec: DataCenterSpec,
    year: SiteYear,
    start_day: int,
) -> ChainRun:
    """Follow a row's watts through a site to its grid."""
    watts = meters.spent_j.sum(axis=1) / STEP_S
    site, rows, grams = _site_of_rows(watts, spec, year, start_day)
    price = catalog.site(spec.site)
    usd_per_kwh = electricity_usd(J_PER_KWH, price)
    account = hourly_account(site, price)
    pue = site.column("grid_w")[:, 0] / site.column("it_w")[:, 0]
    return ChainRun(
        name=scaled.name,
        scaled=scaled,
        meters=meters,
        site=site,
        rows=rows,
        account=account,
        kinds=account_kinds(scaled.plant, meters, pue, grams, usd_per_kwh),
        carbon_g=float(account.carbon_kg.sum()) * 1e3 / rows,
        usd=float(account.usd.sum()) / rows,
    )


def _site_of_rows(
    watts: Array, spec: DataCenterSpec, year: SiteYear, start_day: int
) -> tuple[SiteRun, int, Array]:
    """Fill a site with rows that draw these watts; return its run, their number and the grid's g.

    Args:
        watts: watts of one row, [steps].
        spec: the site.
        year: its weather and carbon.
        start_day: day of the year on which the row begins.

    Returns:
        The run, the number of rows, and grams per kilowatt-hour in each step, [steps].

    Raises:
        ConfigError: not one row fits, or the rows draw less than the site's racks do without work.
    """
    plant = Plant(spec)
    rows = int(plant.parts.rated_w // watts.max())
    if not rows:
        raise ConfigError(
            f"a row of up to {watts.max() / 1e3:,.0f} kW, but {spec.name} feeds racks of "
            f"{plant.parts.rated_w / 1e3:,.0f} kW",
            hint="give fewer servers, or a larger data center",
        )
    if watts.min() * rows < plant.parts.idle_it_w:
        raise ConfigError(
            f"{rows} such rows draw down to {watts.min() * rows / 1e3:,.0f} kW, but racks of "
            f"{spec.name} draw {plant.parts.idle_it_w / 1e3:,.0f} kW without work",
            hint="give more servers, or a data center whose racks draw less without work",
        )
    load = plant.load_of(watts * rows)
    steps, first = len(load), start_day * _LEAD
    by_year = np.resize(load, len(year))
    drivers = windows([year], [first - _LEAD], [np.roll(by_year, first)], steps + _LEAD)
    center = DataCenter(spec, drivers, is_metered=True)
    run = simulate_site(center, TrimAndRespond()).after(_LEAD)
    return run, rows, drivers.carbon_g_per_kwh[_LEAD:, 0]
