"""The serverless platform: the compiled loop equals the event loop, and both keep their books."""

import heapq
from dataclasses import dataclass, field

import numpy as np
import pytest

from steelyard.errors import ConfigError, TraceError
from steelyard.operate.coldstart import (
    AsyncDelay,
    ChainPrewarm,
    FixedKeepAlive,
    FixedPool,
    ForecastPool,
    ForecastPrewarm,
    HybridHistogram,
    KeepAliveOracle,
    LeastColdStart,
    TimerAware,
    TimerPrewarm,
    UtilityAware,
)
from steelyard.operate.forecast import RecentQuantiles, SeasonalProfile
from steelyard.operate.forecast.blending import BlendedForecaster
from steelyard.sim.serverless import (
    CloudFunction,
    EmpiricalQuantiles,
    IdlePlan,
    Platform,
    Pool,
    Schedulers,
    StartUp,
    Workload,
    replay,
    run,
)
from steelyard.sim.serverless.heap import PRIORITY, make_heap, pop, push, widen
from steelyard.sim.serverless.published import (
    pool_stages,
    published_mix,
    published_platform,
    published_start_ups,
)

CURVE = EmpiricalQuantiles.from_curve
CONSTANT = EmpiricalQuantiles.constant


def start_up(scale, is_pooled):
    parts = {
        "pod_allocation": CURVE([0, 1], [0.1, scale]),
        "code": CURVE([0, 0.5, 1], [0, 0.2, scale], share=0.5),
        "scheduling": CURVE([0, 1], [0.0, 0.3]),
    }
    coupled = np.array([[1, 0, 0.3], [0, 1, 0.4], [0.3, 0.4, 1]])
    return StartUp(parts, coupled, is_pooled=is_pooled)


def small_workload(rng, regions):
    count = int(rng.integers(1, 8))
    functions = [
        CloudFunction(
            name=str(at),
            runtime=str(rng.choice(["a", "b"])),
            size_class=str(rng.choice(["s", "l"])),
            trigger=str(rng.choice(["TIMER-A", "x-S"])),
            slots=int(rng.integers(1, 4)),
            period_s=float(rng.choice([0, 0, 5, 30, 120])),
            home=str(rng.choice(regions)),
            children=tuple(rng.integers(0, count, int(rng.integers(0, 3))).tolist()),
        )
        for at in range(count)
    ]
    requests, horizon_s = int(rng.integers(0, 300)), float(rng.choice([200, 3000, 20_000]))
    time_s = np.sort(rng.uniform(0, horizon_s, requests))
    duration_s = rng.exponential(rng.choice([0.5, 5, 40]), requests)
    # Whole seconds make events of one time, whose order must agree as well.
    if rng.random() < 0.5:
        time_s = np.round(time_s)
    if rng.random() < 0.3:
        duration_s = np.round(duration_s)
    return Workload(functions, time_s, rng.integers(0, count, requests), duration_s, horizon_s)


def small_platform(rng, work, regions):
    keep_alive = [
        FixedKeepAlive(default_s=float(rng.choice([0, 10, 60]))),
        HybridHistogram(),
        UtilityAware(wait_cost=float(rng.choice([1, 30]))),
        TimerAware(),
        TimerAware(base=UtilityAware()),
        TimerAware(base=HybridHistogram(minutes=2)),
        KeepAliveOracle(work),
    ][int(rng.integers(7))]
    ahead = (TimerPrewarm(), ChainPrewarm(), ForecastPrewarm(margin=0.6))
    season = BlendedForecaster([SeasonalProfile(5), RecentQuantiles(9)], horizon=2)
    forecast = ForecastPool(
        forecaster=season, step_s=50.0, refresh_steps=4, refit_steps=8, fewest_steps=6
    )
    sizers = [FixedPool(int(rng.integers(0, 6))), forecast]
    pools = tuple(
        Pool(size, sizers[int(rng.integers(2))], refill_s=float(rng.choice([3, 10.2])))
        for size in "sl"
    )
    has_pools = rng.random() < 0.6
    return Platform(
        start_ups={"a": start_up(1, True), "b": start_up(3, False)},
        keep_alive=keep_alive,
        regions=regions,
        rtt_s=0.05 * (1 - np.eye(len(regions))),
        clusters=int(rng.integers(1, 4)),
        pools=pools if has_pools else (),
        stages=tuple(CONSTANT(value) for value in (0.001, 0.02, 2.0)) if has_pools else (),
        schedulers=Schedulers(2, 0.2) if rng.random() < 0.5 else None,
        prewarm=tuple(item for item in ahead if rng.random() < 0.5),
        placement=LeastColdStart() if rng.random() < 0.5 else None,
        delay=AsyncDelay(deadline_s=20) if rng.random() < 0.5 else None,
        step_s=50.0,
    )


def assert_equal(ours, theirs):
    for name in ours.__dataclass_fields__:
        mine, other = getattr(ours, name), getattr(theirs, name)
        if name == "pool_s":
            assert mine == pytest.approx(other)
        elif name != "num_events":  # the event loop lets an expiry pass, the compiled one moves it
            np.testing.assert_array_equal(mine, other, err_msg=name)


@pytest.mark.parametrize("seed", range(40))
def test_compiled_loop_equals_policy_classes_step_for_step(seed):
    rng = np.random.default_rng(seed)
    regions = tuple(f"r{at}" for at in range(int(rng.integers(1, 4))))
    work = small_workload(rng, regions)
    platform = small_platform(rng, work, regions)
    ours = run(platform, work, seed)
    assert_equal(ours, replay(platform, work, seed))
    parts = ours.starting_s + ours.busy_s.sum()
    assert parts <= ours.pod_s + 1e-6
    served = np.isfinite(ours.wait_s)
    assert (ours.wait_s[served] >= 0).all()
    assert (ours.status[served] >= 0).all()


def one_function(times, *, keep_s=60.0, slots=1, duration_s=1.0, horizon_s=1000.0, **options):
    platform = Platform(
        start_ups={"r": StartUp({"start": CONSTANT(2.0)})},
        keep_alive=FixedKeepAlive(default_s=keep_s),
        **options,
    )
    functions = [CloudFunction(name="f", runtime="r", slots=slots, trigger="x-A")]
    count = len(times)
    work = Workload(
        functions, np.array(times, float), np.zeros(count), np.full(count, duration_s), horizon_s
    )
    return platform, work


def test_a_pod_is_kept_for_its_time_after_the_last_request():
    # The start takes 2 s and the request 1 s: idle from 3 s on, gone at 63 s.
    ours = run(*one_function([0.0, 62.9, 63.0, 200.0]), 0)
    assert ours.status.tolist() == [1, 0, 1, 1]
    assert ours.wait_s.tolist() == pytest.approx([2.0, 0.0, 2.0, 2.0])
    assert ours.end_s.tolist() == pytest.approx([123.9, 126.0, 263.0])
    assert ours.utility_ratios().tolist() == pytest.approx([61.9 / 2, 0.5, 0.5])


def test_slots_share_a_start():
    ours = run(*one_function([0.0, 0.5, 1.0, 1.5], slots=3), 0)
    assert ours.status.tolist() == [1, 2, 2, 1]
    assert ours.wait_s.tolist() == pytest.approx([2.0, 1.5, 1.0, 2.0])
    assert ours.peak_pods == 2


def test_delay_serves_a_burst_with_one_pod():
    platform, work = one_function([float(at) for at in range(20)], duration_s=2.0)
    held = run(platform.with_policies(delay=AsyncDelay(deadline_s=60.0)), work, 0)
    # Nothing has ended when the second comes: its expected wait is still 0.
    assert held.peak_pods == 1
    assert held.wait_s.max() < 60
    assert run(platform, work, 0).peak_pods > 1


def test_pods_alive_at_the_horizon_are_censored():
    ours = run(*one_function([0.0, 990.0]), 0)
    assert np.isinf(ours.end_s).tolist() == [False, True]
    assert len(ours.utility_ratios()) == 1
    assert ours.pod_s == pytest.approx(63.0 + 10.0)


def test_a_caller_s_own_policy_runs():
    @dataclass
    class Never:
        default_s: float = 0.0
        is_cached: bool = True
        edges_s: np.ndarray = field(default_factory=lambda: np.array([0.0, 1.0]))

        def plan(self, state, now_s):
            return IdlePlan(0.0)

    platform, work = one_function([0.0, 10.0, 20.0])
    assert run(platform.with_policies(keep_alive=Never()), work, 0).num_cold_starts == 3


def test_pools_are_searched_wider_and_then_left():
    functions = [CloudFunction(name=str(at), runtime="r", size_class="s") for at in range(3)]
    work = Workload(functions, np.zeros(3), np.arange(3), np.ones(3), 100.0)
    platform = Platform(
        start_ups={"r": StartUp({"pod_allocation": CONSTANT(5.0)})},
        keep_alive=FixedKeepAlive(),
        clusters=2,
        pools=(Pool("s", FixedPool(2)),),
        stages=(CONSTANT(0.1), CONSTANT(0.2), CONSTANT(9.0)),
    )
    ours = run(platform, work, 0)
    # Functions 0 and 2 live in cluster 0; 1 empties its own, and both pods are gone for 2.
    assert ours.stage.tolist() == [0, 0, 2]
    assert ours.wait_s.tolist() == pytest.approx([0.1, 0.1, 9.0])
    assert ours.pool_s == pytest.approx(200.0)


def test_start_parts_follow_their_curves_and_correlations():
    correlation = np.array([[1.0, 0.8], [0.8, 1.0]])
    item = StartUp({"a": CURVE([0, 1], [0, 1]), "b": CURVE([0, 1], [0, 1], share=0.4)}, correlation)
    drawn = item.sample(20_000, seed=3)
    assert np.quantile(drawn[:, 0], [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.015)
    assert (drawn[:, 1] > 0).mean() == pytest.approx(0.4, abs=0.015)
    both = drawn[drawn[:, 1] > 0]
    assert both[:, 0].mean() > 0.65  # the part is there when the other is long
    assert drawn.sum(axis=1).mean() == pytest.approx(
        sum(p.mean_s for p in item.parts.values()), 0.02
    )
    np.testing.assert_array_equal(drawn[:50], item.sample(50, seed=3))


def test_an_engine_starts_as_fast_as_its_weights_come():
    engine = StartUp.of_bytes(16e9, 2e9, process_s=0.5, imports_s=8, warm_up_s=10)
    assert {name: part.mean_s for name, part in engine.parts.items()} == pytest.approx(
        {"process": 0.5, "imports": 8.0, "weights": 8.0, "warm_up": 10.0}
    )
    with pytest.raises(ConfigError, match="above 0"):
        StartUp.of_bytes(1, 0, process_s=0, imports_s=0, warm_up_s=0)


def popped(heap):
    event = heap.events[pop(heap)]
    return event["key"] // PRIORITY, event["first"]


def test_heap_orders_as_the_event_loop_does():
    rng = np.random.default_rng(0)
    heap, reference = make_heap(64), []
    for sequence in range(500):
        if len(reference) + 1 == len(heap.events):
            heap = widen(heap)
        at, priority = float(rng.integers(20)), int(rng.integers(6))
        push(heap, at, priority, sequence, -sequence, 0.5 * sequence)
        heapq.heappush(reference, (at, priority, sequence))
        if rng.random() < 0.4:
            _, priority, first = heapq.heappop(reference)
            assert popped(heap) == (priority, first)
    while reference:
        _, priority, first = heapq.heappop(reference)
        assert popped(heap) == (priority, first)


def test_published_region_is_whole():
    start_ups = published_start_ups()
    assert {name for _, name in published_mix()} <= set(start_ups)
    assert sum(published_mix().values()) == pytest.approx(1.0)
    own, other, none = (stage.values_s[100] for stage in pool_stages())
    # Published medians of the three stages: 0.2 ms, 12 ms and 10.2 s.
    assert own == pytest.approx(2e-4, rel=0.1)
    assert other == pytest.approx(12.3e-3, rel=0.1)
    assert none == pytest.approx(10.2, rel=0.01)
    assert published_platform(FixedKeepAlive(), scale=0.1).part_names[0] == "pod_allocation"


def test_workload_scales_by_functions():
    rng = np.random.default_rng(1)
    work = small_workload(rng, ("r0",))
    twice = work.scale(2.0)
    assert len(twice) == 2 * len(work)
    assert len(twice.functions) == 2 * len(work.functions)
    assert (np.diff(twice.time_s) >= 0).all()
    half = twice.scale(0.5, seed=4)
    assert len(half.functions) == len(work.functions)


def test_wrong_input_is_refused():
    function = [CloudFunction(name="f", runtime="r")]
    with pytest.raises(TraceError, match=r"row 1, time_s is 1\.0"):
        Workload(function, [2.0, 1.0], [0, 0], [1, 1])
    with pytest.raises(TraceError, match=r"row 0, duration_s is -1\.0"):
        Workload(function, [2.0], [0], [-1.0])
    with pytest.raises(TraceError, match=r"function is 3, but must be in \[0, 1\)"):
        Workload(function, [2.0], [3], [1.0])
    platform, work = one_function([1.0])
    with pytest.raises(ConfigError, match="start-ups are known of r"):
        run(platform, Workload([CloudFunction(name="f", runtime="x")], [1.0], [0], [1.0]), 0)
    pooled = platform.with_policies(
        pools=(Pool("300-128", FixedPool(1)),), stages=(CONSTANT(1.0),) * 3, pool_part="start"
    )
    with pytest.raises(TraceError, match="pools are 300-128"):
        run(pooled, work, 0)
    with pytest.raises(ConfigError, match="seed"):
        run(platform, work, -1)
    with pytest.raises(ConfigError, match="rising quantiles"):
        EmpiricalQuantiles(np.linspace(1, 0, 201))
    with pytest.raises(ConfigError, match="correlation"):
        StartUp({"a": CONSTANT(1), "b": CONSTANT(1)}, np.array([[1.0, 2.0], [2.0, 1.0]]))
