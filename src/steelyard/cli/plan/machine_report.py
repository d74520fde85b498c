"""What `steelyard plan machine` shows: designs, owning or renting, waiting, and two compared."""

import datetime
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from steelyard.catalog.hardware import Site
from steelyard.cli.plan.machine_compared import (
    compared_table,
    compared_words,
    finite,
    plain_comparison,
    plain_design,
    rounded_usd,
)
from steelyard.errors import CatalogError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.plan.comparison import DesignComparison, WorkCost
from steelyard.plan.machine import MachineDesign
from steelyard.plan.ownership import Ownership, Waiting
from steelyard.runs.report import Block, Cell, Column, Report, Section, Table, Text
from steelyard.units import pretty

__all__ = ["MachineAnswer"]

_STARTS = (0, 3, 6, 12, 18, 24, 36)
"""Months from now at which work is shown to begin."""


@dataclass(kw_only=True)
class MachineAnswer:
    """What was found out about a cluster; None where it was not asked or is not known.

    Attributes:
        designs: one by network, the cheapest first.
        site: where it stands.
        delay_usd_per_month: what a month of waiting for the work's result costs.
        unknown: why something is left out, by its name.
        owned: owning and renting the first design.
        work: time and cost of the work on it.
        later: when the work is best begun.
        rival: a second design, and the first one over it.
    """

    designs: list[MachineDesign]
    site: Site
    delay_usd_per_month: float
    unknown: dict[str, str] = field(default_factory=dict)
    owned: Ownership | None = None
    work: WorkCost | None = None
    later: tuple[Waiting, Estimate] | None = None
    rival: tuple[MachineDesign, DesignComparison] | None = None

    @contextmanager
    def leaving_out(self, name: str) -> Iterator[None]:
        """Note a price or rate that is not known instead of failing."""
        try:
            yield
        except CatalogError as error:
            self.unknown[name] = f"{error}; {error.hint}" if error.hint else str(error)

    def report(self) -> Report:
        """Return what people see."""
        best = self.designs[0]
        sections = [Section("Designs", [_table(self.designs, self.site), _assumed(best)])]
        if self.owned:
            sections.append(Section("Buy or rent", _ownership(self.owned, self.site)))
        if self.work and self.later:
            sections.append(Section("Now or later", _waiting(self.work, *self.later)))
        if self.rival:
            other, found = self.rival
            # A piece of work takes the other as much longer as this one is faster.
            seconds = self.work.seconds * found.speed if self.work else 0.0
            words = compared_words(found, self.delay_usd_per_month, seconds)
            table = compared_table([best], other, [found])
            sections.append(Section(f"Against {other.name}", [table, Text(words)]))
        lacks: list[Block] = [
            Text(f"{name} is left out: {why}.") for name, why in self.unknown.items()
        ]
        if lacks:
            sections.append(Section("", lacks))
        title = f"{best.num_accelerators:,} x {best.node.accelerator.name}"
        return Report(title, f"{best.num_nodes:,} nodes; derived and assumed", sections)

    def values(self) -> dict[str, Any]:
        """Return what programs want to know; null for never and for what is not known."""
        waiting, start = self.later or (None, None)
        return {
            "designs": [plain_design(item, self.site) for item in self.designs],
            "unknown": self.unknown,
            "break_even_utilization": self.owned and finite(self.owned.break_even_utilization),
            "work_seconds": self.work and self.work.seconds,
            "work_usd": self.work and self.work.usd,
            "best_start_months": start and finite(start.value * 12),
            "now_pays_from_usd_per_month": waiting and finite(waiting.now_pays_from_usd_per_month),
            "comparison": self.rival and plain_comparison(self.rival[1], self.delay_usd_per_month),
        }


def _month(years: float) -> str:
    """Return the month some years from now."""
    # Dates end with year 9999, and growth that never catches up gives more.
    if years > 1000:
        return "never"
    return f"{datetime.date.today() + datetime.timedelta(days=years * 365.25):%Y-%m}"


def _table(designs: list[MachineDesign], site: Site) -> Table:
    """Make the table of designs."""
    rows: list[list[Cell]] = [
        [
            item.fabric.kind,
            " + ".join(f"{count:,} {name}" for name, count in item.fabric.switches.items()),
            f"{item.fabric.num_cables:,}",
            item.fabric.hops,
            rounded_usd(item.network_usd),
            rounded_usd(item.total_usd) if item.node.usd else "not known",
            pretty(item.power_w * site.pue, "W"),
        ]
        for item in designs
    ]
    columns = [Column("network"), Column("switches", rank=1)]
    columns += [Column(name, align="right", rank=2) for name in ("cables", "hops")]
    columns += [Column(name, align="right") for name in ("network price", "cluster", "power")]
    return Table(columns, rows, caption=f"average power of the facility at {site.name}")


def _assumed(design: MachineDesign) -> Text:
    """Say which prices are assumed."""
    parts = design.parts
    return Text(
        f"Assumed: {pretty(parts.switch_usd, 'USD')} a switch, "
        f"{pretty(parts.cable_usd, 'USD')} a cable with optics, "
        f"{pretty(parts.storage_usd, 'USD')} a storage server. Node: {design.node.source}."
    )


def _ownership(owned: Ownership, site: Site) -> list[Block]:
    """Say from which use owning pays, and what an hour costs at some."""
    rows: list[list[Cell]] = [
        [
            f"{share:.0%}",
            rounded_usd(owned.usd_per_hour(share)),
            rounded_usd(owned.rent_usd_per_hour),
        ]
        for share in (0.1, 0.25, 0.5, 0.75, 1.0)
    ]
    even = owned.break_even_utilization
    told = (
        f"Owned for {owned.years:g} years at {site.name}, building, staff and idle power left out, "
        f"it is cheaper from {even:.0%} of the hours on."
        if even <= 1
        else f"Renting is cheaper even if it is used all hours of {owned.years:g} years."
    )
    heads = ("owned, an hour used", "rented, an hour")
    columns = [Column("use"), *(Column(name, align="right") for name in heads)]
    return [Table(columns, rows), Text(told)]


def _waiting(now: WorkCost, work: Waiting, best: Estimate) -> list[Block]:
    """Say when waiting stops paying, and what the work costs at some starts."""
    rows: list[list[Cell]] = [
        [
            _month(months / 12),
            rounded_usd(work.cost_at(months / 12)),
            _month(work.finished_at(months / 12)),
            rounded_usd(work.total_at(months / 12)),
        ]
        for months in _STARTS
    ]
    heads = ("cost of the work", "done", "with the delay")
    columns = [Column("begin"), *(Column(name, align="right") for name in heads)]
    caption = (
        f"as many successors: {work.speed_growth:.2f}x a year faster by the catalog's trend of "
        f"16-bit peaks, work per dollar {work.cost_growth:.2f}x a year (arXiv 2405.21015)"
    )
    took = f"Begun now it takes {pretty(now.seconds, 's')} and costs {rounded_usd(now.usd)}."
    return [Text(f"{took} {_best_start(work, best)}"), Table(columns, rows, caption=caption)]


def _best_start(work: Waiting, best: Estimate) -> str:
    """Say in words when the work is best begun, and from which delay on it is now."""
    ends = f"{_month(best.low)} to {_month(best.high)}"
    if math.isinf(best.value):
        said = "Waiting never stops paying, as a delay costs nothing (--delay)"
    elif best.value == 0 and best.high == 0:
        said = "Waiting costs more than it saves: begin now"
    else:
        until = "now" if best.value == 0 else _month(best.value)
        said = f"Waiting stops paying: {until} (80 % by the growth of chips: {ends})"
    even = work.now_pays_from_usd_per_month
    if math.isinf(even):
        return f"{said}; it takes so long that later machines would be done sooner."
    return f"{said}. Now is best where a month's delay costs {rounded_usd(even)} or more."
