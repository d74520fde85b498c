import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.cost.vector_search import SearchPoint, queue_cycles
from steelyard.errors import DataError
from steelyard.sim.pipeline import (
    ScaleOut,
    SearchPipeline,
    latency_sampler,
    run_tandem,
    systolic_select,
)

POINT = SearchPoint(num_vectors=10**7, nlist=4096, nprobe=8, k=10)


@given(st.lists(st.floats(0, 9, width=32), max_size=60), st.integers(1, 12))
def test_a_systolic_queue_keeps_the_smallest_in_the_cycles_of_the_model(values, length):
    kept, cycles = systolic_select(np.array(values, dtype=np.float32), length)
    wanted = [*sorted(values)[:length], *[np.inf] * (length - len(values))]
    assert kept.tolist() == wanted
    # Filling and reading ahead are 10 cycles more.
    assert cycles + 10 == queue_cycles(length, len(values))


def slow_tandem(arrivals, stage_s, depth):
    """Move queries one event at a time."""
    queries, stages = stage_s.shape
    waiting = [list(range(queries)), *[[] for _ in range(stages - 1)]]
    busy = [None] * stages
    left = np.zeros((queries, stages))
    now = 0.0
    while (left[:, -1] == 0).any():
        moved = True
        while moved:
            moved = False
            for stage in reversed(range(stages)):
                if busy[stage] and busy[stage][1] <= now:
                    query = busy[stage][0]
                    is_last = stage + 1 == stages
                    if is_last or len(waiting[stage + 1]) < depth:
                        left[query, stage] = now
                        busy[stage], moved = None, True
                        if not is_last:
                            waiting[stage + 1].append(query)
                if not busy[stage] and waiting[stage]:
                    query = waiting[stage][0]
                    if stage or arrivals[query] <= now:
                        waiting[stage].pop(0)
                        busy[stage], moved = (query, now + stage_s[query, stage]), True
        later = [item[1] for item in busy if item and item[1] > now]
        if waiting[0] and arrivals[waiting[0][0]] > now:
            later.append(arrivals[waiting[0][0]])
        now = min(later, default=now)
    return left


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_tandem_equals_one_event_at_a_time(depth):
    rng = np.random.default_rng(depth)
    arrivals = np.cumsum(rng.exponential(1.0, 40))
    stage_s = rng.exponential(0.8, (40, 4))
    fast = run_tandem(arrivals, stage_s, depth=depth)
    assert fast == pytest.approx(slow_tandem(arrivals, stage_s, depth))


def test_a_pipeline_runs_at_the_rate_of_its_slowest_stage():
    config = {"scan_units": 9, "selection_queues": (18, 1)}
    fixed = {"rotation": 1e-6, "cell distances": 2e-5}
    run = SearchPipeline(POINT, config, fixed, hz=140e6).run(80)
    codes = POINT.cell_codes(9)
    scan_s = POINT.nprobe * (2 + 256 + 9 - 1 + 63 + codes) / 140e6
    assert run.queries_per_s == pytest.approx(1 / scan_s, rel=0.05)
    alone = SearchPipeline(POINT, config, fixed, hz=140e6).run(80, rate_per_s=100.0)
    assert np.median(alone.latency_s) == pytest.approx(np.median(run.stage_s.sum(axis=1)), rel=0.1)


def test_more_accelerators_wait_for_the_slowest():
    single = latency_sampler({0.0: 1.0, 1.0: 2.0})
    network = ScaleOut(base_s=0.5, per_accelerator_s=0.1)
    means = [network.latencies_s(single, count).mean() for count in (1, 2, 4)]
    # The mean largest of n uniform draws is n / (n + 1).
    assert means == pytest.approx([1.5, 1 + 2 / 3 + 0.7, 1.8 + 0.9], abs=0.01)
    measured = {
        count: {0.5: float(np.median(network.latencies_s(single, count, seed=1)))}
        for count in (2, 4, 8)
    }
    fitted = ScaleOut.fitted(single, measured, seed=1)
    assert (fitted.base_s, fitted.per_accelerator_s) == pytest.approx((0.5, 0.1), abs=1e-6)


def test_distributions_that_are_none_are_refused():
    with pytest.raises(DataError, match="two quantiles"):
        latency_sampler({0.5: 1.0})
    with pytest.raises(DataError, match="do not fall"):
        latency_sampler({0.1: 2.0, 0.9: 1.0})
    with pytest.raises(DataError, match="two numbers of accelerators"):
        ScaleOut.fitted(latency_sampler({0.1: 1.0, 0.9: 2.0}), {2: {0.5: 1.0}})
