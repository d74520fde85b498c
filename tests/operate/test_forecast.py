"""Forecasts and their scores, rules, damped smoothing, conformal intervals, fallback and choice."""

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from steelyard.errors import ConfigError, TraceError
from steelyard.operate.forecast import (
    LEVELS,
    RecentQuantiles,
    SampleForecast,
    SeasonalNaive,
    SeasonalProfile,
    evaluate,
    pinball,
)
from steelyard.operate.forecast.blending import BlendedForecaster, cut_windows
from steelyard.operate.forecast.bookkeeping import remember, settle
from steelyard.operate.forecast.bounds import quantiles_of_rows
from steelyard.operate.forecast.choosing import ChosenForecaster
from steelyard.operate.forecast.conformal import AdaptiveConformal
from steelyard.operate.forecast.corpus import ARCHETYPES, generate_corpus
from steelyard.operate.forecast.ets import DampedETS
from steelyard.operate.forecast.guarded import GuardedForecaster
from steelyard.operate.forecast.quantile_weights import learned_weights
from steelyard.operate.forecast.recent_errors import RecentErrors
from steelyard.operate.series import SeriesSet
from steelyard.runs.ledger import Ledger
from steelyard.runs.store import RunStore


def waves(count=2, length=1500, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    phase = 2 * np.pi * np.arange(length) / 288
    rows = [5 + np.sin(phase + shift) + noise * rng.normal(size=length) for shift in range(count)]
    return SeriesSet.from_arrays(rows, step_s=300, start_s=1.7e9)


def normal_forecast():
    from scipy.stats import norm

    return SampleForecast(norm.ppf(LEVELS)[:, None] * np.ones((1, 3)), LEVELS)


def test_quantiles_samples_and_mean_of_both_kinds_agree():
    rng = np.random.default_rng(0)
    drawn = SampleForecast(rng.normal(size=(20000, 3)))
    exact = normal_forecast()
    levels = [0.05, 0.3, 0.5, 0.77]
    np.testing.assert_allclose(drawn.quantile(levels), exact.quantile(levels), atol=0.05)
    np.testing.assert_allclose(exact.mean(), 0, atol=1e-9)
    assert exact.quantile(0.5).shape == (3,) and exact.samples.shape == (200, 3)
    np.testing.assert_allclose(exact.samples.mean(0), exact.mean(), atol=0.01)
    # The tail is exponential: beyond .99 it goes on, and lies near the normal one.
    assert 2.6 < exact.quantile(0.999)[0] < 4


def test_crps_of_quantiles_is_near_the_normal_closed_form_and_lowest_for_the_truth():
    exact = normal_forecast()
    actual = np.random.default_rng(1).normal(size=3000)
    wide = SampleForecast(np.repeat(exact.values[:, :1], 3000, 1), LEVELS)
    # The expected loss of a normal's own quantile z is the density at z.
    from scipy.stats import norm

    expected = 2 * norm.pdf(norm.ppf(np.arange(0.1, 1, 0.1))).mean()
    assert wide.crps(actual).mean() == pytest.approx(expected, rel=0.03)
    for other in (wide.values * 1.6, wide.values * 0.6, wide.values + 0.5):
        assert SampleForecast(other, LEVELS).crps(actual).mean() > wide.crps(actual).mean()
    assert wide.covered(actual).mean() == pytest.approx(0.8, abs=0.03)
    assert np.isnan(wide.crps(np.full(3000, np.nan))).all()


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        (np.zeros(3), None),
        (np.zeros((0, 3)), None),
        (np.full((2, 3), np.nan), None),
        (np.zeros((2, 3)), np.array([0.5, 0.4])),
        (np.zeros((2, 3)), np.array([0.1, 0.5, 0.9])),
    ],
)
def test_what_is_no_distribution_is_refused(values, levels):
    with pytest.raises((TraceError, ConfigError)):
        SampleForecast(values, levels)
    with pytest.raises(ConfigError, match="level"):
        normal_forecast().quantile(1.0)


def test_joint_forecasts_keep_their_series():
    joint = SampleForecast(np.random.default_rng(0).normal(size=(50, 4, 3)), names=("a", "b", "c"))
    assert joint.quantile([0.1, 0.9]).shape == (2, 4, 3)
    assert joint.crps(np.zeros((4, 3))).shape == (4, 3)


def test_rules_say_what_they_promise():
    series = waves(noise=0.0)
    recent = RecentQuantiles().predict(series, 5)[0]
    np.testing.assert_allclose(recent.quantile(0.5), np.median(series.row(0)[-24:]))
    naive = SeasonalNaive().predict(series, 300)[0]
    np.testing.assert_allclose(
        naive.quantile(0.5), np.concatenate([series.row(0)[-288:], series.row(0)[-288:-276]])
    )
    spikes = np.tile([0.0, 9.0, 0.0, 0.0], 6) + np.repeat([0.0, 2.0], 12)
    profile = SeasonalProfile(4, seasons=4).predict(SeriesSet.from_arrays([spikes], step_s=300), 6)[
        0
    ]
    # Four seasons count, of which one is lower by 2: a mean of 1.5 and a median 0.5 above it.
    np.testing.assert_allclose(profile.quantile(0.5), np.array([0, 9, 0, 0, 0, 9]) + 2.0)
    # One value alone is enough for all of them.
    single = SeriesSet.from_arrays([np.array([np.nan, 3.0])], step_s=300)
    for rule in (RecentQuantiles(), SeasonalNaive(), SeasonalProfile(), DampedETS()):
        assert (rule.predict(single, 4)[0].values == 3).all()
    with pytest.raises(TraceError, match="'series-0' has 0 observed"):
        RecentQuantiles().predict(SeriesSet.from_arrays([np.full(5, np.nan)], step_s=300), 4)


def test_evaluation_is_that_of_each_window_alone_and_sees_nothing_ahead():
    series = waves(3)
    report = evaluate(RecentQuantiles(), series, 48, 4, 48)
    loss, level = 0.0, 0.0
    for window in range(4, 0, -1):
        for row, forecast in enumerate(RecentQuantiles().predict(series.before(48 * window), 48)):
            end = len(series.row(row)) - 48 * window
            actual = series.row(row)[end : end + 48]
            loss += forecast.crps(actual).sum()
            level += np.abs(actual).sum()
    assert report.pooled.crps == pytest.approx(loss / level)
    assert report.pooled.windows == 12 and report.pooled.steps == 576
    again = evaluate(RecentQuantiles(), series, 48, 4, 48)
    assert again.series == report.series
    # A forecast from a changed future would be a leak.
    values = series.values.copy()
    values[series.offsets[1] - 48 : series.offsets[1]] += 100
    changed = SeriesSet.from_arrays([values[:1500], *[series.row(i) for i in (1, 2)]], step_s=300)
    made = [RecentQuantiles().predict(item.before(48), 48)[0].values for item in (series, changed)]
    np.testing.assert_array_equal(*made)
    with pytest.raises(TraceError, match="too few for 40 windows"):
        evaluate(RecentQuantiles(), series, 48, 40, 48)


def test_reports_compare_by_the_geometric_mean():
    series = waves(3, noise=0.02)
    naive, recent = (
        evaluate(item, series, 48, 4, 48) for item in (SeasonalNaive(), RecentQuantiles())
    )
    ratio, wins = naive.crps_ratio(recent)
    assert ratio < 0.5 and wins == 3
    assert recent.crps_ratio(naive)[0] == pytest.approx(1 / ratio)


def test_damped_smoothing_learns_level_trend_and_season():
    steps = np.arange(1440)
    season = 3 * np.sin(2 * np.pi * steps / 288)
    series = SeriesSet.from_arrays([10 + season, 0.01 * steps], step_s=300)
    cyclic, rising = DampedETS().predict(series, 48)
    wanted = 10 + 3 * np.sin(2 * np.pi * (1440 + np.arange(48)) / 288)
    assert np.abs(cyclic.quantile(0.5) - wanted).max() < 0.3
    last = series.row(1)[-1]
    assert (rising.quantile(0.5) > last).all() and rising.quantile(0.5)[-1] < last + 1


WILD = hnp.arrays(
    np.float64,
    st.integers(1, 80),
    elements=st.one_of(
        st.floats(allow_nan=True, allow_infinity=False), st.floats(-1, 1), st.just(0.0)
    ),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(WILD)
def test_no_context_makes_a_rule_explode(values):
    if not np.isfinite(values).any():
        return
    context = SeriesSet.from_arrays([values], step_s=3600)
    known = values[np.isfinite(values)]
    for rule in (RecentQuantiles(), SeasonalNaive(), SeasonalProfile(), DampedETS()):
        made = rule.predict(context, 30)[0].values
        assert np.isfinite(made).all()
        # Halves, because the width of the range may itself be too large for a float.
        width = known.max() / 2 - known.min() / 2
        assert (made / 4 <= known.max() / 4 + width / 2 * 1.0001 + 1e-300).all()
        assert (made / 4 >= known.min() / 4 - width / 2 * 1.0001 - 1e-300).all()


class Broken:
    name = "Broken"

    def __init__(self, wait_s=0.0):
        self.wait_s = wait_s

    def fit(self, series):
        """Nothing."""

    def predict(self, context, horizon):
        time.sleep(self.wait_s)
        if self.wait_s:
            return SeasonalNaive().predict(context, horizon)
        raise ValueError("no weights")


@pytest.mark.parametrize(
    ("wait_s", "words"), [(0.0, "failed: ValueError: no weights"), (5, "late")]
)
def test_a_late_or_failing_forecaster_is_replaced_and_it_says_so(wait_s, words):
    guarded = GuardedForecaster(Broken(wait_s), deadline_s=0.3)
    made = guarded.predict(waves(), 12)
    assert all(
        words in item.source and "RecentQuantiles for Broken" in item.source for item in made
    )
    np.testing.assert_array_equal(made[0].values, RecentQuantiles().predict(waves(), 12)[0].values)
    assert len(guarded.failures) == 1
    whole = GuardedForecaster(SeasonalNaive(), deadline_s=60).predict(waves(), 12)
    assert whole[0].source == "SeasonalNaive"


def test_a_model_is_used_only_where_it_beat_the_best_rule():
    noisy = np.random.default_rng(0).normal(size=1500)
    series = SeriesSet.from_arrays([*waves(1), noisy + 9], step_s=300, ids=["wave", "noise"])

    class Oracle(SeasonalNaive):
        def predict(self, context, horizon):
            made = super().predict(context, horizon)
            bad = [item.replaced(values=item.values + 50) for item in made]
            return [
                one if name.startswith("wave") else other
                for one, other, name in zip(_sharp(context, horizon), bad, context.ids, strict=True)
            ]

    def _sharp(context, horizon):
        made = []
        for row in range(len(context)):
            steps = len(context.row(row)) + np.arange(horizon)
            wave = 5 + np.sin(2 * np.pi * steps / 288)
            made.append(
                SampleForecast(wave + 0.1 * normal_forecast().values[:, :1], LEVELS, "Oracle")
            )
        return made

    model = Oracle()
    model.name = "Oracle"
    chosen = ChosenForecaster([model], horizon=48)
    chosen.fit(series)
    assert chosen.windows == 15
    assert chosen.choices["wave"].used == "Oracle"
    # The model is bad there, so it has no weight in the blend either.
    noise = chosen.choices["noise"]
    assert noise.used != "Oracle" and noise.rule == "RecentQuantiles"
    scores = {name: report.series["noise"].crps for name, report in chosen.reports.items()}
    assert (noise.used == "Blend") == (scores["Blend"] < scores["RecentQuantiles"])
    assert [item.source for item in chosen.predict(series, 48)] == ["Oracle", noise.used]
    short = SeriesSet.from_arrays([np.arange(20.0)], step_s=300, ids=["short"])
    chosen.fit(short)
    assert chosen.windows == 0 and chosen.choices["short"].used == "RecentQuantiles"
    with pytest.raises(TraceError, match="nothing was chosen for series 'wave'"):
        chosen.predict(series, 48)


def test_quantiles_of_rows_are_those_of_numpy():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 30))
    values[rng.uniform(size=values.shape) < 0.4] = np.nan
    values[0, 1:] = np.nan
    np.testing.assert_allclose(
        quantiles_of_rows(values), np.nanquantile(values, LEVELS, axis=1).T, atol=1e-12
    )
    assert np.isnan(quantiles_of_rows(np.full((1, 3), np.nan))).all()


def test_learned_weights_lose_least_and_are_drawn_to_the_prior():
    rng = np.random.default_rng(0)
    actual = rng.normal(size=(20, 48))
    right = np.broadcast_to(normal_forecast().values[:, :1], (20, len(LEVELS), 48))
    # One says no width and one twice the true one: their mean is the truth.
    said = np.array([0 * right, 2 * right, right + 3])
    prior = np.array([0.1, 0.1, 0.8])
    found = learned_weights(said, actual, prior, 0.02)
    np.testing.assert_allclose(found, [0.5, 0.5, 0.0], atol=0.06)

    # Under any other weights of a grid, loss and divergence together are larger.
    def loss(weights):
        mean = np.einsum("m,mwkh->kwh", weights, said)[2:-2]
        return pinball(actual, mean, LEVELS[2:-2]).mean()

    unit = min(loss(part) for part in np.eye(3))

    def lost(weights):
        return loss(weights) / unit + 0.02 * (weights * np.log(weights / prior)).sum()

    grid = np.random.default_rng(1).dirichlet(np.ones(3), 300)
    assert lost(found) <= min(lost(weights) for weights in grid) * 1.02
    assert learned_weights(0 * said, 0 * actual, prior, 0.1) is prior
    huge = learned_weights(said * 1e305, actual * 1e305, prior, 0.02)
    np.testing.assert_allclose(huge, found, atol=1e-6)
    blank = actual.copy()
    blank[3:] = np.nan
    assert np.isfinite(learned_weights(said, blank, prior, 0.1)).all()


def test_a_blend_is_rehearsed_with_what_was_known_before_each_window():
    series = waves(2, length=1500, noise=0.3)
    parts = [SeasonalNaive(), RecentQuantiles(), DampedETS()]
    blend = BlendedForecaster(parts, horizon=48, stride=24)
    past = cut_windows(series, 48, 10, 24)
    assert len(past.rows) == 2 * 19 and past.overlap == 1
    said = [part.predict(past.context, 48) for part in parts]
    before = blend.learn(series, past, said)
    early = past.rows * 0 + np.tile(np.arange(19), 2) < 8
    other = replace(past, actual=np.where(early[:, None], past.actual, 100.0))
    after = blend.learn(series, other, said)
    # Windows 8 to 11 share weights of the windows that were over when window 8 began.
    for row in range(19):
        same = np.array_equal(before[row].values, after[row].values)
        assert same == (row < 12)
    blend.fit(series)
    assert all(item.sum() == pytest.approx(1) and item.min() > 0 for item in blend.weights.values())
    flat = SeriesSet.from_arrays([np.full(600, 7.0)], step_s=300, ids=["flat"])
    blend.fit(flat)
    assert (blend.predict(flat, 48)[0].values == 7).all()
    assert blend.predict(flat.cut([], [], []), 48) == []


def test_forecasts_of_samples_keep_their_paths_and_are_not_blended():
    series = waves(1)
    chosen = ChosenForecaster([RecentErrors()], horizon=12)
    chosen.fit(series)
    assert "Blend" not in chosen.reports and "RecentErrors" in chosen.reports
    with pytest.raises(ConfigError, match="samples"):
        BlendedForecaster([RecentErrors(), RecentQuantiles()], horizon=12).fit(series)


def test_conformal_intervals_come_to_hold_what_they_promise():
    class Narrow(RecentQuantiles):
        def predict(self, context, horizon):
            made = super().predict(context, horizon)
            middle = [item.quantile(0.5) for item in made]
            return [
                item.replaced(values=center + 0.2 * (item.values - center))
                for item, center in zip(made, middle, strict=True)
            ]

    rng = np.random.default_rng(0)
    series = SeriesSet.from_arrays([50 + rng.normal(size=6000)], step_s=300, ids=["a"])
    plain = evaluate(Narrow(), series, 12, 300, 12).pooled.coverage
    corrected = AdaptiveConformal(Narrow(), rate=0.05)
    corrected.learn(series.before(100 * 12), 12, 200)
    held = corrected.learn(series, 12, 100)["a"]
    assert plain < 0.4 and 0.75 < held < 0.85
    assert corrected.factor("a") > 2 and corrected.factor("other") == 1
    with pytest.raises(ConfigError, match="share"):
        AdaptiveConformal(Narrow(), share=1.0)


def test_forecasts_are_kept_and_checked_once_their_steps_came(tmp_path):
    series = waves()
    store = RunStore(tmp_path)
    made = SeasonalNaive().predict(series.before(48), 48)
    remember(store, "test", series.before(48), made)
    assert settle(store, series.before(48)) == []
    pairs = settle(store, series.before(20))
    assert len(pairs) == 56 and {name for name, _ in pairs} == {"operate.SeasonalNaive"}
    assert pairs[0][1].measurement.value == series.row(0)[-48]
    settle(store, series)
    settle(store, series)  # a step that is settled again counts once
    (row,) = Ledger(store).summary()
    assert row.count == 96 and 0.5 < row.coverage <= 1
    # Another grid of the same name is another series.
    shifted = SeriesSet.from_arrays(list(series), step_s=600, start_s=1.7e9)
    assert settle(store, shifted) == []


def test_the_corpus_is_the_same_at_every_call_and_tells_its_making():
    first, again = (generate_corpus(14, length=600, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.values, again.values)
    longer = generate_corpus(16, length=600, seed=3)
    np.testing.assert_array_equal(longer.values[: len(first.values)], first.values)
    assert all("seed 3, number" in text for text in first.provenance)
    for name in ARCHETYPES:
        made = generate_corpus(3, length=500, seed=1, archetypes=(name,))
        assert np.isfinite(made.values).mean() > 0.9
    with pytest.raises(ConfigError, match="unknown archetypes nothing"):
        generate_corpus(1, archetypes=("nothing",))
