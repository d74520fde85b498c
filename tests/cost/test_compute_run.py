import datetime
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import catalog
from steelyard.catalog.market import chip
from steelyard.cost.assumptions import RANGES, Assumptions, with_assumptions
from steelyard.cost.carbon import grid_g_per_kwh
from steelyard.cost.compute_run import ComputeRun
from steelyard.cost.development import Staff
from steelyard.cost.estimate import tornado
from steelyard.errors import CatalogError, ConfigError, SteelyardWarning

A100 = chip("a100-40")


def gpt4(**values):
    start = datetime.date(2022, 5, 12)
    known = {"chip": A100, "chip_hours": 57e6, "num_chips": 25000, "hours": 2280, "start": start}
    published = datetime.date(2023, 3, 15)
    return ComputeRun(**known | {"published": published, "organization": "OpenAI"} | values)


def test_the_parts_of_gpt4_are_the_published_ones():
    """Chips 17.89, servers 11.81, network 6.97, electricity 3.50 M USD (arXiv 2405.21015)."""
    cost = gpt4().amortized()
    said = [17.89e6, 11.81e6, 6.97e6, 3.50e6]
    assert [*cost.parts_usd.values()] == pytest.approx(said, rel=2e-3)
    assert cost.low_usd < cost.total_usd < cost.high_usd and cost.month == "2023-03"
    assert sum(cost.shares.values()) == pytest.approx(1)
    later = cost.in_dollars_of("2024-12")
    assert later.total_usd == pytest.approx(40.70e6, rel=1e-3) and later.month == "2024-12"
    assert later.in_dollars_of("2023-03").total_usd == pytest.approx(cost.total_usd)


def test_acquisition_and_cloud_of_gpt4():
    """778 and 78.6 M USD of December 2024."""
    bought = gpt4().acquisition().in_dollars_of("2024-12").total_usd
    rented = gpt4().cloud().in_dollars_of("2024-12").total_usd
    assert (bought, rented) == pytest.approx((778.07e6, 78.56e6), rel=1e-3)


@settings(deadline=None, max_examples=40)
@given(
    hours=st.floats(1, 1e8),
    factor=st.floats(1.1, 10),
    depreciation=st.floats(0.02, 0.5),
    share=st.floats(0, 0.5),
)
def test_a_cost_is_proportional_to_chip_hours_and_shares_hold(hours, factor, depreciation, share):
    chosen = Assumptions(depreciation=depreciation, interconnect_fraction=share)
    one, more = (
        gpt4(chip_hours=count, assumptions=chosen)._amortized() for count in (hours, hours * factor)
    )
    assert more.total_usd == pytest.approx(one.total_usd * factor)
    hardware = sum(one.parts_usd.values()) - one.parts_usd["electricity"]
    assert one.parts_usd["network"] == pytest.approx(share * hardware)


def test_chip_hours_come_from_what_is_known():
    start = {"start": None, "published": None}
    assert gpt4(chip_hours=None, **start).used_chip_hours == 57e6
    by_flop = ComputeRun(chip=A100, flop=2.1e25, mfu=0.34)
    assert by_flop.used_chip_hours == pytest.approx(2.1e25 / (312e12 * 0.34) / 3600)
    assert ComputeRun(chip=A100, flop=1e20).used_chip_hours == pytest.approx(1e20 / 117e12 / 3600)
    with pytest.raises(ConfigError, match="hours of num_chips x hours missing"):
        ComputeRun(chip=A100, num_chips=3)
    with pytest.raises(ConfigError, match="mfu is 2"):
        ComputeRun(chip=A100, flop=1e20, mfu=2.0)
    with pytest.raises(ConfigError, match="positive"):
        ComputeRun(chip=A100, chip_hours=-1.0)


def test_an_early_start_is_clamped_with_a_warning():
    early = gpt4(start=datetime.date(2019, 1, 1), published=None)
    with pytest.warns(SteelyardWarning, match="released on 2020-05-14"):
        cost = early.amortized()
    at_delivery = gpt4(start=datetime.date(2020, 8, 12), published=None).amortized()
    assert cost.parts_usd["network"] == pytest.approx(at_delivery.parts_usd["network"])


def test_what_is_unknown_is_an_error_of_its_own():
    unpriced = ComputeRun(chip=chip("L40S"), chip_hours=10)
    with pytest.raises(CatalogError, match="no purchase price"):
        unpriced.amortized()
    assert replace(unpriced, rent_usd=2.0).cloud().total_usd == 20.0
    with pytest.raises(CatalogError, match="no power"):
        _ = unpriced.energy_j
    with pytest.raises(CatalogError, match="no price index"):
        gpt4().amortized().in_dollars_of("2031-01")
    with pytest.raises(ConfigError, match="number of chips"):
        ComputeRun(chip=A100, chip_hours=10).acquisition()


def test_a_given_price_is_new_at_the_start():
    given_ = gpt4(server_usd=20_000.0, chip_hours=8766.0).amortized()
    hardware = sum(given_.parts_usd.values()) - given_.parts_usd["electricity"]
    assert hardware == pytest.approx(20_000 * 0.14 * np.log(10) / 0.81)


def test_the_tornado_moves_one_assumption_at_a_time():
    run = gpt4()
    swings = run.swings()
    widths = [abs(item.usd_at_high - item.usd_at_low) for item in swings]
    assert widths == sorted(widths, reverse=True) and swings[0].name == "price_factor"
    price = swings[0]
    moved = replace(run, assumptions=with_assumptions({"price_factor": price.high})).amortized()
    assert moved.total_usd == pytest.approx(price.usd_at_high)
    assert {item.name for item in swings} < set(RANGES)
    # Another middle takes its range with it, and a share stays one.
    wide = with_assumptions({"interconnect_fraction": 0.9})
    found = tornado(lambda other: other.interconnect_fraction, wide)
    assert found[0].high < 1 and found[0].low < 0.9


def test_wrong_assumptions_name_near_ones():
    with pytest.raises(ConfigError, match="no assumption named 'depreciatio'") as caught:
        with_assumptions({"depreciatio": 0.2})
    assert "depreciation" in caught.value.hint
    with pytest.raises(ConfigError, match="must be at least 1"):
        with_assumptions({"other_pue": 0.5})
    assert with_assumptions({"gpu_draw": 0.5}).version.endswith("with gpu_draw 0.5")


def test_development_adds_people_and_experiments():
    staff = Staff(people=100, months=24, fraction=0.5, usd_per_year=500_000)
    final, whole = gpt4().amortized(), gpt4().development(staff)
    assert whole.parts_usd["staff"] == pytest.approx(50e6)
    assert whole.parts_usd["network"] == pytest.approx(2.2 * final.parts_usd["network"])
    assert whole.low_usd < whole.total_usd < whole.high_usd
    assert gpt4().development(staff) == whole
    with pytest.raises(ConfigError, match="fraction"):
        Staff(people=1, months=1, fraction=2)


def test_carbon_follows_the_months_of_a_site():
    texas = catalog.site("us-texas")
    march = grid_g_per_kwh(texas, datetime.date(2022, 3, 1), 31 * 24)
    assert march == pytest.approx(texas.carbon_g_per_kwh * texas.carbon_by_month[2])
    year = grid_g_per_kwh(texas, datetime.date(2022, 1, 1), 365 * 24)
    assert year == pytest.approx(texas.carbon_g_per_kwh, rel=2e-3)
    assert grid_g_per_kwh(texas) == texas.carbon_g_per_kwh
    both = grid_g_per_kwh(texas, datetime.date(2022, 3, 17), 30 * 24)
    days = (15 * texas.carbon_by_month[2] + 15 * texas.carbon_by_month[3]) / 30
    assert both == pytest.approx(texas.carbon_g_per_kwh * days)
    with pytest.raises(CatalogError, match="no site"):
        _ = gpt4().carbon_g
    assert gpt4(site=texas).carbon_g > 0
