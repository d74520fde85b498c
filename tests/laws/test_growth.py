import datetime
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from steelyard.errors import CatalogError, FitError, SteelyardWarning
from steelyard.laws.decisions.frontier import (
    above_trend,
    decimal_year,
    rank_at_publication,
    top_at_publication,
)
from steelyard.laws.decisions.wall import balance_points, chip_points, chip_trend, wall
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.forms.growth import fit_growth, growth
from steelyard.laws.forms.growth_line import (
    crossing_year,
    doubling_time_years,
    forecast_growth,
    growth_per_two_years,
    growth_per_year,
    is_far,
    last_residual,
    line_of,
    years_to_gain,
)


def _noisy(count=20, factor=2.5, noise=0.3, seed=0):
    generator = np.random.default_rng(seed)
    year = np.sort(generator.uniform(2010, 2024, count))
    return year, 7e20 * factor ** (year - 2015) * np.exp(noise * generator.standard_normal(count))


def test_equals_scipys_line_and_its_intervals():
    year, value = _noisy()
    fit = fit_growth(year, value, period_years=2, bootstrap=Bootstrap(count=0))
    line = stats.linregress(year, np.log(value))
    t = stats.t.ppf(0.975, len(year) - 2)
    found = growth_per_year(fit)
    assert found.value == pytest.approx(math.exp(line.slope), rel=1e-9)
    assert found.low == pytest.approx(math.exp(line.slope - t * line.stderr), rel=1e-9)
    assert found.high == pytest.approx(math.exp(line.slope + t * line.stderr), rel=1e-9)
    assert growth_per_two_years(fit).value == pytest.approx(fit.params["g"], rel=1e-12)
    assert doubling_time_years(fit).value == pytest.approx(math.log(2) / line.slope, rel=1e-9)
    assert line_of(fit).slope_sd == pytest.approx(line.stderr, rel=1e-9)


def test_prediction_interval_equals_the_textbook_formula():
    year, value = _noisy(8)
    fit = fit_growth(year, value, bootstrap=Bootstrap(count=0))
    said = forecast_growth(fit, [2012.0, 2030.0], level=0.9)
    slope, offset = np.polyfit(year, np.log(value), 1)
    residual = np.log(value) - slope * year - offset
    s = math.sqrt(residual @ residual / 6)
    for index, at in enumerate((2012.0, 2030.0)):
        half = (
            stats.t.ppf(0.95, 6)
            * s
            * math.sqrt(1 + 1 / 8 + (at - year.mean()) ** 2 / ((year - year.mean()) ** 2).sum())
        )
        assert math.log(said.value[index]) == pytest.approx(slope * at + offset, abs=1e-8)
        assert math.log(said.high[index] / said.value[index]) == pytest.approx(half, rel=1e-6)
        assert math.log(said.value[index] / said.low[index]) == pytest.approx(half, rel=1e-6)


def test_bootstrap_and_t_intervals_agree_on_many_points():
    year, value = _noisy(200)
    fit = fit_growth(year, value, bootstrap=Bootstrap(count=2000))
    t, bootstrap = growth_per_year(fit), growth_per_year(fit, intervals="bootstrap")
    assert bootstrap.low == pytest.approx(t.low, rel=5e-3)
    assert bootstrap.high == pytest.approx(t.high, rel=5e-3)
    t, bootstrap = crossing_year(fit, 1e25), crossing_year(fit, 1e25, intervals="bootstrap")
    assert t.high - t.low == pytest.approx(bootstrap.high - bootstrap.low, rel=0.2)


def test_ninety_percent_intervals_cover_the_truth():
    inside = crossed = 0
    for seed in range(100):
        fit = fit_growth(*_noisy(8, seed=seed), bootstrap=Bootstrap(count=0))
        found, crossing = growth_per_year(fit, 0.9), crossing_year(fit, 7e20 * 2.5**8, 0.9)
        inside += found.low <= 2.5 <= found.high
        crossed += crossing.low <= 2023 <= crossing.high
    assert 82 <= inside <= 97
    assert 82 <= crossed <= 97


def test_crossing_is_where_the_line_meets_the_threshold():
    year, value = _noisy(noise=0.01)
    fit = fit_growth(year, value, bootstrap=Bootstrap(count=0))
    found = crossing_year(fit, 1e26)
    assert forecast_growth(fit, found.value).value[0] == pytest.approx(1e26, rel=1e-9)
    assert found.low < found.value < found.high
    # the ends are the years whose confidence band of the line just reaches the threshold
    line = line_of(fit)
    for end in (found.low, found.high):
        band = line.quantile(0.8) * math.hypot(line.level_sd, line.slope_sd * (end - line.center))
        assert abs(line.level + line.slope * (end - line.center) - math.log(1e26)) == pytest.approx(
            band, rel=1e-6
        )


def test_a_trend_that_may_be_flat_leaves_ends_open():
    year = np.array([2010.0, 2012, 2014, 2016, 2018])
    fit = fit_growth(year, [10.0, 14, 9, 15, 11.5], bootstrap=Bootstrap(count=0))
    assert growth_per_year(fit).low < 1 < growth_per_year(fit).high
    doubling = doubling_time_years(fit)
    assert doubling.value > 0 and doubling.low < doubling.value and doubling.high == math.inf
    with pytest.warns(SteelyardWarning):
        crossing = crossing_year(fit, 1000.0)
    assert 2018 < crossing.low < crossing.value and crossing.high == math.inf


@settings(max_examples=50, deadline=None)
@given(
    gain=st.floats(-5, 5),
    low=st.floats(-1, 1),
    width=st.floats(1e-3, 1),
    share=st.floats(0.01, 0.99),
)
def test_years_to_gain_holds_its_value(gain, low, width, share):
    slope = Estimate(low + share * width, low, low + width)
    found = years_to_gain(gain, slope)
    assert found.low <= found.value <= found.high


def test_shrinking_halves():
    fit = fit_growth([2000, 2001, 2002, 2003], [8.0, 4.0, 2.0, 1.0], bootstrap=Bootstrap(count=0))
    assert doubling_time_years(fit).value == pytest.approx(-1)
    assert growth_per_year(fit).value == pytest.approx(0.5)


def test_last_residual_shows_a_bend():
    year, value = _noisy(12, noise=0.05)
    value[-1] /= 3
    found = last_residual(fit_growth(year, value, bootstrap=Bootstrap(count=0)))
    assert found.value < 0.6 and found.value < found.low < 1 < found.high


def test_weights_of_zero_leave_points_out():
    year, value = _noisy(10)
    weights = np.r_[np.ones(8), 0, 0]
    kept, cut = (
        fit_growth(year, value, weights=weights, bootstrap=Bootstrap(count=0)),
        fit_growth(year[:8], value[:8], year0=2017, bootstrap=Bootstrap(count=0)),
    )
    assert growth_per_year(kept).low == pytest.approx(growth_per_year(cut).low, rel=1e-9)
    assert line_of(kept).last == year[7]


def test_three_points_are_enough_and_two_are_not():
    with pytest.warns(SteelyardWarning, match="rough"):
        fit = fit_growth([2020, 2021, 2022], [1.0, 2.1, 3.9], bootstrap=Bootstrap(count=0))
    assert growth_per_year(fit).low < 2 < growth_per_year(fit).high
    with pytest.raises(FitError, match="at least 3"):
        fit_growth([2020, 2021], [1.0, 2.0])
    with pytest.raises(FitError, match="every value is of the year 2020"):
        fit_growth([2020, 2020, 2020, 2020], [1.0, 2.0, 3, 4])
    with pytest.raises(FitError, match="rows 2"):
        fit_growth([2020, 2021, 2022, 2023], [1.0, -2.0, 3, 4])


def test_far_years_are_flagged():
    fit = fit_growth(*_noisy(), bootstrap=Bootstrap(count=0))
    line = line_of(fit)
    edge = line.last + 2 * (line.last - line.first)
    assert not is_far(fit, edge - 0.1) and is_far(fit, edge + 0.1)
    with pytest.warns(SteelyardWarning, match="twice the observed span"):
        forecast_growth(fit, edge + 1)


def test_json_round_trip_keeps_intervals():
    fit = fit_growth(*_noisy(), period_years=2, bootstrap=Bootstrap(count=20))
    again = Fit.from_json(fit.to_json())
    assert again.law == fit.law
    assert growth_per_year(again) == growth_per_year(fit)
    assert growth_per_year(again, intervals="bootstrap") == growth_per_year(
        fit, intervals="bootstrap"
    )


def test_other_laws_and_bad_arguments_are_refused():
    from steelyard import laws

    with pytest.raises(FitError, match="not exponential growth"):
        growth_per_year(laws.published["kaplan2020"].fit())
    with pytest.raises(FitError, match="growth needs numbers"):
        growth("soon")
    with pytest.raises(FitError, match="period"):
        growth(2020, 0)
    fit = fit_growth(*_noisy(), bootstrap=Bootstrap(count=0))
    with pytest.raises(FitError, match="between 0 and 1"):
        growth_per_year(fit, 95)
    with pytest.raises(FitError, match="no resampled"):
        growth_per_year(fit, intervals="bootstrap")
    with pytest.raises(FitError, match="must be positive"):
        crossing_year(fit, -1)


def test_wall_repeats_the_papers_arithmetic():
    year = np.arange(2000.0, 2022)
    compute, memory = (
        fit_growth(year, 3.0 ** ((year - 2000) / 2), bootstrap=Bootstrap(count=0)),
        fit_growth(year, 1.6 ** ((year - 2000) / 2), bootstrap=Bootstrap(count=0)),
    )
    found = wall(compute, memory, [0, 2, 4], balance_now=295, year_now=2022)
    assert found.balance.value == pytest.approx(
        [295, 295 * 3 / 1.6, 295 * (3 / 1.6) ** 2], rel=1e-9
    )
    assert found.batch.value == pytest.approx(found.balance.value)
    assert found.doubling_time_years.value == pytest.approx(
        2 * math.log(2) / math.log(3 / 1.6), rel=1e-9
    )
    assert found.years_until(1000).value == pytest.approx(
        2 * math.log(1000 / 295) / math.log(3.0 / 1.6), rel=1e-9
    )
    assert found.years_until(100).value < 0
    one_byte = wall(compute, memory, 0, balance_now=295, year_now=2022, bytes_per_weight=1)
    assert one_byte.batch.value[0] == pytest.approx(295 / 2)
    with pytest.raises(FitError, match="must be positive"):
        wall(compute, memory, 1, balance_now=0, year_now=2022)
    with pytest.raises(FitError, match="keeps nothing busy"):
        found.years_until(0)


def test_wall_interval_covers_the_true_ratio():
    covered = 0
    for seed in range(80):
        compute, memory = (
            fit_growth(*_noisy(10, factor, seed=seed + offset), bootstrap=Bootstrap(count=0))
            for factor, offset in ((1.7, 0), (1.25, 1000))
        )
        found = wall(compute, memory, 5, balance_now=100, year_now=2024, level=0.9)
        covered += found.balance.low[0] <= 100 * (1.7 / 1.25) ** 5 <= found.balance.high[0]
    assert 64 <= covered <= 79


def test_balance_points_of_the_catalog():
    assert balance_points("H100-SXM5-80GB")["memory"] == pytest.approx(295, rel=0.01)
    assert balance_points("A100-SXM4-80GB")["memory"] == pytest.approx(156, rel=0.03)
    assert balance_points("H200-SXM5-141GB")["memory"] == pytest.approx(206, rel=0.01)
    tiers = balance_points("H100-SXM5-80GB")
    assert tiers["host"] > tiers["scale_up"] > tiers["memory"]
    assert set(balance_points("T4")) == {"memory", "host"}
    with pytest.raises(CatalogError, match="16-bit"):
        balance_points("EPYC-7A53")
    with pytest.raises(CatalogError):
        balance_points("H100-SXM9")


def test_chip_trends_of_one_set_of_chips():
    sets = [
        chip_points(name, scale_up=True)[2]
        for name in ("peak_flops_per_s", "memory_bytes_per_s", "scale_up_bytes_per_s")
    ]
    assert sets[0] == sets[1] == sets[2] and len(sets[0]) >= 25
    assert growth_per_two_years(chip_trend("peak_flops_per_s", scale_up=True)).value > 1.5
    assert min(chip_points("memory_bytes", since=2022)[0]) >= 2022
    with pytest.raises(CatalogError, match="no trend of 'flops'"):
        chip_points("flops")


def _slow_ranks(year, compute):
    ranks = []
    for own_year, own in zip(year, compute, strict=True):
        earlier = [
            other
            for other_year, other in zip(year, compute, strict=True)
            if other_year <= own_year and not math.isnan(other)
        ]
        ranks.append(0 if math.isnan(own) else 1 + sum(other > own for other in earlier))
    return ranks


def test_ranks_equal_the_loop():
    generator = np.random.default_rng(1)
    year, compute = generator.integers(2010, 2025, 60) + 0.5, 10.0 ** generator.integers(18, 26, 60)
    compute[::7] = np.nan
    ranks = rank_at_publication(year, compute)
    assert ranks.tolist() == _slow_ranks(year, compute)
    assert (top_at_publication(year, compute, 3) == ((ranks > 0) & (ranks <= 3))).all()


def test_models_above_the_trend():
    year = np.repeat(np.arange(2012.0, 2022), 4)
    compute = 10.0 ** (year - 1995) * np.tile([1, 1, 1, 30.0], 10)
    compute[0] = np.nan
    assert np.flatnonzero(above_trend(year, compute, 0.25)).tolist() == list(range(3, 40, 4))
    with pytest.raises(FitError, match="fraction"):
        above_trend(year, compute, 0)
    with pytest.raises(FitError, match="rows 2"):
        rank_at_publication([2020.0, math.nan], [1.0, 1.0])
    with pytest.raises(FitError, match="one length"):
        rank_at_publication([2020.0], [1.0, 1.0])


def test_decimal_years():
    assert decimal_year(datetime.date(2024, 1, 1)) == 2024
    assert decimal_year(datetime.date(2023, 7, 2)) == pytest.approx(2023 + 182 / 365)
    assert decimal_year(datetime.date(2024, 12, 31)) == pytest.approx(2024 + 365 / 366)
