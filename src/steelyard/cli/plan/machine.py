"""`steelyard plan machine`: design, price and compare a cluster; own or rent it, now or later."""

from typing import TYPE_CHECKING

from steelyard import catalog
from steelyard.catalog.hardware import Site
from steelyard.catalog.records import WORLD_AVERAGE
from steelyard.cli.output import Switch, print_report
from steelyard.cli.plan.machine_compared import comparison_report
from steelyard.cli.plan.machine_hardware import Hardware, amount
from steelyard.cli.plan.machine_report import MachineAnswer
from steelyard.cost.money import HOURS_PER_YEAR
from steelyard.errors import CatalogError, ConfigError
from steelyard.plan.comparison import WorkCost, compare_designs, work_cost
from steelyard.plan.machine import MachineDesign
from steelyard.plan.machine_designs import machine_designs
from steelyard.plan.ownership import Ownership, Waiting, buy_or_rent, wait
from steelyard.plan.published_machines import dgx_a100_design, fire_flyer_design

if TYPE_CHECKING:
    from steelyard.laws.fitting.estimate import Estimate

__all__ = ["machine"]


def machine(
    *,
    hardware: Hardware | None = None,
    site: str = WORLD_AVERAGE,
    price_per_hour: str = "",
    years: float = 4.0,
    flop: str = "",
    mfu: float = 0.375,
    delay: str = "$0",
    against: str = "",
    against_node_price: str = "",
    published: Switch = False,
    json: Switch = False,
) -> None:
    """Design a cluster with each network, price it, and say whether to buy, rent or wait.

    Switch, cable and storage prices are assumed and said. What is not known is left out with its
    reason; the rest stands.

    Example: steelyard plan machine --accelerator H100-SXM5-80GB --count 4096 --flop 1e25

    Args:
        hardware: accelerators, nodes, network and limits.
        site: catalog name of the place.
        price_per_hour: rent of an accelerator and hour, such as "$2.5"; the list rent when empty.
        years: how long a bought cluster is kept.
        flop: FLOP of a training, such as 1e25: asks how long it takes and when it is best begun.
        mfu: model FLOP/s over peak of that training.
        delay: what a month of waiting for its result costs, such as "$2,000,000".
        against: accelerator of a second cluster of as many, to say when which of the two pays.
        against_node_price: price of its node; the published one when empty.
        published: compare Fire-Flyer 2 with 10,000 A100 in DGX servers instead.
        json: print JSON.
    """
    if not 0 < years < float("inf") or not 0 < mfu <= 1:
        raise ConfigError(f"--years is {years:g} and --mfu {mfu:g}: above 0, and in (0, 1]")
    asked, place = hardware or Hardware(), catalog.site(site)
    month = amount(delay, "USD", "--delay", 0.0)
    work = amount(flop, "FLOP", "--flop", 0.0)
    if published:
        others = [fire_flyer_design(), fire_flyer_design("three-layer")]
        report, values = comparison_report(others, dgx_a100_design(), place, month, work, mfu)
        print_report(report, json=json, values=values)
        return
    designs, impossible = asked.designs(place)
    answer = MachineAnswer(designs=designs, site=place, delay_usd_per_month=month)
    answer.unknown.update((f"network {kind}", why) for kind, why in impossible.items())
    with answer.leaving_out("buy or rent"):
        answer.owned = _owned(designs[0], place, price_per_hour, years)
    if work:
        with answer.leaving_out("now or later"):
            answer.work = work_cost(designs[0], work, place, mfu=mfu)
            answer.later = _later(answer.work, month)
    if against:
        # On the network of the first one, so that only accelerators and servers differ.
        rival = machine_designs(
            asked.node(against, against_node_price, "--against-node-price"),
            designs[0].num_accelerators,
            radix=asked.radix,
            storage_nodes=asked.storage_nodes,
            kinds=(designs[0].fabric.kind,),
        )[0][0]
        with answer.leaving_out("the comparison"):
            answer.rival = rival, compare_designs(designs[0], rival, place)
    print_report(answer.report(), json=json, values=answer.values())


def _owned(design: MachineDesign, site: Site, price: str, years: float) -> Ownership:
    """Compare owning the cheapest design with renting."""
    record = design.node.accelerator
    rent = amount(price, "USD", "--price-per-hour", record.price_usd_per_hour)
    lacks = {
        f"the rent of {record.name} (--price-per-hour)": not rent,
        f"the price of a node of {record.name} (--node-price)": not design.node.usd,
        f"the price of electricity of {site.name} (--site)": not site.price_usd_per_kwh,
    }
    missing = " and ".join(words for words, is_so in lacks.items() if is_so)
    if missing:
        raise CatalogError(f"{missing} is not known")
    # Rent has electricity in it, ownership has not.
    watts = design.power_w / design.num_accelerators * site.pue
    return buy_or_rent(
        design.total_usd / design.num_accelerators,
        electricity_usd_per_hour=watts / 1000 * site.price_usd_per_kwh,
        rent_usd_per_hour=rent,
        years=years,
    )


def _later(work: WorkCost, delay: float) -> "tuple[Waiting, Estimate]":
    """Say when the work is best begun."""
    from steelyard.laws.growth import chip_trend, growth_per_year

    return wait(
        work.usd,
        work.seconds / 3600 / HOURS_PER_YEAR,
        growth_per_year(chip_trend("peak_flops_per_s"), 0.8),
        delay_usd_per_month=delay,
    )
