"""Two clusters compared by `steelyard plan machine`, and designs as values for programs."""

import math
from typing import Any

from steelyard.catalog.hardware import Site
from steelyard.plan.comparison import DesignComparison, compare_designs, work_cost
from steelyard.plan.machine import MachineDesign
from steelyard.runs.report import Block, Cell, Column, Report, Section, Table, Text
from steelyard.units import pretty

__all__ = [
    "compared_table",
    "compared_words",
    "comparison_report",
    "finite",
    "plain_comparison",
    "plain_design",
    "rounded_usd",
]


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
    blocks: list[Block] = [compared_table(designs, base, found)]
    blocks.append(Text(compared_words(found[0], delay, seconds)))
    report = Report(
        f"{designs[0].name} against {base.name}",
        "published servers, rates and powers; prices of switches and cables assumed",
        [Section(f"{base.num_accelerators:,} {base.node.accelerator.name}", blocks)],
    )
    values = [
        plain_design(item, site) | {"comparison": plain_comparison(over, delay)}
        for item, over in zip(designs, found, strict=True)
    ]
    return report, [*values, plain_design(base, site)]


def compared_table(
    designs: list[MachineDesign], base: MachineDesign, found: list[DesignComparison]
) -> Table:
    """Make the table of designs over another.

    Args:
        designs: those that are compared.
        base: the other.
        found: each of them over it.

    Returns:
        A row for each and for the other.
    """
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
        f"over {base.name}, storage left out of all but the IT power; speed of measured products "
        "where known, else of 16-bit peaks"
    )
    return Table([*columns, Column("IT power", align="right")], rows, caption=caption)


def compared_words(over: DesignComparison, delay: float, other_seconds: float) -> str:
    """Say when a design pays against another.

    Args:
        over: the design over the other.
        delay: what a month of waiting costs, in USD.
        other_seconds: time of a training on the other, 0 for none.

    Returns:
        Sentences.
    """
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
        begin += f" It pays where a month of waiting for the result costs {when} "
        begin += f"{rounded_usd(even)}; at {rounded_usd(delay)} it does"
        begin += "." if over.pays(delay) else " not."
    if not other_seconds:
        return begin
    mine, its = (
        f"{pretty(work.seconds, 's')} and {rounded_usd(work.usd)} "
        f"({rounded_usd(work.with_delay(delay))} with the delay)"
        for work in over.work(other_seconds)
    )
    return f"{begin} The training takes {mine}, on the other {its}."


def plain_design(design: MachineDesign, site: Site) -> dict[str, Any]:
    """Return a design as JSON values.

    Args:
        design: the cluster.
        site: where it stands.

    Returns:
        Counts, prices and powers by name; unknown prices are null.
    """
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


def plain_comparison(over: DesignComparison, delay: float) -> dict[str, Any]:
    """Return a comparison as JSON values.

    Args:
        over: a design over another.
        delay: what a month of waiting costs, in USD.

    Returns:
        Ratios and the delay at which both are worth the same, null for never.
    """
    return {
        "speed": over.speed,
        "price": over.price,
        "node_price": over.node_price,
        "power": over.power,
        "equal_speed_price": over.equal_speed_price,
        "work_price": over.work_price,
        "even_delay_usd_per_month": finite(over.even_delay_usd_per_month),
        "pays": over.pays(delay),
    }


def finite(value: float) -> float | None:
    """Return a number as JSON has it: null for never."""
    return value if math.isfinite(value) else None


def rounded_usd(value: float) -> str:
    """Return money in three digits."""
    return pretty(float(f"{value:.3g}"), "USD")
