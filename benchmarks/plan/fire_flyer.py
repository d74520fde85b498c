"""A cluster of PCIe accelerators against one of DGX servers: switches, money and power.

Fire-Flyer 2, arXiv:2408.14158: 10,000 A100 PCIe on 1,600 ports in two zones, against 10,000 A100 in
DGX servers on 10,000 ports. The price of a node of the former is the published share of the
latter's; prices of switches, cables and storage are assumed, and the paper prices no storage.
"""

from benchmarks.common import Check

from steelyard import catalog
from steelyard.plan.fabric import build_fabric
from steelyard.plan.machine import dgx_a100_design, fire_flyer_design

PAPER = ["44-fire-flyer"]

_SWITCHES = {("zones", 1600): 122, ("three-layer", 1600): 200, ("three-layer", 10_000): 1320}
_COST, _COST_PERFORMANCE = 11_600 / 23_000, 1.38
_POWER_W = (3.0e6, 3.6e6)


def run(quick: bool) -> list[Check]:
    """Compare what is designed with what was built; a quick run does the same."""
    del quick  # it takes milliseconds
    off = [abs(build_fabric(*asked, 40).num_switches - built) for asked, built in _SWITCHES.items()]
    ours = fire_flyer_design(catalog.accelerator("A100-PCIe-40GB"))
    theirs = dgx_a100_design(catalog.accelerator("A100-SXM4-40GB"))
    cost = (ours.total_usd - ours.storage_usd) / theirs.total_usd
    speed = ours.flops_per_s / theirs.flops_per_s
    gain = speed / (ours.node.usd / theirs.node.usd)
    print(f"cost {cost:.1%} of DGX's without storage (published {_COST:.1%}), speed {speed:.1%}")
    print(f"speed for the price of a node {gain:.2f} (published {_COST_PERFORMANCE})")
    print(f"power {ours.power_w / 1e6:.2f} MW against {theirs.power_w / 1e6:.2f} MW")
    return [
        Check("3 switches, error of three networks", float(max(off)), 0.0, "lower"),
        Check("3 cost over DGX's, relative error", abs(cost / _COST - 1), 0.02, "lower"),
        Check(
            "3 cost-performance, relative error", abs(gain / _COST_PERFORMANCE - 1), 0.05, "lower"
        ),
        Check("3 power over the least published", ours.power_w / _POWER_W[0], 1.0, "higher"),
        Check("3 power over the most published", ours.power_w / _POWER_W[1], 1.0, "lower"),
    ]
