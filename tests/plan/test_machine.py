"""Designs of clusters: published counts, wiring by hand, ownership and waiting by brute force."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import catalog, laws
from steelyard.cli.plan.machine import machine
from steelyard.errors import CatalogError, ConfigError, InfeasibleError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.plan.fabric import FABRICS, build_fabric
from steelyard.plan.machine import dgx_a100_design, fire_flyer_design, machine_designs, node_of
from steelyard.plan.ownership import Waiting, buy_or_rent, wait


def test_published_networks_have_their_switches():
    """Fire-Flyer 2 and its alternatives, arXiv:2408.14158: 122, 200 and 1,320 switches."""
    assert build_fabric("zones", 1600, 40).num_switches == 122
    assert build_fabric("three-layer", 1600, 40).num_switches == 200
    assert build_fabric("three-layer", 10_000, 40).num_switches == 1320
    assert build_fabric("planes", 32_768, 128, planes=4).ports == 32_768
    ours = fire_flyer_design(catalog.accelerator("A100-PCIe-40GB"))
    theirs = dgx_a100_design(catalog.accelerator("A100-SXM4-40GB"))
    assert 3.0e6 < ours.power_w < 3.6e6
    compute = (ours.total_usd - ours.storage_usd) / theirs.total_usd
    assert compute == pytest.approx(11_600 / 23_000, rel=0.02)
    assert ours.flops_per_s / theirs.flops_per_s == pytest.approx(220 / 263)


@given(st.sampled_from(FABRICS), st.integers(1, 3000), st.sampled_from((8, 16, 40, 64)))
def test_networks_have_ports_for_all(kind, endpoints, radix):
    """No switch has more cables than ports, and every endpoint has one."""
    try:
        fabric = build_fabric(kind, endpoints, radix)
    except InfeasibleError as error:
        assert f"{endpoints:,} endpoints exceed" in str(error)
        return
    assert fabric.ports >= endpoints
    # The links between zones are counted at their own switches: the published zones have no port
    # left for them, as all 800 are counted as endpoints.
    between = fabric.switches.get("between zones", 0) * radix
    used = 2 * fabric.switch_cables - between + endpoints
    assert used <= radix * fabric.num_switches
    assert fabric.num_cables == fabric.switch_cables + endpoints


def test_owning_pays_from_the_break_even_on():
    owned = buy_or_rent(36_000, electricity_usd_per_hour=0.1, rent_usd_per_hour=2.0, years=4)
    even = owned.break_even_utilization
    assert owned.usd_per_hour(even) == pytest.approx(2.0)
    assert owned.usd_per_hour(even * 1.1) < 2.0 < owned.usd_per_hour(even * 0.9)
    dear = buy_or_rent(36_000, electricity_usd_per_hour=3, rent_usd_per_hour=2.0, years=4)
    assert dear.break_even_utilization == np.inf
    with pytest.raises(ConfigError, match="years"):
        buy_or_rent(1.0, electricity_usd_per_hour=0, rent_usd_per_hour=1, years=0)


@given(
    st.floats(1e3, 1e8),
    st.floats(0.05, 6),
    st.floats(1.05, 1.9),
    st.floats(1.05, 1.9),
    st.floats(0, 1e7),
)
def test_waiting_stops_paying_where_brute_force_says(cost, years, cheaper, faster, delay):
    """The best start is no worse than any month of the next twenty years."""
    work = Waiting(
        cost_usd=cost,
        duration_years=years,
        cost_growth=cheaper,
        speed_growth=faster,
        delay_usd_per_year=delay,
    )
    months = np.arange(0, 240) / 12
    least = min(work.total_at(month) for month in months)
    best = work.best_start_years
    if np.isfinite(best):
        assert work.total_at(best) <= least * (1 + 1e-9)
        nearest = months[np.argmin([work.total_at(month) for month in months])]
        assert abs(min(best, months[-1]) - nearest) <= 1 / 12 + 1e-9
    first = min(months, key=work.finished_at)
    assert work.finished_at(work.earliest_finish_start_years) <= work.finished_at(first) + 1e-12


def test_the_growth_of_chips_bounds_the_wait():
    trend = laws.growth.growth_per_year(laws.growth.chip_trend("peak_flops_per_s"))
    work, best = wait(1e6, 2.0, trend, delay_usd_per_month=10_000)
    assert best.low <= best.value <= best.high
    assert work.speed_growth == trend.value
    with pytest.raises(ConfigError, match="speed_growth"):
        wait(1e6, 2.0, Estimate(0.0, 0.0, 0.0), delay_usd_per_month=0)


def test_designs_that_cannot_be_built_say_why():
    node = node_of(catalog.accelerator("H100-SXM5-80GB"))
    designs, impossible = machine_designs(node, 4096, radix=32)
    assert [item.network_usd for item in designs] == sorted(item.network_usd for item in designs)
    assert "exceed the 512 that 32-port switches connect" in impossible["two-layer"]
    unknown = node_of(catalog.accelerator("SN40L"))
    priceless, _ = machine_designs(unknown, 64)
    if not unknown.usd:
        with pytest.raises(CatalogError, match="no purchase price"):
            _ = priceless[0].total_usd
    cluster = designs[0].as_cluster("world-average")
    assert cluster.num_accelerators == 4096


def test_the_verb_designs_compares_and_waits(capsys):
    asked = {"accelerator": "H100-SXM5-80GB", "count": 1024}
    machine(**asked, work="1e6", delay_cost="$1,000")
    text = capsys.readouterr().out
    for words in ("32 leaf + 16 spine", "Assumed: $18,000 a switch", "cheaper from", "begun now"):
        assert words.lower() in text.lower()
    machine(**asked, json=True)
    found = json.loads(capsys.readouterr().out)
    assert {item["network"] for item in found} == set(FABRICS)
    machine(accelerator="SN40L", count=64)
    assert "not known" in capsys.readouterr().out
    machine(accelerator="H100-SXM5-80GB", count=65536, radix=16)
    assert "cannot be built" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"count": 0, "radix": 7}, "--count is 0, but must be at least 1; --radix is 7"),
        ({"years": 0.0}, "--years is 0"),
        ({"nic": "fast"}, "--nic"),
        ({"delay_cost": "$5"}, "--delay-cost is of --work"),
        ({"work": "-1"}, "--work is -1"),
    ],
)
def test_wrong_options_are_named(wrong, words):
    with pytest.raises(ConfigError, match=words):
        machine(**{"accelerator": "H100-SXM5-80GB"} | wrong)
