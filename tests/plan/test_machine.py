"""Designs of clusters: published counts, wiring by hand, ownership and waiting by brute force."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import catalog, laws
from steelyard.cli.main import main
from steelyard.errors import CatalogError, ConfigError, InfeasibleError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.plan.comparison import compare_designs
from steelyard.plan.fabric import FABRICS, build_fabric
from steelyard.plan.machine import node_of
from steelyard.plan.machine_designs import BuildLimits, machine_designs
from steelyard.plan.ownership import Waiting, buy_or_rent, wait
from steelyard.plan.published_machines import dgx_a100_design, fire_flyer_design

SITE = catalog.site("world-average")


@pytest.mark.parametrize(
    ("kind", "endpoints", "radix", "switches"),
    [
        ("zones", 1560, 40, 122),
        ("three-layer", 1600, 40, 200),
        ("three-layer", 10_000, 40, 1320),
        ("three-layer", 16_000, 40, 2000),
        ("planes", 32_768, 128, 768),
        ("two-layer", 800, 40, 60),
        ("two-layer", 32, 40, 1),
        ("dragonfly+", 8000, 40, 800),
    ],
)
def test_switches_are_the_published_ones_and_the_closed_forms(kind, endpoints, radix, switches):
    """The first three: arXiv 2408.14158; a full three-layer tree has 5/4 radix^2 switches."""
    assert build_fabric(kind, endpoints, radix).num_switches == switches


@given(st.sampled_from(FABRICS), st.integers(1, 20_000), st.integers(2, 64), st.integers(2, 9))
def test_networks_have_ports_for_all(kind, endpoints, half, zones):
    """No network has more cable ends than ports, and every endpoint has a port."""
    try:
        fabric = build_fabric(kind, endpoints, 2 * half, zones=zones)
    except InfeasibleError as error:
        assert f"{endpoints:,} endpoints exceed" in str(error)
        return
    assert fabric.ports >= endpoints
    assert 2 * fabric.switch_cables + endpoints <= 2 * half * fabric.num_switches
    assert fabric.num_cables == fabric.switch_cables + endpoints


def test_too_many_endpoints_name_the_most_that_can_be():
    with pytest.raises(InfeasibleError, match="801 endpoints exceed the 800"):
        build_fabric("two-layer", 801, 40)
    with pytest.raises(InfeasibleError, match="exceed the 1,560"):
        build_fabric("zones", 1561, 40)
    with pytest.raises(ConfigError, match="2 things"):
        build_fabric("tree", 10, 7)


def test_fire_flyer_against_dgx_is_as_published():
    """Half the price (50.4 %), 83 % of the speed, 1.38 times the speed for the price of nodes."""
    ours, theirs = fire_flyer_design(), dgx_a100_design()
    over = compare_designs(ours, theirs, SITE)
    assert over.price == pytest.approx(0.504, rel=0.02)
    assert over.speed == pytest.approx(0.83, abs=0.005)
    assert over.speed / over.node_price == pytest.approx(1.38, rel=0.02)
    assert 3.1e6 < ours.power_w < 3.5e6 and 0.5 < over.power < 0.6


@pytest.mark.parametrize("designs", [("a", "b"), ("b", "a")])
def test_the_cheaper_one_pays_until_a_delay_costs_as_much_as_it_saves(designs):
    """Times and money of one training, priced by hand on both."""
    made = {"a": fire_flyer_design(), "b": dgx_a100_design()}
    mine, its = (replace(made[name], storage_nodes=0) for name in designs)
    over = compare_designs(mine, its, SITE)
    even = over.even_delay_usd_per_month
    months = {}
    for name, item, rate in (("mine", mine, over.speed), ("its", its, 1.0)):
        hours = 1000.0 / rate
        usd = item.hourly_usd(SITE) * item.num_accelerators * hours
        months[name] = usd, hours * 12 / 8766
    for delay in (0.0, 0.5 * even, 2 * even):
        mine_usd, its_usd = (usd + delay * time for usd, time in months.values())
        assert over.pays(delay) == (mine_usd < its_usd)
    ends = [usd + even * time for usd, time in months.values()]
    assert ends[0] == pytest.approx(ends[1])
    work, other = over.work(3.6e6)
    assert work.usd == pytest.approx(months["mine"][0])
    assert other.with_delay(even) == pytest.approx(work.with_delay(even))
    assert over.work_price == pytest.approx(work.usd / other.usd)


def test_as_fast_designs_pay_by_their_price_alone():
    mine = dgx_a100_design()
    cheap = replace(mine, node=replace(mine.node, usd=mine.node.usd / 2))
    assert compare_designs(cheap, mine, SITE).even_delay_usd_per_month == np.inf
    assert compare_designs(cheap, mine, SITE).pays(1e9)
    assert not compare_designs(mine, cheap, SITE).pays()


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


@given(st.floats(1e3, 1e8), st.floats(0.05, 2), st.floats(1.05, 1.9), st.floats(1.05, 1.6))
def test_from_a_certain_delay_on_now_is_best(cost, years, cheaper, faster):
    work = Waiting(
        cost_usd=cost,
        duration_years=years,
        cost_growth=cheaper,
        speed_growth=faster,
        delay_usd_per_year=0.0,
    )
    even = work.now_pays_from_usd_per_month * 12
    assert replace(work, delay_usd_per_year=even * 1.01).best_start_years == 0
    assert replace(work, delay_usd_per_year=even * 0.99).best_start_years > 0


def test_designs_that_cannot_be_built_say_why():
    node = node_of(catalog.accelerator("H100-SXM5-80GB"))
    designs, impossible = machine_designs(node, 4096, radix=32)
    assert [item.network_usd for item in designs] == sorted(item.network_usd for item in designs)
    assert "exceed the 512 that 32-port switches connect" in impossible["two-layer"]
    unknown = node_of(catalog.accelerator("MI250X"))
    priceless, _ = machine_designs(unknown, 64)
    with pytest.raises(CatalogError, match="no purchase price"):
        _ = priceless[0].total_usd
    assert priceless[0].network_usd > 0


@pytest.mark.parametrize("limits", [BuildLimits(watts=1e6, pue=1.2), BuildLimits(usd=2e7)])
def test_what_exceeds_a_limit_names_the_most_that_fits(limits):
    node = node_of(catalog.accelerator("H100-SXM5-80GB"))
    found, impossible = machine_designs(node, 2048, kinds=("two-layer",), limits=limits)
    assert not found and "too much" in impossible["two-layer"]
    most = int(impossible["two-layer"].split("; ")[1].split()[0].replace(",", ""))
    largest = machine_designs(node, most, kinds=("two-layer",), limits=limits)[0]
    assert largest[0].num_accelerators == most
    assert not machine_designs(node, most + 8, kinds=("two-layer",), limits=limits)[0]


def _run(*words):
    with pytest.raises(SystemExit) as caught:
        main(["plan", "machine", *words])
    return int(caught.value.code or 0)


def test_the_verb_designs_compares_and_waits(capsys):
    asked = ("--flop", "1e24", "--delay", "$1,000", "--against", "A100-SXM4-80GB")
    assert _run(*asked) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("32 leaf + 16 spine", "Assumed: $18,000", "cheaper from", "Begun now"):
        assert words in text
    assert "Waiting stops paying" in text and "It pays always. The training takes" in text
    assert _run(*asked, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {item["network"] for item in found["designs"]} == set(FABRICS)
    assert found["comparison"]["pays"] and found["now_pays_from_usd_per_month"] > 1000
    assert found["work_seconds"] == pytest.approx(1e24 / (1024 * 989.5e12 * 0.375), rel=0.01)


def test_the_verb_says_what_is_unknown(capsys):
    assert _run("--accelerator", "MI250X", "--count", "512", "--flop", "1e23") == 0
    out = capsys.readouterr().out
    assert "buy or rent is left out" in out and "now or later is left out" in out
    assert "not known" in out


def test_the_verb_compares_published_clusters(capsys):
    assert _run("--published", "--flop", "1e24", "--delay", "$1,000,000") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "1,320" in text and "51% of the price at 83% of the speed" in text
    assert "It pays where a month of waiting for the result costs below" in text
    assert _run("--published", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [sum(item["switches"].values()) for item in found] == [122, 200, 1320]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--count", "0", "--radix", "7"), 2, "--count is 0, but must be at least 1; --radix is 7"),
        (("--years", "0"), 2, "--years is 0"),
        (("--nic", "fast"), 2, "--nic"),
        (("--flop", "1e24", "--mfu", "2"), 2, "--mfu 2"),
        (("--flop", "-1"), 2, "--flop is -1"),
        (("--fabric", "tree"), 2, "dragonfly+"),
        (("--accelerator", "H1000"), 2, "near names"),
        (("--count", "40000", "--radix", "40", "--fabric", "two-layer"), 1, "exceed the 800"),
        (("--power", "1 MW"), 1, "accelerators fit"),
    ],
)
def test_wrong_and_impossible_machines_are_refused_in_words(words, code, said, capsys):
    assert _run(*words) == code
    assert said in " ".join(capsys.readouterr().err.split())


def test_peaks_are_compared_where_one_design_was_not_measured():
    ours, theirs = fire_flyer_design(), dgx_a100_design()
    plain = replace(theirs, gemm_flops_per_s={})
    peaks = [replace(item, gemm_flops_per_s={}).flops_per_s for item in (ours, theirs)]
    assert compare_designs(ours, plain, SITE).speed == pytest.approx(peaks[0] / peaks[1])
    assert compare_designs(ours, plain, SITE).speed > compare_designs(ours, theirs, SITE).speed
