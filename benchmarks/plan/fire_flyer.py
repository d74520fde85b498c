"""A cluster of PCIe accelerators against one of DGX servers, its all-reduces and its steps.

Fire-Flyer 2, arXiv 2408.14158: 10,000 A100 PCIe in two zones against 10,000 A100 in DGX servers.
Rates, powers and the price of a PCIe node over a DGX node are the paper's. The prices of switches
and cables are not in it; the package's were chosen when its totals were known. So the price is also
checked with their level taken from the DGX cluster's published network, which leaves that of the
other cluster open.
"""

from dataclasses import replace

from benchmarks.common import Check
from benchmarks.plan._fire_flyer_links import link_checks
from benchmarks.plan._fire_flyer_steps import step_checks
from benchmarks.plan._measured_all_reduces import interval_check

from steelyard import catalog
from steelyard.catalog.records import WORLD_AVERAGE
from steelyard.plan.comparison import compare_designs
from steelyard.plan.machine import MachineDesign
from steelyard.plan.published_machines import dgx_a100_design, fire_flyer_design

PAPER = ["44-fire-flyer"]

_SWITCHES = (122, 200, 1320)
_COST, _COST_PERFORMANCE = 11_600 / 23_000, 1.38
_DGX_NETWORK = 4_000 / 19_000
"""Published price of the DGX cluster's network over its servers'."""
_POWER_W = (3.1e6, 3.5e6)
_CABLES = (0.0, 0.05, 0.1, 0.2)
"""Prices of a cable over a switch's that are tried."""


def run(quick: bool) -> list[Check]:
    """Compare designs, collectives and steps with what was published; a quick run does the same."""
    del quick  # it takes seconds
    return [*_design_checks(), *link_checks(), *step_checks(), interval_check()]


def _design_checks() -> list[Check]:
    """Count switches, and compare price, speed and power."""
    ours, tree, theirs = fire_flyer_design(), fire_flyer_design("three-layer"), dgx_a100_design()
    built = zip((ours, tree, theirs), _SWITCHES, strict=True)
    off = [abs(design.fabric.num_switches - count) for design, count in built]
    over = compare_designs(ours, theirs, catalog.site(WORLD_AVERAGE))
    gain = over.speed / over.node_price
    leveled = [_leveled_price(ours, theirs, share) for share in _CABLES]
    print(f"price {over.price:.1%} of DGX's without storage (published {_COST:.1%})")
    print(
        f"with the level of network prices from DGX's {min(leveled):.1%} to {max(leveled):.1%}, "
        f"for cables at {_CABLES[0]:.0%} to {_CABLES[-1]:.0%} of a switch"
    )
    print(
        f"speed {over.speed:.1%} (published 83 %), for the price of a node {gain:.3f} (published "
        f"{_COST_PERFORMANCE}, from a price rounded to 60 %)"
    )
    print(f"IT power {ours.power_w / 1e6:.2f} MW against {theirs.power_w / 1e6:.2f} MW")
    print(
        f"work costs {over.work_price:.0%}; the slower cluster pays below a delay of "
        f"{over.even_delay_usd_per_month / 1e6:.0f} M USD a month"
    )
    return [
        Check("3 switches, error of three networks", float(max(off)), 0.0, "lower"),
        Check("3 price over DGX's, relative error", abs(over.price / _COST - 1), 0.01, "lower"),
        Check(
            "3 price with network prices of DGX's level, largest relative error",
            max(abs(price / _COST - 1) for price in leveled),
            0.01,
            "lower",
        ),
        Check(
            "3 cost-performance, relative error", abs(gain / _COST_PERFORMANCE - 1), 0.02, "lower"
        ),
        Check("3 power over the least published", ours.power_w / _POWER_W[0], 1.0, "higher"),
        Check("3 power over the most published", ours.power_w / _POWER_W[1], 1.0, "lower"),
    ]


def _leveled_price(ours: MachineDesign, theirs: MachineDesign, cable_share: float) -> float:
    """Return the price over DGX's where switches and cables cost what DGX's network says.

    Args:
        ours: the design.
        theirs: DGX's.
        cable_share: price of a cable over a switch's.
    """
    fabric = theirs.fabric
    pieces = fabric.num_switches + cable_share * fabric.num_cables
    switch_usd = _DGX_NETWORK * theirs.servers_usd / pieces
    parts = replace(ours.parts, switch_usd=switch_usd, cable_usd=cable_share * switch_usd)
    mine, its = (replace(design, parts=parts) for design in (ours, theirs))
    return mine.compute_usd / its.compute_usd
