"""Scalers: what they choose, what they learn, and what a replay says of them."""

import threading

import numpy as np
import pytest

from steelyard.errors import ConfigError, DataError, TraceError
from steelyard.operate.autoscale import (
    AllowedMisses,
    BayesianScaler,
    CapacityPosterior,
    DecayingHistogram,
    DemandForecaster,
    FixedReplicas,
    MissPrice,
    MovingWindowMax,
    Oracle,
    OracleQuantile,
    QuantileScaler,
    RecommenderVPA,
    ScalerPolicy,
    ServiceState,
    VirtualDeadline,
    lead_steps,
    peak_samples,
    replay,
    replay_all,
)
from steelyard.operate.autoscale.forecasting import CalibratedDemand
from steelyard.operate.forecast import RecentQuantiles, SampleForecast
from steelyard.operate.forecast.guarded import Deadline
from steelyard.operate.series import SeriesSet
from steelyard.sim.autoscale import Service
from steelyard.sim.control import Latency, Observation, Reading

SERVICE = Service(capacity=10.0, target_utilization=0.8, allowed=0.1)


def values_of(values):
    """The forecast that the next value is drawn from these."""
    return SampleForecast(np.asarray(values, float)[:, None], source="last values")


def state_of(replicas=5, **known):
    return ServiceState(ready=replicas, **known)


@pytest.mark.parametrize("miss_ratio", [0.5, 4.0, 30.0])
@pytest.mark.parametrize("allowed", [0.02, 0.3])
def test_the_chosen_number_is_that_of_a_plain_search(miss_ratio, allowed):
    service = Service(capacity=10.0, allowed=allowed, max_replicas=60)
    scaler = BayesianScaler(
        service,
        step_s=300.0,
        promise="each decision",
        miss_ratio=miss_ratio,
        switch_cost=0.7,
    )
    needed = np.sort(np.random.default_rng(1).gamma(4.0, 4.0, 500))
    losses = {
        count: np.maximum(count - needed, 0).mean()
        + miss_ratio * np.maximum(needed - count, 0).mean()
        + 0.7 * abs(count - 20)
        for count in range(1, 61)
        if np.mean(needed > count) <= scaler.misses.next()
    }
    assert scaler.best(needed, 20) == min(losses, key=losses.get)


def test_in_the_long_run_the_chosen_number_is_that_of_a_plain_search():
    service = Service(capacity=10.0, allowed=0.05, max_replicas=60)
    scaler = BayesianScaler(service, step_s=300.0, switch_cost=0.3)
    needed = np.sort(np.random.default_rng(2).gamma(4.0, 4.0, 500))
    scaler.price.begin(needed)
    losses = {
        count: count + scaler.price.value * np.mean(needed > count) + 0.3 * abs(count - 20)
        for count in range(1, 61)
        if np.mean(needed > count) <= 0.5
    }
    assert scaler.best(needed, 20) == min(losses, key=losses.get)


def test_the_first_price_allows_what_the_promise_does():
    service = Service(capacity=10.0, allowed=0.05, max_replicas=100_000)
    needed = np.sort(np.random.default_rng(3).normal(5000, 300, 100_000))
    found = BayesianScaler(service, step_s=300.0).best(needed, 1)
    assert np.mean(needed > found) == pytest.approx(0.05, abs=0.01)


def test_the_price_of_a_miss_follows_what_is_missed():
    price = MissPrice(target=0.05, most=1000.0)
    price.observe(1.0)
    assert np.isnan(price.value)
    price.begin(np.arange(101.0))
    assert price.value == pytest.approx(100.0)
    # One step in twenty missed leaves it where it is.
    for missed in (1.0, *[0.0] * 19):
        price.observe(missed)
    assert price.value == pytest.approx(100.0)
    for missed, end in ((1.0, 1000.0), (0.0, 1.0)):
        for _ in range(1000):
            price.observe(missed)
        assert price.value == end


def test_peaks_that_nobody_foresees_are_missed_in_the_long_run_only():
    rng = np.random.default_rng(5)
    demand = 40 + 10 * rng.random(2000) + 2000 * (rng.random(2000) < 0.03)

    def outcome(promise):
        scaler = BayesianScaler(Service(capacity=10.0), step_s=300.0, promise=promise)
        return replay(
            Service(capacity=10.0),
            demand[1000:],
            scaler,
            step_s=300.0,
            forecaster=lambda past: values_of(past[-24:]),
            history=demand[:1000],
        ).report.outcome

    long_run, each = outcome("long run"), outcome("each decision")
    assert long_run.details["instance_hours"] < 0.5 * each.details["instance_hours"]
    assert long_run.violation_rate < 1.5 * 0.05


def test_an_idle_service_keeps_its_promise():
    scaler = BayesianScaler(SERVICE, step_s=300.0)
    scaler.decide(0.0, None, state_of(utilization=0.0, demand=0.0))
    assert scaler.misses.mean < SERVICE.allowed and scaler.capacity.weight == 10.0


def test_without_the_promise_it_is_the_newsvendors_quantile():
    service = Service(capacity=10.0, allowed=0.49, max_replicas=10_000)
    scaler = BayesianScaler(
        service, step_s=300.0, promise="each decision", miss_ratio=9.0, adapts=False
    )
    needed = np.sort(np.random.default_rng(0).normal(5000, 300, 20_000))
    assert scaler.best(needed, 1) == pytest.approx(np.quantile(needed, 0.9), abs=1.5)


def test_all_replicas_are_asked_for_where_no_number_keeps_the_promise():
    scaler = BayesianScaler(Service(capacity=10.0, max_replicas=7), step_s=300.0)
    assert scaler.best(np.array([50.0, 60.0]), 1) == 7


def test_what_is_allowed_next_follows_the_posterior():
    misses = AllowedMisses(target=0.05)
    assert misses.next() == pytest.approx(0.05)
    for _ in range(100):
        misses.observe(False)
    assert misses.next() == pytest.approx(0.15)
    for _ in range(200):
        misses.observe(True)
    assert misses.next() == pytest.approx(0.005)
    # With nothing forgotten the posterior is that of counting.
    plain = AllowedMisses(target=0.1, weight=10.0, forgetting=1.0)
    for is_missed in (True, True, False):
        plain.observe(is_missed)
    assert plain.mean == pytest.approx(3 / 13)


def test_the_posterior_of_the_capacity_is_conjugate():
    rng = np.random.default_rng(2)
    seen = rng.normal(8.0, 0.5, 2000)
    posterior = CapacityPosterior(mean=10.0, spread=0.1, weight=4.0)
    for value in seen:
        posterior.observe(value)
    assert posterior.mean == pytest.approx((40.0 + seen.sum()) / 2004)
    drawn = posterior.draw(rng, 50_000)
    assert drawn.mean() == pytest.approx(posterior.mean, abs=0.02)
    assert drawn.std() == pytest.approx(0.5, rel=0.1)
    # One pass is the same as the batch formula of the rate.
    squares = ((seen - seen.mean()) ** 2).sum()
    between = 4.0 * 2000 / 2004 * (seen.mean() - 10.0) ** 2
    assert posterior._rate == pytest.approx(4.0 / 2 * 1.0 + (squares + between) / 2)


def test_a_smaller_capacity_than_assumed_is_learned():
    demand = np.full(400, 80.0)
    truth = Service(capacity=10.0, target_utilization=0.8)
    believed = Service(capacity=20.0, target_utilization=0.8)
    scaler = BayesianScaler(believed, step_s=300.0)
    run = replay(
        truth,
        demand,
        scaler,
        step_s=300.0,
        forecaster=lambda seen: values_of(seen[-24:]),
        history=demand[:24],
        capacity_spread=0.02,
    )
    assert scaler.capacity.mean == pytest.approx(10.0, rel=0.05)
    assert 10 <= run.ready[-100:].mean() <= 13


def test_replicas_are_let_go_once_a_cooldown():
    scaler = BayesianScaler(SERVICE, step_s=60.0, cooldown_s=300.0, adapts=False)
    low = values_of(np.full(24, 8.0))
    found = [scaler.decide(now_s, low, state_of(9)) for now_s in (0.0, 60.0, 299.0, 300.0)]
    assert [item < 9 for item in found] == [True, False, False, True]
    assert scaler.decide(310.0, None, state_of(9)) == 9


def test_a_quantile_covers_all_steps_of_its_lead():
    class Rising:
        samples = None

        def quantile(self, level):
            return np.array([[8.0], [40.0], [80.0]]) * level / 0.9

    assert QuantileScaler(SERVICE, step_s=60.0).decide(0.0, Rising(), state_of()) == 1
    assert QuantileScaler(SERVICE, step_s=60.0, lead_steps=2).decide(0, Rising(), state_of()) == 5
    assert QuantileScaler(SERVICE, step_s=60.0).decide(0.0, None, state_of(3)) == 3
    peaks = peak_samples(Rising(), 2)
    assert np.quantile(peaks, 0.9) == pytest.approx(40.0, rel=0.01)


def test_the_peak_is_of_each_sample_not_of_quantiles():
    class Swapped:
        samples = np.array([[1.0, 9.0], [9.0, 1.0], [-2.0, -1.0]])

    assert peak_samples(Swapped(), 2).tolist() == [9.0, 9.0, 0.0]
    assert peak_samples(Swapped(), 1).tolist() == [1.0, 9.0, 0.0]


def test_a_window_forgets_its_largest_load():
    scaler = MovingWindowMax(SERVICE, step_s=60.0, window_s=180.0, margin=0.0)
    found = [scaler.decide(0, None, state_of(demand=load)) for load in (8, 80, 8, 8, 8)]
    assert found == [1, 10, 10, 10, 1]
    assert MovingWindowMax(SERVICE, step_s=60.0).decide(0, None, state_of(4)) == 4


def test_old_samples_weigh_half_after_a_day():
    loads = DecayingHistogram(half_life_s=100.0)
    assert loads.is_empty and loads.percentile(0.9) == 0.0
    for turn in range(100):
        loads.add(10.0, 0.0)
        loads.add(1.0, 100.0 * (turn == 0))
    # 100 old samples of 10 weigh 100, one new sample of 1 weighs 2, 99 old ones 99.
    assert loads.percentile(101 / 201 - 0.005) == pytest.approx(1.0, rel=0.06)
    assert loads.percentile(101 / 201 + 0.005) == pytest.approx(10.0, rel=0.06)
    # Far later the past has no weight left, and no number has left its range.
    loads.add(3.0, 1e7)
    assert loads.percentile(0.01) == pytest.approx(3.0, rel=0.06)


def test_percentiles_of_a_histogram_are_those_of_the_values():
    values = np.random.default_rng(0).lognormal(1.0, 0.7, 4000)
    loads = DecayingHistogram()
    for value in values:
        loads.add(value, 0.0)
    for level in (0.5, 0.9, 0.95):
        assert 1.0 <= loads.percentile(level) / np.quantile(values, level) <= 1.08


def test_the_recommender_moves_only_beyond_its_bounds():
    scaler = RecommenderVPA(SERVICE, step_s=300.0)
    assert scaler.decide(0.0, None, state_of(4)) == 4
    count = 20
    for step in range(1, 600):
        count = scaler.decide(step * 300.0, None, state_of(count, demand=80.0))
    # 90 % quantile of 10 replicas, within a bucket of 5 %, and 15 % more.
    assert count in (12, 13)
    low, target, high = scaler.bounds(600 * 300.0)
    assert low <= target <= high
    # A day's load that is ten times as large has a tenth of the weight only after some hours.
    for step in range(600, 620):
        count = scaler.decide(step * 300.0, None, state_of(count, demand=800.0))
    assert count < 100


def test_an_oracle_is_never_late():
    rng = np.random.default_rng(0)
    demand = rng.uniform(10, 200, 60)
    service = Service(capacity=10.0, startup=Latency.always(250.0))
    assert lead_steps(service, 300.0) == 2
    run = replay(service, demand, Oracle(service, demand, step_s=300.0, lead_steps=2), step_s=300.0)
    assert run.report.outcome.violated <= 250.0
    late = replay(service, demand, Oracle(service, demand, step_s=300.0), step_s=300.0)
    assert late.report.outcome.violated > 20 * 250.0


@pytest.mark.parametrize("allowed", [0.05, 0.2])
def test_the_true_quantile_is_missed_as_often_as_allowed(allowed):
    rng = np.random.default_rng(3)
    mean = 2000 + 1000 * np.sin(np.arange(3000) / 50)
    demand = mean * rng.lognormal(0, 0.2, 3000)
    service = Service(capacity=1.0, target_utilization=1.0, allowed=allowed, max_replicas=10**5)
    from scipy.special import ndtri

    truth = mean * np.exp(0.2 * ndtri(1 - allowed))
    run = replay(service, demand, OracleQuantile(service, truth, step_s=60.0), step_s=60.0)
    assert run.report.outcome.violation_rate == pytest.approx(allowed, rel=0.25)


def lagged(seen):
    return values_of(seen[-24:])


def small_replay(seed=0):
    rng = np.random.default_rng(seed)
    demand = 60 + 30 * np.sin(np.arange(288) / 40) + rng.normal(0, 4, 288)
    service = Service(capacity=10.0, startup=Latency.lognormal(60.0, 0.3), price_usd_per_hour=2.0)
    scalers = {
        "bayes": BayesianScaler(service, step_s=300.0),
        "fixed": FixedReplicas(20),
    }
    return replay_all(
        service, demand[144:], scalers, step_s=300.0, forecaster=lagged, history=demand[:144]
    )


def test_a_table_has_regrets_to_the_oracle_and_the_best_fixed_number():
    runs = small_replay()
    assert list(runs) == ["bayes", "fixed", "best fixed", "oracle"]
    losses = {name: run.report.outcome.loss for name, run in runs.items()}
    assert losses["best fixed"] <= losses["fixed"]
    for name, run in runs.items():
        assert run.report.oracle_regret == pytest.approx(losses[name] - losses["oracle"])
        assert run.report.fixed_regret == pytest.approx(losses[name] - losses["best fixed"])
    assert runs["fixed"].report.outcome.cost == pytest.approx(20 * 12 * 2.0)
    again = small_replay()
    assert {name: run.report for name, run in again.items()} == {
        name: run.report for name, run in runs.items()
    }


def seen(ready=5.0, demand=40.0, now_s=0.0, **others):
    values = {"ready": ready, "demand": demand, **others}
    readings = {name: Reading(name, value, now_s) for name, value in values.items()}
    return Observation(readings, tuple(readings.values()))


@pytest.mark.parametrize(
    "error", [DataError("no disk"), ValueError("shape"), RuntimeError("no kernel")]
)
def test_a_forecaster_that_fails_is_replaced_and_named(error):
    def model(demand):
        raise error

    kept = {}
    policy = ScalerPolicy(
        QuantileScaler(SERVICE, step_s=300.0),
        forecaster=model,
        history=np.full(30, 40.0),
        keep=kept.__setitem__,
    )
    (command,) = policy.decide(0.0, seen(ready=1.0))
    assert command.value == 5 and policy.num_fallbacks == 1
    assert command.reason.startswith("RecentQuantiles for function, which failed:")
    assert str(error.args[0]) in command.reason and kept[31].source == command.reason


class Slow:
    """Sleeps until it is let go."""

    name = "Slow"

    def __init__(self):
        self.calls, self.may_end = 0, threading.Event()

    def __call__(self, demand):
        self.calls += 1
        self.may_end.wait(60.0)
        return values_of(demand[-3:])


def test_on_the_real_clock_a_late_forecaster_is_replaced_and_not_asked_while_it_is_busy():
    slow, demand = Slow(), np.arange(40.0, 70.0)
    policy = ScalerPolicy(
        QuantileScaler(SERVICE, step_s=300.0),
        forecaster=slow,
        history=demand,
        within=Deadline(0.05),
    )
    (command,) = policy.decide(0.0, seen(ready=1.0, demand=70.0))
    rule = RecentQuantiles().predict(
        SeriesSet.from_arrays([np.append(demand, 70.0)], step_s=1.0, ids=["demand"]), 1
    )[0]
    assert command.value == SERVICE.replicas_for(rule.quantile(0.9)[0])
    assert command.reason == "RecentQuantiles for Slow, which was late: more than 0.05 s"
    (command,) = policy.decide(300.0, seen(ready=1.0, demand=71.0, now_s=300.0))
    assert "earlier call still runs" in command.reason and slow.calls == 1
    slow.may_end.set()
    policy._forecaster._within._late.join()
    policy.decide(600.0, seen(ready=1.0, demand=72.0, now_s=600.0))
    assert policy.num_fallbacks == 2 and slow.calls == 2


def test_on_virtual_time_a_late_forecaster_is_replaced():
    takes = Latency((0.0, 0.75, 0.76, 1.0), (1.0, 1.0, 40.0, 40.0))
    run = replay(
        SERVICE,
        np.full(400, 40.0),
        QuantileScaler(SERVICE, step_s=300.0),
        step_s=300.0,
        forecaster=lambda past: values_of(past[-24:]),
        history=np.full(30, 40.0),
        within=VirtualDeadline(takes, 30.0),
    )
    assert 60 < run.num_fallbacks < 140
    late = [item for item in run.forecasts.values() if "was late" in item.source]
    assert len(late) == run.num_fallbacks and len(run.forecasts) == 400


def test_a_forecast_that_is_not_finite_is_replaced():
    class Broken:
        samples, source = None, "Broken"

        def quantile(self, level):
            return np.array([np.nan])

    policy = ScalerPolicy(
        QuantileScaler(SERVICE, step_s=300.0), forecaster=lambda _: Broken(), history=[40.0, 40.0]
    )
    (command,) = policy.decide(0.0, seen(ready=1.0))
    assert command.value == 5 and policy.num_fallbacks == 1 and "not finite" in command.reason


def test_the_load_of_a_step_under_way_counts_as_its_demand():
    class Keeps:
        period_s = 15.0

        def decide(self, now_s, forecast, state):
            self.state, self.forecast = state, forecast
            return 1

    asked, scaler = [], Keeps()

    def forecaster(past):
        asked.append(list(past))
        return values_of(past[-2:])

    policy = ScalerPolicy(scaler, forecaster=forecaster, history=[10.0, 20.0])
    policy.decide(0.0, seen(demand=30.0, load=30.0))
    # What was read as the step began is still the load of the one before.
    assert np.isnan(scaler.state.load) and asked == [[10, 20, 30]]

    def later(now_s, load):
        return Observation(
            {
                "ready": Reading("ready", 5.0, now_s),
                "demand": Reading("demand", 30.0, 0.0),
                "load": Reading("load", load, now_s),
            },
            (),
        )

    policy.decide(15.0, later(15.0, 44.0))
    policy.decide(30.0, later(30.0, 44.5))
    assert scaler.state.load == 44.5 and scaler.state.elapsed_s == 30.0
    # A hair of difference changes no forecast; more does.
    assert asked[1:] == [[10, 20, 30, 44]]
    policy.decide(45.0, later(45.0, 60.0))
    assert asked[-1] == [10, 20, 30, 60]


def test_on_two_clocks_the_scaler_follows_the_load_within_a_step():
    rng = np.random.default_rng(0)
    demand = 400 + 200 * np.sin(np.arange(240) / 4) + rng.normal(0, 20, 240)
    service = Service(capacity=10.0, target_utilization=0.8, startup=Latency.lognormal(120.0, 0.3))

    def hours(period_s):
        scaler = BayesianScaler(service, step_s=3600.0, period_s=period_s)
        run = replay(
            service,
            demand[120:],
            scaler,
            step_s=3600.0,
            forecaster=lambda past: values_of(past[-1] + np.diff(past[-49:])),
            history=demand[:120],
        )
        return run.report.outcome

    slow, fast = hours(None), hours(15.0)
    assert fast.details["instance_hours"] < 0.9 * slow.details["instance_hours"]
    # A step that needs more is missed until replicas have started: 2.5 minutes of an hour at most.
    assert fast.violation_rate < service.allowed


def test_nothing_is_asked_for_without_knowing_what_is_there():
    policy = ScalerPolicy(FixedReplicas(3))
    assert policy.decide(0.0, Observation()) == []
    assert policy.decide(0.0, seen(ready=3.0)) == []
    assert policy.decide(0.0, seen(ready=4.0))[0].value == 3


def test_an_old_metric_is_a_missing_one():
    class Keeps:
        period_s = 15.0

        def decide(self, now_s, forecast, state):
            self.state = state
            return 1

    scaler = Keeps()
    policy = ScalerPolicy(scaler)
    policy.decide(20.0, seen(utilization=0.7, starting=2.0, missing=1.0))
    known = scaler.state
    assert (known.ready, known.starting, known.missing) == (5, 2, 1)
    assert (known.demand, known.utilization) == (40.0, 0.7)
    policy.decide(40.0, seen(utilization=0.7))
    assert np.isnan(scaler.state.utilization)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="target"):
        AllowedMisses(target=0.0)
    with pytest.raises(ConfigError, match="rate"):
        MissPrice(target=0.1, most=9.0, rate=2.0)
    with pytest.raises(ConfigError, match="promise"):
        BayesianScaler(SERVICE, step_s=60.0, promise="never")
    with pytest.raises(ConfigError, match="growth"):
        DecayingHistogram(growth=1.0)
    with pytest.raises(TraceError, match="step 1"):
        Oracle(SERVICE, [1.0, -2.0], step_s=60.0)


class Narrow:
    """Says that the next values are within a tenth of what they really vary by."""

    name = "narrow"

    def fit(self, series):
        pass

    def predict(self, context, horizon):
        self.asked = len(context.row(0))
        levels = np.array([0.1, 0.5, 0.9])
        row = 100 + np.array([-0.13, 0.0, 0.13])
        return [SampleForecast(np.repeat(row[:, None], horizon, 1), levels=levels, source="narrow")]


@pytest.mark.parametrize("horizon", [1, 3])
def test_intervals_of_controllers_come_to_hold_what_they_promise(horizon):
    demand = 100 + np.random.default_rng(3).normal(size=1500)
    base = DemandForecaster(Narrow(), step_s=60.0, horizon=horizon)
    calibrated = CalibratedDemand(base, demand[:600], steps=600)
    held = []
    for known in range(600, 1490):
        low, high = calibrated(demand[: known + 1]).interval(0.8)
        held.append(low[0] <= demand[known + 1] <= high[0])
    assert 0.76 < np.mean(held) < 0.84
    assert calibrated.name == "narrow" and calibrated(demand[:700]).source == "narrow"


def test_what_is_learned_of_later_steps_changes_no_earlier_forecast():
    demand = 100 + np.random.default_rng(3).normal(size=900)

    def make():
        base = DemandForecaster(Narrow(), step_s=60.0, horizon=2)
        return CalibratedDemand(base, demand[:300])

    first, second = make(), make()
    before = first(demand[:400]).values
    second(demand)
    assert np.array_equal(second(demand[:400]).values, before)
    assert not np.array_equal(second(demand).values, before)


def test_steps_that_could_not_be_forecast_are_left_out_of_what_is_learned():
    class Sometimes(Narrow):
        def predict(self, context, horizon):
            if len(context.row(0)) % 2:
                raise RuntimeError("no memory")
            return super().predict(context, horizon)

    demand = 100 + np.random.default_rng(3).normal(size=400)
    base = DemandForecaster(Sometimes(), step_s=60.0, horizon=1)
    calibrated = CalibratedDemand(base, demand[:300])
    with pytest.raises(RuntimeError, match="no memory"):  # a guard stands in, and says why
        calibrated(demand[:301])
    low, high = calibrated(demand[:400]).interval(0.8)
    assert high[0] - low[0] > 0.5
