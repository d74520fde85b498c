"""Sites, weeks and loads of the data center benchmark: which were tuned on, which are reported."""

import csv
from functools import cache

import numpy as np
from benchmarks.laws._shared import shared

from steelyard import catalog
from steelyard.sim.datacenter import (
    DataCenter,
    QueueRules,
    SiteYear,
    join_year,
    read_column,
    windows,
)

__all__ = [
    "DAY",
    "REPORTED_SITES",
    "TUNED_SITES",
    "WEEK",
    "drawn_weeks",
    "load",
    "site_names",
    "weeks",
    "year",
]

TUNED_SITES = ("va-leesburg", "il-chicago", "tx-dallas")
"""Sites whose weeks the settings of controllers were chosen on, with the load of Alibaba."""
REPORTED_SITES = ("az-phoenix", "ca-san-jose", "ga-atlanta", "ny-kennedy", "wa-seattle")
DAY, WEEK = 96, 672


@cache
def _rows() -> dict[str, dict[str, str]]:
    """Read the list of sites."""
    with (shared("datacenter-site") / "sites.csv").open() as stream:
        return {row["site"]: row for row in csv.DictReader(stream)}


def site_names() -> list[str]:
    """List all sites."""
    return list(_rows())


@cache
def year(site: str) -> SiteYear:
    """Read a site's weather and carbon."""
    folder = shared("datacenter-site")
    return join_year(
        folder / "weather" / f"{site}.csv.gz",
        folder / "carbon" / f"{site}.csv.gz",
        utc_offset_h=float(_rows()[site]["utc_offset_h"]),
        name=site,
    )


@cache
def load(name: str) -> np.ndarray:
    """Read a trace of utilisation, by step of a year."""
    path = shared("datacenter-site") / "utilisation" / f"{name}.csv.gz"
    return np.repeat(read_column(path, "cpu_utilisation")[:8760], 4)


def weeks(
    datacenter: str,
    sites: list[str],
    starts: list[int],
    loads: list[np.ndarray],
    *,
    flexible_share: float = 0.0,
    lead: int = DAY,
) -> DataCenter:
    """Make a data center with one scenario per site, a week long with a day before it."""
    drivers = windows(
        [year(site) for site in sites], [start - lead for start in starts], loads, WEEK + lead
    )
    rules = QueueRules(flexible_share=flexible_share)
    return DataCenter(catalog.datacenter(datacenter), drivers, rules=rules)


def drawn_weeks(
    datacenter: str, sites: tuple[str, ...], trace: str, rng: np.random.Generator, per_site: int
) -> DataCenter:
    """Draw weeks of sites, each with a noisy stretch of a trace."""
    names = [site for site in sites for _ in range(per_site)]
    days = rng.integers(1, 358, len(names))
    base = load(trace)
    loads = []
    for _ in names:
        noise = np.repeat(rng.normal(0, 0.03, len(base) // 4), 4)
        loads.append(np.clip(np.roll(base, -DAY * int(rng.integers(0, 358))) + noise, 0, 1))
    return weeks(datacenter, names, (days * DAY).tolist(), loads)
