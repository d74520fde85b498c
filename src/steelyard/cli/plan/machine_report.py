"""What `steelyard plan machine` shows: designs, owning or renting, waiting, and two compared."""

import datetime
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from steelyard.catalog.hardware import Site
from steelyard.errors import CatalogError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.plan.comparison import DesignComparison, WorkCost, compare_designs, work_cost
from steelyard.plan.machine import MachineDesign
from steelyard.plan.ownership import Ownership, Waiting
from steelyard.runs.report import Block, Cell, Column, Report, Section, Table, Text
from steelyard.units import pretty

__all__ = ["MachineAnswer", "comparison_report"]

_YEAR_S = 365.25 * 86400
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
            seconds = self.work.seconds * found.speed if self.work else 0.0
            words = _compared_words(found, self.delay_usd_per_month, seconds)
            table = _compared([best], other, [found])
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
            "designs": [_plain(item, self.site) for item in self.designs],
            "unknown": self.unknown,
            "break_even_utilization": self.owned and _finite(self.owned.break_even_utilization),
            "work_seconds": self.work and self.work.seconds,
            "work_usd": self.work and self.work.usd,
            "best_start_months": start and _finite(start.value * 12),
            "now_pays_from_usd_per_month": waiting and _finite(waiting.now_pays_from_usd_per_month),
            "comparison": self.rival and _plain_comparison(self.rival[1], self.delay_usd_per_month),
        }


def comparison_report(
    designs: list[MachineDesign],
    base: MachineDesign,
    site: Site,
    delay: float,
    flop: float,
    mfu: float,
) -> tuple[Report, list[dict[str, Any]]]:
    """Compare published designs with one of them.

    Args:
        designs: those that are compared.
        base: the one that they are compared with.
        site: where they would stand.
        delay: what a month of waiting costs, in USD.
        flop: FLOP of a training, 0 for none.
        mfu: model FLOP/s over the base's rate.

    Returns:
        The report and its values.
    """
    found = [compare_designs(item, base, site) for item in designs]
    seconds = work_cost(base, flop, site, mfu=mfu).seconds if flop else 0.0
    blocks: list[Block] = [_compared(designs, base, found)]
    blocks.append(Text(_compared_words(found[0], delay, seconds)))
    report = Report(
        f"{designs[0].name} against {base.name}",
        "published servers, rates and powers; prices of switches and cables assumed",
        [Section(f"{base.num_accelerators:,} {base.node.accelerator.name}", blocks)],
    )
    values = [
        _plain(item, site) | {"comparison": _plain_comparison(over, delay)}
        for item, over in zip(designs, found, strict=True)
    ]
    return report, [*values, _plain(base, site)]


def _finite(value: float) -> float | None:
    """Return a number as JSON has it: null for never."""
    return value if math.isfinite(value) else None


def _usd(value: float) -> str:
    """Return money in three digits."""
    return pretty(float(f"{value:.3g}"), "USD")


def _month(years: float) -> str:
    """Return the month some years from now."""
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
            _usd(item.network_usd),
            _usd(item.total_usd) if item.node.usd else "not known",
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
        [f"{share:.0%}", _usd(owned.usd_per_hour(share)), _usd(owned.rent_usd_per_hour)]
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
            _usd(work.cost_at(months / 12)),
            _month(work.finished_at(months / 12)),
            _usd(work.total_at(months / 12)),
        ]
        for months in _STARTS
    ]
    heads = ("cost of the work", "done", "with the delay")
    columns = [Column("begin"), *(Column(name, align="right") for name in heads)]
    caption = (
        f"as many successors: {work.speed_growth:.2f}x a year faster by the catalog's trend of "
        f"16-bit peaks, work per dollar {work.cost_growth:.2f}x a year (arXiv 2405.21015)"
    )
    took = f"Begun now it takes {pretty(now.seconds, 's')} and costs {_usd(now.usd)}."
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
    return f"{said}. Now is best where a month's delay costs {_usd(even)} or more."


def _compared(
    designs: list[MachineDesign], base: MachineDesign, found: list[DesignComparison]
) -> Table:
    """Make the table of designs over another."""
    rows: list[list[Cell]] = [
        [
            item.name,
            f"{item.fabric.num_switches:,}",
            f"{over.speed:.2f}",
            f"{over.price:.3f}",
            f"{over.speed / over.price:.2f}",
            f"{over.speed / over.node_price:.2f}",
            f"{over.power:.2f}",
            pretty(item.power_w, "W"),
        ]
        for item, over in zip(designs, found, strict=True)
    ]
    one = ["1"] * 5
    rows.append([base.name, f"{base.fabric.num_switches:,}", *one, pretty(base.power_w, "W")])
    heads = ("switches", "speed", "price", "speed for price", "for price of nodes", "power")
    columns = [Column("cluster"), *(Column(name, align="right") for name in heads)]
    caption = (
        f"over {base.name}, storage left out of price; speed of measured products where known, "
        "else of 16-bit peaks"
    )
    return Table([*columns, Column("IT power", align="right")], rows, caption=caption)


def _compared_words(over: DesignComparison, delay: float, other_seconds: float) -> str:
    """Say when a design pays against another."""
    begin = (
        f"{over.price:.0%} of the price at {over.speed:.0%} of the speed: as fast a cluster of its "
        f"kind costs {over.equal_speed_price:.0%}, and a piece of work {over.work_price:.0%}, "
        "hardware and electricity."
    )
    even = over.even_delay_usd_per_month
    if math.isinf(even) or even <= 0:
        # Equally fast, or the slower one is dearer too: no delay changes which one pays.
        begin += " It pays always." if over.pays(delay) else " It never pays."
    else:
        when = "below" if over.speed < 1 else "above"
        begin += f" It pays where a month of waiting for the result costs {when} {_usd(even)}"
        begin += f"; at {_usd(delay)} it does{'' if over.pays(delay) else ' not'}."
    if not other_seconds:
        return begin
    mine, its = over.work(other_seconds)
    return (
        f"{begin} The training takes {pretty(mine.seconds, 's')} and {_usd(mine.usd)} "
        f"({_usd(mine.with_delay(delay))} with the delay), on the other "
        f"{pretty(its.seconds, 's')} and {_usd(its.usd)} ({_usd(its.with_delay(delay))})."
    )


def _plain(design: MachineDesign, site: Site) -> dict[str, Any]:
    """Return a design as JSON values; unknown prices are null."""
    fabric = design.fabric
    return {
        "name": design.name,
        "network": fabric.kind,
        "switches": dict(fabric.switches),
        "cables": fabric.num_cables,
        "hops": fabric.hops,
        "ports": fabric.ports,
        "network_usd": design.network_usd,
        "servers_usd": design.servers_usd if design.node.usd else None,
        "total_usd": design.total_usd if design.node.usd else None,
        "power_w": design.power_w,
        "facility_power_w": design.power_w * site.pue,
        "num_accelerators": design.num_accelerators,
    }


def _plain_comparison(over: DesignComparison, delay: float) -> dict[str, Any]:
    """Return a comparison as JSON values."""
    return {
        "speed": over.speed,
        "price": over.price,
        "node_price": over.node_price,
        "power": over.power,
        "equal_speed_price": over.equal_speed_price,
        "work_price": over.work_price,
        "even_delay_usd_per_month": _finite(over.even_delay_usd_per_month),
        "pays": over.pays(delay),
    }
