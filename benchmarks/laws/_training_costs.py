"""Recomputed costs of the published training runs (arXiv 2405.21015)."""

import datetime
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from benchmarks.common import Check
from benchmarks.laws._epoch_models import ModelRecord, load_models
from benchmarks.laws._shared import shared
from scipy.integrate import quad
from scipy.stats import spearmanr

from steelyard.catalog import market
from steelyard.cost.assumptions import Assumptions
from steelyard.cost.compute_run import ComputeRun
from steelyard.cost.estimate import CostEstimate
from steelyard.cost.money import HOURS_PER_YEAR, depreciated_value, hourly_usd
from steelyard.errors import CatalogError, SteelyardWarning

__all__ = ["cost_checks"]

_DOLLARS = "2024-12"
_GPT4 = "GPT-4"
_STARTS = {
    "GPT-3.5": datetime.date(2022, 3, 14),
    "GPT-3 175B (davinci)": datetime.date(2019, 10, 1),
    "Gemini 1.0 Ultra": datetime.date(2023, 5, 10),
}
"""Days on which training began where the authors say so."""
_GPT4_END = datetime.date(2022, 8, 15)
_GPT4_PARTS_USD = (17.89e6, 11.81e6, 6.97e6, 3.50e6)
"""Accelerators, rest of servers, network and electricity."""
_LIST_VENDOR = "Amazon Web Services"


@dataclass(frozen=True)
class _Row:
    """A published cost beside ours.

    Attributes:
        name: name of the model.
        run: the run.
        cost: our amortized cost in the same dollars.
        published_usd: the authors' amortized cost.
        acquisition_usd: the authors' purchase, None where unknown.
        cloud_usd: the authors' rent, None where unknown.
    """

    name: str
    run: ComputeRun
    cost: CostEstimate
    published_usd: float
    acquisition_usd: float | None
    cloud_usd: float | None

    @property
    def error(self) -> float:
        """Relative error against the published cost."""
        return self.cost.total_usd / self.published_usd - 1


def cost_checks() -> list[Check]:
    """Recompute every published cost whose hardware is known, and check its parts and ranks."""
    rows = _rows()
    close = [row for row in rows if abs(row.error) <= 0.01]
    for row in rows:
        if row not in close:
            print(f"{row.name}: {row.error:+.1%}")
    gpt4 = next(row for row in rows if row.name == _GPT4)
    return [
        Check(
            "1 published costs within 1 %, of 61 with one kind of chip", len(close), 60, "higher"
        ),
        Check(
            "1 GPT-4 against 40.70 M USD, relative error",
            abs(gpt4.cost.total_usd / 40.70e6 - 1),
            0.01,
            "lower",
        ),
        *_part_checks(rows),
        Check(
            "4 amortization over the whole life over the price, error", _conserved(), 1e-3, "lower"
        ),
        *_rank_checks(rows),
    ]


def _rows() -> list[_Row]:
    """Price the published models with one known kind of chip."""
    folder = shared("epoch-training-costs")
    models = {item.name: item for item in load_models(folder / "models.csv")}
    found = []
    for row in pl.read_csv(folder / "published_costs.csv").iter_rows(named=True):
        model = models[row["Model"]]
        if len(model.chips) != 1:
            continue
        run = _run(model)
        with warnings.catch_warnings():
            # One model was published less than a usual training after its chip was.
            warnings.simplefilter("ignore", SteelyardWarning)
            cost = run.amortized().in_dollars_of(_DOLLARS)
        published = row["Hardware_Capex_Energy_Cost"]
        others = (row["Hardware_Acquisition_Cost"], row["Cloud_Cost"])
        found.append(_Row(model.name, run, cost, published, *others))
    return found


def _run(model: ModelRecord) -> ComputeRun:
    """Return the run of a model, with the authors' own dates where they have them."""
    run = ComputeRun.published_on(
        model.published,
        hours=model.hours,
        chip=market.chip(model.chips[0]),
        chip_hours=model.chip_hours,
        flop=model.flop,
        mfu=model.mfu,
        num_chips=model.num_chips,
        organization=model.organization,
    )
    if model.name == _GPT4:
        return replace(run, start=_GPT4_END - datetime.timedelta(hours=model.hours or 0.0))
    return replace(run, start=_STARTS.get(model.name, run.start))


def _part_checks(rows: list[_Row]) -> list[Check]:
    """Check the order of the parts of GPT-4 and PaLM, their energy, and that they add up."""
    ordered = inside = 0
    for row in (row for row in rows if row.name in (_GPT4, "PaLM (540B)")):
        usd = list(row.cost.parts_usd.values())
        print(f"{row.name}: " + ", ".join(f"{k} {v:.1%}" for k, v in row.cost.shares.items()))
        ordered += usd == sorted(usd, reverse=True)
        inside += 0.02 <= row.cost.shares["electricity"] <= 0.15
    gpt4 = next(row for row in rows if row.name == _GPT4)
    nominal = gpt4.run.amortized().parts_usd.values()
    off = max(abs(usd / said - 1) for usd, said in zip(nominal, _GPT4_PARTS_USD, strict=True))
    return [
        Check("3 GPT-4 and PaLM: chips > servers > network > energy", ordered, 2, "higher"),
        Check("3 GPT-4 and PaLM: energy 2 to 15 % of the bill", inside, 2, "higher"),
        Check("3 GPT-4 parts in dollars of 2023-03, largest error", off, 0.003, "lower"),
    ]


def _conserved() -> float:
    """Integrate the hourly cost of a chip from its purchase on, by quadrature."""
    worst = 0.0
    for depreciation in (0.05, 0.14, 0.3):
        chosen = Assumptions(depreciation=depreciation)

        def hourly(years: float, chosen: Assumptions = chosen) -> float:
            return hourly_usd(depreciated_value(1.0, years, chosen), chosen)[0] * HOURS_PER_YEAR

        worst = max(worst, abs(quad(hourly, 0, np.inf)[0] - 1))
    return worst


def _rank(ours: list[float], theirs: list[float]) -> float:
    """Return Spearman's rank correlation."""
    found: Any = spearmanr(ours, theirs)
    return float(found.statistic)


def _rank_checks(rows: list[_Row]) -> list[Check]:
    """Compare our ranks and a list price's with the published ones."""
    published = [row.published_usd for row in rows]
    ours = _rank([row.cost.total_usd for row in rows], published)
    listed = [(row, usd) for row in rows if (usd := _list_usd(row.run))]
    same = [row.published_usd for row, _ in listed]
    of_list = _rank([usd for _, usd in listed], same)
    ours_there = _rank([row.cost.total_usd for row, _ in listed], same)
    bought = _close([(row.run, row.acquisition_usd, ComputeRun.acquisition) for row in rows], 0.01)
    rented = _close([(row.run, row.cloud_usd, ComputeRun.cloud) for row in rows], 0.1)
    print(
        f"Spearman with the published: ours {ours:.4f} over {len(rows)}; over the {len(listed)} "
        f"with a list rent: ours {ours_there:.4f}, rent on demand {of_list:.4f}. "
        f"Acquisition within 1 %: {bought[0]} of {bought[1]}; "
        f"cloud within 10 %: {rented[0]} of {rented[1]}"
    )
    return [
        Check("5 Spearman of ours with the published", ours, 0.98, "higher"),
        Check("5 Spearman, ours over that of list prices", ours_there / of_list, 1.0, "higher"),
    ]


def _list_usd(run: ComputeRun) -> float | None:
    """Return what a calculator with the list price on demand says, None without a price."""
    prices = market.price_observations(market.family_of(run.chip.name))
    rented = [item for item in prices if item.on_demand_usd_per_hour]
    of_vendor = [item for item in rented if item.vendor == _LIST_VENDOR] or rented
    if not of_vendor or run.start is None:
        return None
    start = run.start
    nearest = min(of_vendor, key=lambda item: abs((item.date - start).days))
    return (nearest.on_demand_usd_per_hour or 0.0) * run.used_chip_hours


def _close(rows: list, bar: float) -> tuple[int, int]:
    """Count the rows whose estimate lies within a bar of the published one."""
    count = total = 0
    for run, published, make in rows:
        if published is None:
            continue
        total += 1
        try:
            count += abs(make(run).in_dollars_of(_DOLLARS).total_usd / published - 1) <= bar
        except CatalogError as error:
            print(f"{run.chip.name}: {error}")
    return count, total
