import math
from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.cost import bill, fit_correction
from steelyard.cost.energy import accelerator_power_w, run_energy_j
from steelyard.cost.money import Assumptions, chip_hour, dated, depreciated_value
from steelyard.errors import ConfigError, FitError


def test_power_and_energy_of_an_a100(a100):
    assert accelerator_power_w(a100) == pytest.approx(400 * 6.5 / 8 / 0.4 * 0.75)
    hour = run_energy_j(a100, num_accelerators=8, duration_s=3600, pue=1.1)
    assert hour == pytest.approx(8 * 609.4 * 3600 * 1.1, rel=1e-3)


@settings(deadline=None)
@given(price=st.floats(1e3, 1e5), years=st.floats(0, 5))
def test_amortization_over_all_time_gives_the_price_back(price, years, a100, site):
    """The integral of the hourly cost from now on is what the hardware is worth now."""
    assumptions = Assumptions(years_in_service=years)
    hourly = chip_hour(a100, site, purchase_usd=price, assumptions=assumptions).hardware_usd
    rate = assumptions.depreciation * math.log(10) / 8766
    assert hourly / rate == pytest.approx(depreciated_value(price, years), rel=1e-3)


def test_interconnect_is_19_percent_of_the_cluster(a100, site):
    price = chip_hour(a100, site, purchase_usd=20000.0)
    assert price.interconnect_usd / (price.interconnect_usd + price.hardware_usd) == pytest.approx(
        0.19
    )
    assert price.total_usd == price.hardware_usd + price.interconnect_usd + price.electricity_usd
    assert chip_hour(a100, site).method == "rented" and chip_hour(a100, site).total_usd == 5.12


def test_a_bill_scales_with_time_and_names_its_sources(a100, site):
    one, two = (
        bill(duration_s=hours * 3600, num_accelerators=8, accelerator=a100, site=site).forecasts
        for hours in (1, 2)
    )
    assert [item.quantity for item in one] == ["run.energy", "run.cost", "run.carbon"]
    assert [
        after.value / before.value for before, after in zip(one, two, strict=True)
    ] == pytest.approx([2, 2, 2])
    assert one[2].value == pytest.approx(one[0].value / 3.6e6 * 300)
    assert all(item.source and item.low < item.value < item.high for item in one)
    rented = bill(duration_s=3600, num_accelerators=8, accelerator=a100, site=site, rent_usd=2.0)
    assert rented.forecasts[1].value == pytest.approx(16.0) and not rented.unknown


def test_what_is_unknown_leaves_only_its_own_line_out(a100, site):
    run = {"duration_s": 3600, "num_accelerators": 8}
    unpriced = replace(a100, name="MI250X", price_usd_per_hour=0.0)
    without = bill(accelerator=unpriced, site=site, **run)
    assert [item.quantity for item in without.forecasts] == ["run.energy", "run.carbon"]
    assert without.unknown.keys() == {"run.cost"}
    assert without.unknown["run.cost"].startswith("no price is known for MI250X; give")
    given = bill(accelerator=unpriced, site=site, rent_usd=2.0, **run)
    assert [item.quantity for item in given.forecasts] == ["run.energy", "run.cost", "run.carbon"]
    dark = replace(site, carbon_g_per_kwh=0.0, price_usd_per_kwh=0.0)
    found = bill(accelerator=a100, site=dark, **run)
    assert [item.quantity for item in found.forecasts] == ["run.energy"]
    assert "electricity" in found.unknown["run.cost"] and "carbon" in found.unknown["run.carbon"]
    unrated = bill(accelerator=replace(a100, tdp_w=0.0), site=site, **run)
    assert unrated.forecasts[0].provenance == "assumed" and not unrated.unknown


def test_bad_bills_are_refused(a100, site):
    with pytest.raises(ConfigError, match="positive"):
        bill(duration_s=0, num_accelerators=8, accelerator=a100, site=site)
    with pytest.raises(ConfigError, match="one of"):
        chip_hour(a100, site, purchase_usd=1.0, rent_usd=1.0)


def test_correction_recovers_a_factor_and_covers():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        predicted = generator.uniform(1, 10, 5)
        measured = 1.3 * predicted * np.exp(generator.normal(0, 0.1, 5))
        correction = fit_correction(predicted[:4], measured[:4])
        forecast = correction.forecast("train.step_time", float(predicted[4]), "roofline")
        covered += forecast.low <= measured[4] <= forecast.high
    assert 0.74 < covered / 400 < 0.9


@pytest.mark.parametrize(("truth", "least"), [(0.05, 0.8), (0.1, 0.78), (0.2, 0.6)])
def test_an_expected_scatter_narrows_what_few_pairs_say(truth, least):
    """At twice the scatter that was expected, three pairs cannot make up for all of it."""
    generator = np.random.default_rng(1)
    covered, alone, expected = 0, [], []
    for _ in range(400):
        predicted = generator.uniform(1, 10, (4, 2))
        measured = predicted.sum(axis=1) * np.exp(generator.normal(0, truth, 4))
        widths = []
        for spread in (0.0, 0.1):
            found = fit_correction(predicted[:3], measured[:3], expected_spread=spread)
            forecast = found.forecast("train.step_time", predicted[3], "roofline")
            widths.append(forecast.high / forecast.low)
        covered += forecast.low <= measured[3] <= forecast.high
        alone.append(widths[0])
        expected.append(widths[1])
    assert covered / 400 > least
    assert np.quantile(expected, 0.9) < np.quantile(alone, 0.9)


def test_correction_of_one_pair_is_its_ratio():
    correction = fit_correction([2.0], [3.0])
    assert correction.factors == pytest.approx((1.5,)) and correction.relative_spread > 0.05
    with pytest.raises(FitError, match="positive"):
        fit_correction([1.0, 2.0], [1.0])


def test_correction_tells_parts_apart_where_runs_allow_it():
    parts = np.array([[1.0, 3.0], [4.0, 5.0], [20.0, 8.0]])
    correction = fit_correction(parts, parts @ [1.2, 3.0])
    assert correction.factors == pytest.approx((1.2, 3.0), rel=0.02)
    assert correction.apply([60.0, 12.0]) == pytest.approx(108.0, rel=0.01)
    alike = fit_correction([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], [4.0, 8.0, 12.0])
    assert alike.factors == pytest.approx((2.0, 2.0))
    assert fit_correction([[1.0, 1.0]], [3.0]).factors == pytest.approx((1.5, 1.5))


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_correction_never_gives_negative_factors(count, parts, seed):
    generator = np.random.default_rng(seed)
    correction = fit_correction(
        generator.uniform(0.1, 10, (count, parts)), generator.uniform(0.1, 10, count)
    )
    forecast = correction.forecast("train.step_time", generator.uniform(0.1, 10, parts), "test")
    assert min(correction.factors) >= 0 and 0 < forecast.low <= forecast.value <= forecast.high


def test_an_old_price_says_so():
    today = date(2026, 11, 22)
    assert dated("list rent", "2026-03", today) == "list rent, 2026-03"
    assert dated("list rent", "2025-10", today) == "list rent, 2025-10, older than 12 months"
    assert dated("list rent", "", today) == "list rent"
