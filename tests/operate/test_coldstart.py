"""Cold starts: traces read and refused, policies one by one, workloads, and the commands."""

import gzip
import json

import numpy as np
import polars as pl
import pytest
from scipy import stats

from steelyard.errors import ConfigError, DataError, TraceError
from steelyard.operate.coldstart import (
    POLICIES,
    AsyncDelay,
    ChainPrewarm,
    DemandProfile,
    FixedPool,
    ForecastPool,
    ForecastPrewarm,
    HybridHistogram,
    LeastColdStart,
    TimerAware,
    TimerPrewarm,
    UtilityAware,
    WorkloadGenerator,
    characterize,
    compare,
    fit_times,
    load_workload,
)
from steelyard.operate.coldstart.characterize import peak_to_trough, utility_ratios
from steelyard.operate.coldstart.fits import lognormal_of_moments
from steelyard.operate.coldstart.keepalive import FixedKeepAlive
from steelyard.operate.forecast import SeasonalProfile
from steelyard.sim.serverless import FunctionState
from steelyard.sim.serverless.published import published_platform


def cold_starts(rows=3000, seed=0):
    """A table in Huawei's schema of cold starts."""
    rng = np.random.default_rng(seed)
    parts = {
        "podAllocationCost": rng.lognormal(-3, 1, rows),
        "deployCodeCost": rng.lognormal(-2, 0.5, rows),
        "deployDependencyCost": np.where(rng.random(rows) < 0.4, rng.lognormal(-1, 0.5, rows), 0.0),
        "schedulingCost": rng.lognormal(-1, 0.5, rows),
    }
    function = rng.integers(1, 6, rows)
    return pl.DataFrame(
        {
            "time": np.sort(rng.uniform(0, 4 * 3600, rows)),
            "funcID": [f"{at}---7---pool22-300-128" for at in function],
            "totalCost_cold_start": sum(parts.values()),
            **parts,
            "podID": [f"pool22-300-128-{row:010d}" for row in range(rows)],
        }
    )


@pytest.fixture
def trace(tmp_path):
    table = cold_starts()
    table.head(1500).write_csv(tmp_path / "day0.csv")
    table.tail(1500).write_parquet(tmp_path / "day1.parquet")
    names = pl.DataFrame(
        {
            "funcID": [f"{at}---7---pool22-300-128" for at in range(1, 6)],
            "cpu_request": [100] * 5,
            "runtime": ["Python3", "Python3", "Java", "Java", "Go1.x"],
            "triggerType-invocationType": ["TIMER-A"] * 5,
        }
    )
    names.write_csv(tmp_path / "functions.csv")
    return tmp_path, table


def test_characterize_agrees_with_the_table_in_memory(trace):
    folder, table = trace
    paths = [folder / "day0.csv", folder / "day1.parquet"]
    found = characterize(paths, functions=folder / "functions.csv")
    assert (found.schema, found.num_rows, found.num_functions) == ("huawei", 3000, 5)
    total = table["totalCost_cold_start"].to_numpy()
    shown = found.quantiles["all"]["total_s"]
    levels = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
    assert shown == pytest.approx(np.quantile(total, levels).tolist(), rel=0.03)
    assert found.quantiles["all"]["deploy_dependency"][2] == 0.0  # most have none
    java = table.filter(pl.col("funcID").str.contains("^[34]-"))["totalCost_cold_start"]
    assert found.quantiles["Java"]["total_s"][2] == pytest.approx(java.median(), rel=0.02)
    hour = (table["time"] // 3600).cast(pl.Int64)
    assert found.hourly["count"] == hour.value_counts().sort("time")["count"].to_list()
    first = table.filter(hour == 0)["schedulingCost"].mean()
    assert found.hourly["scheduling"][0] == pytest.approx(first)
    minutes = table.group_by((pl.col("time") // 60).alias("minute")).agg(
        pl.col("totalCost_cold_start").mean(), pl.col("schedulingCost").mean()
    )
    rho = stats.spearmanr(minutes["totalCost_cold_start"], minutes["schedulingCost"])
    names = found.correlation["names"]
    at = names.index("scheduling")
    assert found.correlation["rho"][0][at] == pytest.approx(rho.statistic)
    assert found.correlation["p_value"][0][at] == pytest.approx(rho.pvalue)
    assert {fit.name for fit in found.fits["total_s"]} == {
        "lognormal",
        "weibull",
        "gamma",
        "exponential",
    }
    assert sum(item.count for item in found.top) == 3000


def test_utility_leaves_censored_pods_out(trace, tmp_path):
    folder, table = trace
    asked = pl.DataFrame(
        {
            "time_worker": table["time"] + table["totalCost_cold_start"] + 10.0,
            "funcName": ["1"] * 3000,
            "podID": table["podID"],
            "totalCost_worker": [2.0] * 3000,
        }
    ).sort("time_worker")
    asked.write_csv(tmp_path / "requests.csv")
    found = characterize([folder / "day0.csv"], requests=[tmp_path / "requests.csv"])
    middle = 12.0 / table.head(1500)["totalCost_cold_start"].median()
    assert found.utility["ratio"][2] == pytest.approx(middle, rel=0.02)
    ready, start = np.array([0.0, 0.0]), np.array([2.0, 2.0])
    ratios = utility_ratios(ready, start, np.array([10.0, 950.0]), 1000.0, 60.0)
    assert ratios.tolist() == [5.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedulingCost": -1.0}, "row 4, column schedulingCost: must be a number of seconds"),
        ({"time": 0.0}, "row 4, column time: must be a time, not before"),
        ({"totalCost_cold_start": 1e-4}, "row 4, column totalCost_cold_start: is less than"),
        ({"deployCodeCost": None}, "row 4, column deployCodeCost"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, change, said):
    table = cold_starts(20).with_row_index()
    for name, value in change.items():
        table = table.with_columns(
            pl.when(pl.col("index") == 3).then(pl.lit(value)).otherwise(pl.col(name)).alias(name)
        )
    table.drop("index").write_csv(tmp_path / "wrong.csv")
    with pytest.raises(TraceError, match=f"wrong.csv, {said}"):
        characterize([tmp_path / "wrong.csv"])


def test_wrong_files_are_refused(trace, tmp_path):
    folder, table = trace
    with pytest.raises(TraceError, match="lies before the end of the file ahead"):
        characterize([folder / "day1.parquet", folder / "day0.csv"])
    table.drop("deployCodeCost", "podID").write_csv(tmp_path / "less.csv")
    with pytest.raises(TraceError, match=r"less.csv: columns deployCodeCost, podID are missing"):
        characterize([tmp_path / "less.csv"])
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match="of no known schema"):
        characterize([tmp_path / "other.csv"])
    (tmp_path / "words.csv").write_text("app,func,end_timestamp,duration\na,f,1.0,2.0\na,f,2.0,x\n")
    with pytest.raises(TraceError, match=r"words.csv, row 2, column duration: is not a number"):
        characterize([tmp_path / "words.csv"])
    with pytest.raises(DataError, match="is no file"):
        characterize([tmp_path / "none.csv"])
    with pytest.raises(DataError, match="no trace is given"):
        characterize([])
    with pytest.raises(DataError, match="cold starts, not requests"):
        load_workload([folder / "day0.csv"])


def test_days_of_huawei_s_schema_follow_each_other(tmp_path):
    table = cold_starts(40).rename({"funcID": "funcName"})
    table = table.with_columns(pl.lit(1).alias("day"), pl.lit(3).alias("userID"))
    table.write_csv(tmp_path / "day1.csv")
    table.with_columns(pl.lit(0).alias("day")).write_csv(tmp_path / "day0.csv")
    found = characterize([tmp_path / "day0.csv", tmp_path / "day1.csv"])
    assert found.span_s > 86_400
    assert found.top[0].name.endswith("---3---pool22-300-128")


def azure_2021(path):
    rows = [f"a,f{at % 3},{10.0 * at + 2.5},2.5" for at in range(60)]
    path.write_text("app,func,end_timestamp,duration\n" + "\n".join(rows) + "\n")
    return path


def test_azure_2021_gives_ends(tmp_path):
    work = load_workload([azure_2021(tmp_path / "new.csv")], runtime="Go1.x")
    assert work.time_s[:3].tolist() == [0.0, 10.0, 20.0]
    assert set(work.duration_s) == {2.5}
    assert {item.runtime for item in work.functions} == {"Go1.x"}
    found = characterize([tmp_path / "new.csv"])
    assert found.quantiles["all"]["duration_s"][2] == pytest.approx(2.5, rel=0.02)
    assert found.fits.keys() == set()  # all durations and gaps are equal


def test_azure_2019_counts_minutes(tmp_path):
    minutes = [str(at) for at in range(1, 61)]
    head = ["HashOwner", "HashApp", "HashFunction", "Trigger", *minutes]
    every_five = ["1" if at % 5 == 0 else "0" for at in range(60)]
    rows = [head, ["o", "a", "f", "timer", *every_five], ["o", "a", "g", "http", *["3"] * 60]]
    with gzip.open(tmp_path / "counts.csv.gz", "wt") as stream:
        stream.write("\n".join(",".join(row) for row in rows) + "\n")
    (tmp_path / "durations.csv").write_text("HashFunction,Average\ng,250\n")
    path = tmp_path / "counts.csv.gz"
    work = load_workload([path], durations=tmp_path / "durations.csv", seed=1)
    timer, caller = work.functions
    assert (timer.trigger, timer.period_s, caller.trigger) == ("TIMER-A", 300.0, "APIG-S")
    assert len(work) == 12 + 180
    assert set(work.duration_s[work.function == 1]) == {0.25}
    assert characterize([path]).num_rows == 192
    text = path.read_bytes()
    path.write_bytes(gzip.compress(gzip.decompress(text).replace(b"g,http,3", b"g,http,-3")))
    with pytest.raises(TraceError, match="row 2, column 1: must be a count"):
        load_workload([path])


def test_fits_recover_their_law():
    rng = np.random.default_rng(2)
    mu, sigma = lognormal_of_moments(3.24, 7.10)
    assert (mu, sigma) == pytest.approx((0.2965, 1.3260), abs=2e-4)
    best = fit_times(rng.lognormal(mu, sigma, 20_000))[0]
    assert best.name == "lognormal"
    assert best.values["sigma"] == pytest.approx(sigma, rel=0.02)
    assert best.ks < 0.01
    best = fit_times(0.4217 * rng.weibull(0.4176, 20_000))[0]
    assert best.name == "weibull"
    assert best.values["shape"] == pytest.approx(0.4176, rel=0.02)


def test_peak_to_trough_of_waves():
    hours = np.arange(24 * 7)
    assert peak_to_trough(np.full(100, 5.0)) == 1.0
    wave = 10 + 5 * np.sin(2 * np.pi * hours / 24)
    assert peak_to_trough(wave) == pytest.approx(15 / 5, rel=0.05)


def state(gaps=(), edges_s=(0.0, 60.0, 120.0), **options):
    edges = np.array(edges_s)
    counts = np.histogram([gap for gap in gaps if gap < edges[-1]], edges)[0]
    values = {
        "function": 0,
        "period_s": 0.0,
        "is_async": True,
        "slots": 1,
        "start_mean_s": 2.0,
        "lead_s": 5.0,
        "edges_s": edges,
        "gaps": counts,
        "num_gaps": len(gaps),
        "num_outside": len(gaps) - int(counts.sum()),
        "sum_squares": int((counts**2).sum()),
    }
    return FunctionState(**(values | options))


def test_hybrid_histogram_takes_head_and_tail():
    policy = HybridHistogram()
    edges = policy.edges_s
    # 100 gaps in minutes 10 to 12: head 10 min less 10 %, tail 13 min and 10 % more.
    plan = policy.plan(state(list(np.linspace(601, 779, 100)), edges), 0.0)
    assert plan == pytest.approx((0.0, 0.9 * 600, 1.1 * 780))
    plan = policy.plan(state([5.0] * 100, edges), 0.0)
    assert plan.keep_s == pytest.approx(66.0)
    even = list(60.0 * np.arange(240) + 1)
    assert policy.plan(state(even, edges), 0.0).keep_s == 60.0
    far = state([20_000.0] * 9, edges, mean_gap_s=20_000.0)
    assert policy.plan(far, 0.0) == pytest.approx((0.0, 0.85 * 20_000, 1.15 * 20_000))


def test_utility_keeps_while_the_start_is_worth_it():
    policy = UtilityAware(wait_cost=10.0)
    # A start of 2 s is worth 22 pod-seconds: gaps of 10 s are kept, of 1000 s are not.
    assert 10 <= policy.plan(state([10.0] * 50, policy.edges_s), 0.0).keep_s < 13
    assert policy.plan(state([1000.0] * 50, policy.edges_s), 0.0).keep_s == 0.0
    assert policy.plan(state([10.0], policy.edges_s), 0.0).keep_s == 60.0


def test_timers_are_dropped_and_brought_back():
    keep, ahead = TimerAware(), TimerPrewarm()
    slow, fast = state(period_s=300.0), state(period_s=8.0)
    assert keep.plan(slow, 0.0).keep_s == 0.0
    order = ahead.orders(slow, [], 1000.0)[0]
    assert (order.start_s, order.until_s) == (1000 + 300 - 5 - 1, 1301)
    assert keep.plan(fast, 0.0).keep_s == 9.0
    assert ahead.orders(fast, [], 0.0) == []
    assert keep.plan(state(), 0.0).keep_s == 60.0


def test_chains_and_forecasts_order_ahead():
    child = state(function=3, lead_s=1.0)
    order = ChainPrewarm().orders(state(mean_duration_s=4.0), [child], 10.0)[0]
    assert (order.function, order.start_s, order.is_firm) == (3, 13.0, True)
    regular = state(mean_gap_s=100.0, gap_spread_s=1.0, num_arrivals=9)
    assert ForecastPrewarm().orders(regular, [], 0.0)[0].start_s == pytest.approx(80.0)
    assert ForecastPrewarm().orders(state(mean_gap_s=100.0, num_arrivals=2), [], 0.0) == []


def test_delay_pools_and_placement_decide():
    waiting = state(num_pods=1, num_queued=9, mean_duration_s=5.0)
    assert AsyncDelay(deadline_s=60).wait_s(waiting) == 60
    assert AsyncDelay(deadline_s=40).wait_s(waiting) == 0
    assert AsyncDelay().wait_s(state(is_async=False, num_pods=1)) == 0
    needs = np.tile([1, 5, 2, 1], 6)
    season = ForecastPool(
        forecaster=SeasonalProfile(4), step_s=900.0, refresh_steps=4, fewest_steps=8
    )
    # A refill spans a step more, so the larger of two needs is there ahead of time.
    assert [season.size(needs[:count]) for count in (20, 21, 22, 23)] == [5, 5, 2, 1]
    assert season.size(needs[:3]) == 5
    assert FixedPool(3).size(needs) == 3
    home, start_s = np.array([0, 1, 1]), np.array([2.0, 0.5])
    rtt_s = np.array([[0.0, 0.2], [0.2, 0.0]])
    assert LeastColdStart().place(home, start_s, rtt_s).tolist() == [1, 1, 1]
    assert LeastColdStart(rtt_weight=10).place(home, start_s, rtt_s).tolist() == [0, 1, 1]


def test_a_pool_that_cannot_forecast_says_so():
    class Failing(SeasonalProfile):
        def predict(self, context, horizon):
            raise ValueError("no model")

    pool = ForecastPool(forecaster=Failing(4), step_s=900.0, refresh_steps=4, fewest_steps=8)
    with pytest.warns(RuntimeWarning, match="RecentQuantiles for .*, which failed"):
        assert pool.size(np.full(8, 3)) == 3
    with pytest.raises(ConfigError, match="level"):
        ForecastPool(forecaster=Failing(4), step_s=900.0, level=1.0)


def test_small_workloads_have_no_more_minute_timers_than_large_ones():
    def minute_timers(per_day, seeds):
        maker = WorkloadGenerator(cold_starts_per_day=per_day, days=0.01)
        works = [maker.make(seed) for seed in seeds]
        count = sum(item.period_s == 60.0 for work in works for item in work.functions)
        return count / (per_day * len(works))

    small, large = minute_timers(500.0, range(200)), minute_timers(40_000.0, range(4))
    assert small == pytest.approx(large, rel=0.5)


def test_generator_keeps_its_promises():
    profile = DemandProfile(holiday_days=(2, 4), first_weekday=0)
    maker = WorkloadGenerator(cold_starts_per_day=2000, days=4, profile=profile)
    work = maker.make(seed=5)
    again = maker.make(seed=5)
    np.testing.assert_array_equal(work.time_s, again.time_s)
    timers = [at for at, item in enumerate(work.functions) if item.period_s]
    for at in timers[:20]:
        gaps = np.diff(work.time_s[work.function == at])
        assert np.allclose(gaps, work.functions[at].period_s)
    heads = [at for at, item in enumerate(work.functions) if item.trigger == "workflow-S"]
    parent = next(at for at in heads if work.functions[at].children)
    child = work.functions[parent].children[0]
    assert (work.function == child).sum() >= (work.function == parent).sum() - 1
    callers = np.isin(work.function, timers, invert=True)
    per_day = np.bincount((work.time_s[callers] // 86_400).astype(int), minlength=4)
    assert per_day[2:4].sum() < 0.9 * per_day[:2].sum()


def test_policies_are_compared_on_the_same_requests():
    work = WorkloadGenerator(cold_starts_per_day=10000, days=2).make(seed=0)
    platform = published_platform(FixedKeepAlive(), scale=0.2)
    found = compare(platform, work, {name: POLICIES[name] for name in ("fixed", "timer")}, seed=0)
    assert [item.name for item in found][-1] == "oracle"
    assert found[0].regret == 0.0
    by_name = {item.name: item for item in found}
    is_timer = np.array([item.period_s > 0 for item in work.functions])

    def timers(name):
        result = by_name[name].result
        return result.is_cold[is_timer[result.function]].sum()

    assert timers("timer") < 0.2 * timers("fixed")
    assert by_name["timer"].result.pod_s < by_name["fixed"].result.pod_s
    assert by_name["oracle"].regret < 0
    with pytest.raises(ConfigError, match="no policy"):
        compare(platform, work, {})


def test_commands_print_json_and_pages(tmp_path, capsys, trace):
    from steelyard.cli.operate.coldstart.characterizing import characterize_trace
    from steelyard.cli.operate.coldstart.simulating import RequestOptions, simulate

    folder, _ = trace
    characterize_trace(folder / "day0.csv", json=True)
    assert json.loads(capsys.readouterr().out)["num_rows"] == 1500
    page = tmp_path / "cold.html"
    small = {"days": 1.0, "cold_starts": 500.0}
    simulate(options=RequestOptions(**small), policies="fixed,timer", json=True, report=page)
    values = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in values["policies"]} == {"fixed", "timer", "oracle"}
    assert "Where the time goes" in page.read_text()
    simulate(azure_2021(tmp_path / "new.csv"), policies="fixed", weights="16 GB")
    assert "oracle" in capsys.readouterr().out
    for wrong, other, said in (
        ({}, {"policies": "best"}, "--policies"),
        ({"days": 0.0}, {}, "--days"),
        ({"slots": 0}, {}, "--slots"),
        ({}, {"weights": "0 GB"}, "--weights"),
        ({"cold_starts": 1e9}, {}, "--cold-starts"),
    ):
        with pytest.raises(ConfigError, match=said):
            simulate(options=RequestOptions(**(small | wrong)), **other)
