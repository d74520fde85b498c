"""Grams of carbon dioxide equivalent of a run: its energy, by the grid of the site and the date."""

import datetime
import math
from itertools import pairwise

from steelyard.catalog.hardware import Site
from steelyard.cost.energy import J_PER_KWH
from steelyard.errors import CatalogError

__all__ = ["grid_g_per_kwh", "run_carbon_g"]

_YEAR_H = 8766.0


def grid_g_per_kwh(site: Site, start: datetime.date | None = None, hours: float = 0.0) -> float:
    """Return the average carbon intensity of a site's grid while a run lasts.

    Args:
        site: place whose grid supplies the run.
        start: first day; the mean of the year where it is None.
        hours: duration of the run; at least a day is averaged.

    Returns:
        Grams per kilowatt-hour: the year's mean, weighted by the months of the run where the site's
        record has them.

    Raises:
        CatalogError: the site's carbon intensity is unknown.
    """
    if not site.carbon_g_per_kwh:
        raise CatalogError(
            f"no carbon intensity is known for {site.name}",
            hint="add carbon_g_per_kwh to a record in the user catalog",
        )
    # Whole years have the year's mean, whatever the month they begin in.
    days = math.ceil(max(hours, 24.0) % _YEAR_H / 24)
    if start is None or not site.carbon_by_month or not days:
        return site.carbon_g_per_kwh
    end = start + datetime.timedelta(days=days)
    firsts = [start, *_firsts_of_months(start, end), end]
    parts = [
        (site.carbon_by_month[day.month - 1], (next_ - day).days) for day, next_ in pairwise(firsts)
    ]
    of_rest = sum(factor * length for factor, length in parts) / days
    years = max(hours, 24.0) // _YEAR_H
    rest = days * 24 / _YEAR_H
    return site.carbon_g_per_kwh * (years + of_rest * rest) / (years + rest)


def _firsts_of_months(start: datetime.date, end: datetime.date) -> list[datetime.date]:
    """Return the first days of months between two days, both left out."""
    found, day = [], start
    while (day := (day.replace(day=1) + datetime.timedelta(days=32)).replace(day=1)) < end:
        found.append(day)
    return found


def run_carbon_g(
    energy_j: float, site: Site, start: datetime.date | None = None, hours: float = 0.0
) -> float:
    """Return the operational emissions: energy times the grid's average intensity.

    What making the hardware emitted is left out.

    Args:
        energy_j: electric energy, facility overhead included.
        site: place whose grid supplies it.
        start: first day of the run, None when unknown.
        hours: how long it lasts.

    Returns:
        Grams of carbon dioxide equivalent.

    Raises:
        CatalogError: the site's carbon intensity is unknown.
    """
    return energy_j / J_PER_KWH * grid_g_per_kwh(site, start, hours)
