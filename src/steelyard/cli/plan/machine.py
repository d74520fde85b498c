"""`steelyard plan machine`: a cluster designed and priced, owned or rented, now or later."""

from typing import Any

from steelyard import catalog, laws
from steelyard.catalog.hardware import Site
from steelyard.catalog.records import WORLD_AVERAGE
from steelyard.cli.output import Switch, print_json
from steelyard.errors import CatalogError, ConfigError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.plan.machine import MachineDesign, machine_designs, node_of
from steelyard.plan.ownership import Ownership, Waiting, buy_or_rent, wait
from steelyard.runs.report import Block, Cell, Column, Report, Section, Table, Text
from steelyard.units import parse, pretty

__all__ = ["machine"]


def machine(
    *,
    accelerator: str,
    count: int = 1024,
    per_node: int = 8,
    nics: int = 8,
    nic: str = "400 Gbit/s",
    radix: int = 64,
    storage_nodes: int = 0,
    node_price: str = "",
    price_per_hour: str = "",
    site: str = "",
    years: float = 4.0,
    work: str = "",
    delay_cost: str = "",
    json: Switch = False,
) -> None:
    """Design a cluster with each network, price it, and say whether to buy, rent or wait.

    Switch, cable and storage prices are assumed and said; prices that are not known are left out.

    Example: steelyard plan machine --accelerator H100-SXM5-80GB --count 1024

    Args:
        accelerator: catalog name of the accelerator.
        count: accelerators; whole nodes are built.
        per_node: accelerators of a node.
        nics: network ports of a node.
        nic: rate of one, such as "400 Gbit/s".
        radix: ports of a switch.
        storage_nodes: storage servers with two ports each.
        node_price: price of a node, such as "$250,000"; the published one when empty.
        price_per_hour: rent of an accelerator and hour, such as "$2.5"; the list rent when empty.
        site: catalog name of the place; the world's average when empty.
        years: how long a bought cluster is kept.
        work: accelerator-hours of one piece of work, such as 1e6, to say when it is best begun.
        delay_cost: what a month of waiting for its result costs, such as "$100,000".
        json: print the designs as JSON.
    """
    _check(count=count, per_node=per_node, nics=nics, radix=radix, storage_nodes=storage_nodes)
    if years <= 0:
        raise ConfigError(f"--years is {years}, but must be above 0")
    record = catalog.accelerator(accelerator)
    node = node_of(
        record,
        count=per_node,
        nics=nics,
        nic_gbit_per_s=parse(nic, "byte/s", where="--nic") * 8e-9,
        usd=parse(node_price, "USD", where="--node-price") if node_price else 0.0,
    )
    place = catalog.site(site or WORLD_AVERAGE)
    designs, impossible = machine_designs(node, count, radix=radix, storage_nodes=storage_nodes)
    rent = (
        parse(price_per_hour, "USD", where="--price-per-hour")
        if price_per_hour
        else record.price_usd_per_hour
    )
    owned = _owned(designs[0], place, rent, years) if designs else None
    later = _later(work, delay_cost, count, owned)
    if json:
        print_json([_plain(item) for item in designs])
        return
    sections = [
        Section("Designs", _designs(designs, impossible)),
        Section("Buy or rent", _ownership(designs, owned, place, rent)),
    ]
    if later:
        sections.append(Section("Now or later", [_waiting(later)]))
    title = f"{count:,} x {record.name}"
    Report(title, f"switches of {radix} ports; derived and assumed", sections).print()


def _check(**counts: int) -> None:
    """Refuse counts that no cluster has, all at once, in the words of the flags."""
    least = {"storage_nodes": 0, "radix": 4}
    wrong = [
        f"--{name.replace('_', '-')} is {value}, but must be at least {least.get(name, 1)}"
        for name, value in counts.items()
        if value < least.get(name, 1)
    ]
    if counts["radix"] % 2:
        wrong.append(f"--radix is {counts['radix']}, but must be even")
    if wrong:
        raise ConfigError("; ".join(wrong))


def _designs(designs: list[MachineDesign], impossible: dict[str, str]) -> list[Block]:
    """Make the table of designs, and say what cannot be built."""
    rows: list[list[Cell]] = [
        [
            item.fabric.kind,
            " + ".join(f"{count:,} {name}" for name, count in item.fabric.switches.items()),
            f"{item.fabric.num_cables:,}",
            pretty(item.network_usd, "USD"),
            pretty(item.total_usd, "USD") if item.node.usd else "not known",
            pretty(item.power_w, "W"),
        ]
        for item in designs
    ]
    heads = ("cables", "network", "cluster", "power")
    columns = [Column("network"), Column("switches")]
    columns += [Column(name, align="right") for name in heads]
    blocks: list[Block] = [Table(columns, rows)] if rows else []
    blocks += [Text(f"{kind} cannot be built: {why}.") for kind, why in impossible.items()]
    if designs:
        parts = designs[0].parts
        blocks.append(
            Text(
                f"Assumed: {pretty(parts.switch_usd, 'USD')} a switch, "
                f"{pretty(parts.cable_usd, 'USD')} a cable with optics, "
                f"{pretty(parts.storage_usd, 'USD')} a storage server. Node: "
                f"{designs[0].node.source}."
            )
        )
    return blocks


def _owned(design: MachineDesign, site: Site, rent: float, years: float) -> Ownership | None:
    """Return what owning the cheapest design costs, None where a price is not known."""
    if not (design.node.usd and rent and site.price_usd_per_kwh):
        return None
    watts = design.power_w / design.num_accelerators * site.pue
    return buy_or_rent(
        design.total_usd / design.num_accelerators,
        electricity_usd_per_hour=watts / 1000 * site.price_usd_per_kwh,
        rent_usd_per_hour=rent,
        years=years,
    )


def _ownership(
    designs: list[MachineDesign], owned: Ownership | None, site: Site, rent: float
) -> list[Block]:
    """Say from which use owning pays, or which price is missing."""
    if not designs:
        return [Text("Nothing can be built, so nothing is compared.")]
    if owned is None:
        missing = {
            "the price of a node (--node-price)": not designs[0].node.usd,
            "the rent (--price-per-hour)": not rent,
            f"the price of electricity of {site.name} (--site)": not site.price_usd_per_kwh,
        }
        lacks = " and ".join(name for name, is_missing in missing.items() if is_missing)
        return [Text(f"Not compared: {lacks} is not known.")]
    rows: list[list[Cell]] = [
        [f"{100 * share:.0f} %", pretty(owned.usd_per_hour(share), "USD"), pretty(rent, "USD")]
        for share in (0.25, 0.5, 0.75, 1.0)
    ]
    even = owned.break_even_utilization
    told = (
        f"Owned for {owned.years:g} years at {site.name}, building and staff left out, it is "
        f"cheaper from {100 * even:.0f} % of the hours on."
        if even <= 1
        else f"Renting is cheaper even if it is used all hours of {owned.years:g} years."
    )
    heads = ("owned, an hour used", "rented, an hour")
    columns = [Column("use"), *(Column(name, align="right") for name in heads)]
    return [Table(columns, rows), Text(told)]


def _later(
    work: str, delay_cost: str, count: int, owned: Ownership | None
) -> tuple[Waiting, Estimate] | None:
    """Return when a piece of work is best begun, None where it was not asked."""
    if not work:
        if delay_cost:
            raise ConfigError("--delay-cost is of --work, which is missing")
        return None
    hours = parse(work, "1", where="--work")
    if hours <= 0:
        raise ConfigError(f"--work is {work}, but must be above 0")
    price = owned.usd_per_hour(1.0) if owned else 0.0
    if not price:
        raise CatalogError(
            "the price of an accelerator-hour is not known, so the cost of --work is not",
            hint="give --node-price and --price-per-hour",
        )
    trend = laws.growth.chip_trend("peak_flops_per_s")
    return wait(
        hours * price,
        hours / count / (365.25 * 24),
        laws.growth.growth_per_year(trend),
        delay_usd_per_month=parse(delay_cost, "USD", where="--delay-cost") if delay_cost else 0.0,
    )


def _waiting(later: tuple[Waiting, Estimate]) -> Text:
    """Say when the work is best begun."""
    work, best = later
    year_s = 365.25 * 86400
    if best.value == 0:
        when = "Begin now: waiting costs more than it saves"
    elif best.value > 50:
        when = "Waiting never stops paying, as a delay costs nothing (--delay-cost)"
    else:
        low, high = (pretty(end * year_s, "s") for end in (best.low, best.high))
        when = (
            f"Waiting pays for {pretty(best.value * year_s, 's')} ({low} to {high} by the growth "
            "of accelerators)"
        )
    return Text(
        f"{when}. Begun now the work costs {pretty(work.cost_usd, 'USD')} and takes "
        f"{pretty(work.duration_years * year_s, 's')}; the earliest result comes of waiting "
        f"{pretty(work.earliest_finish_start_years * year_s, 's')}."
    )


def _plain(design: MachineDesign) -> dict[str, Any]:
    """Return a design as JSON values; unknown prices are null."""
    fabric = design.fabric
    return {
        "network": fabric.kind,
        "switches": dict(fabric.switches),
        "cables": fabric.num_cables,
        "ports": fabric.ports,
        "network_usd": design.network_usd,
        "total_usd": design.total_usd if design.node.usd else None,
        "power_w": design.power_w,
        "num_accelerators": design.num_accelerators,
    }
