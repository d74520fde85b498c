from collections import defaultdict

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.serve.conftest import Shuffled

from steelyard.data.tiers.transfers import Tiers, Transfer
from steelyard.errors import CapacityError, TraceError
from steelyard.serve import Scheduler, SchedulerConfig, TraceRequest, make_request
from steelyard.serve.driver import Driver
from steelyard.serve.kv.tiers import TieredKV, make_store
from steelyard.serve.replay import drive_replay
from steelyard.serve.running.runner import TorchRunner
from steelyard.serve.simulate import ModelRunner, ModelTiers, VirtualClock, simulate


def one_at_a_time():
    return Scheduler(SchedulerConfig(num_blocks=8, max_num_seqs=1, max_model_len=64))


def jobs(*pairs):
    return [
        TraceRequest(arrival_s=arrival_s, prompt=[7], output_tokens=count)
        for arrival_s, count in pairs
    ]


def run(trace, seconds=1.0, **options):
    return simulate(one_at_a_time(), trace, lambda plan: seconds, **options)


def test_a_queue_of_two_takes_the_times_worked_out_by_hand():
    result = run(jobs((0.0, 2), (0.5, 3)))
    assert result.timeline.first_token_s.tolist() == [1.0, 3.0]
    assert result.timeline.last_token_s.tolist() == [2.0, 5.0]
    assert result.summary()["serve.makespan"] == 5.0
    assert result.source == "serve.simulate"


def test_an_arrival_at_a_steps_end_joins_the_next_step():
    assert run(jobs((0.0, 1), (1.0, 1))).timeline.last_token_s.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_idle_engine_waits_for_the_next_arrival(asynchronous):
    trace = jobs((0.5, 1), (10.1, 1), (20.7, 1))
    result = run(trace, seconds=0.25, asynchronous=asynchronous)
    assert result.timeline.first_token_s.tolist() == [0.75, 10.1 + 0.25, 20.7 + 0.25]
    assert result.timeline.step_s.tolist() == [0.25, 0.25, 0.25]


def test_an_empty_trace_and_a_stuck_scheduler_are_refused():
    with pytest.raises(TraceError, match="no request"):
        run([])
    stuck = one_at_a_time()
    stuck.schedule = lambda now_s: None
    with pytest.raises(CapacityError, match="2 of 2"):
        simulate(stuck, jobs((0.0, 1), (3.0, 1)), lambda plan: 1.0)


def test_transfers_land_when_the_model_says():
    clock = VirtualClock()
    tiers = ModelTiers(clock, lambda item: float(item.runs[:, 2].sum()))
    sizes = {4: 3, 5: 1, 6: 2}
    tiers.submit(
        Transfer(id=name, request_id="a", direction="in", runs=np.array([[0, 0, count]]))
        for name, count in sizes.items()
    )
    assert (tiers.num_under_way, tiers.landed(), tiers.failed()) == (3, [], [])
    tiers.wait()
    assert (clock.now_s(), tiers.landed(), tiers.took_s) == (1.0, [5], {5: 1.0})
    tiers.wait([4, 6])
    assert (clock.now_s(), tiers.landed(), tiers.took_s) == (3.0, [6, 4], {6: 2.0, 4: 3.0})
    tiers.wait()
    assert (clock.now_s(), tiers.num_under_way) == (3.0, 0)


def test_a_driver_without_tiers_refuses_a_plan_with_transfers():
    with pytest.raises(AssertionError, match="needs tiers"):
        Tiers().submit([])


class TimedRunner(ModelRunner):
    """A real runner whose steps take the time of the model."""

    def __init__(self, runner, clock, step_time_s):
        super().__init__(clock, step_time_s)
        self.runner = runner

    def launch(self, plan):
        return Both(super().launch(plan), self.runner.launch(plan))


class Both:
    def __init__(self, model, real):
        self.model, self.real = model, real

    def result(self):
        self.model.result()
        return self.real.result()


class TimedTiers(ModelTiers):
    """Real copies at once, which are told as landed when the model says."""

    def __init__(self, real, clock, transfer_time_s):
        super().__init__(clock, transfer_time_s)
        self.real = real

    def submit(self, transfers):
        self.real.submit(transfers)
        self.real.wait([item.id for item in transfers])
        assert sorted(self.real.landed()) == sorted(item.id for item in transfers)
        super().submit(transfers)

    def close(self):
        self.real.close()


def step_time_s(plan):
    return 0.004 + 0.0003 * plan.num_tokens + 1e-6 * int(plan.context_lengths.sum())


@st.composite
def loads(draw):
    """Requests that share a prefix or nothing; no output can be mistaken for another's prompt."""
    shared, requests, arrival_s = list(range(80, 96)), [], 0.0
    for index in range(draw(st.integers(2, 9))):
        arrival_s += draw(st.sampled_from([0.0, 0.0, 0.003, 0.017, 0.3]))
        own = [index + 1] * draw(st.integers(1, 14))
        requests.append(
            TraceRequest(
                arrival_s=arrival_s,
                prompt=[*shared, *own] if draw(st.booleans()) else own,
                output_tokens=draw(st.integers(1, 16)),
                client="abc"[index % 3],
            )
        )
    return requests


swapping = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(12, 20),
        "token_budget": st.integers(6, 32),
        "max_num_seqs": st.integers(2, 6),
        "prefix_caching": st.booleans(),
        "update_every": st.integers(0, 4),
        "preemption": st.sampled_from(["swap", "swap", "recompute"]),
        "host_blocks": st.integers(12, 40),
        "allocator": st.sampled_from(["paged", "block-group"]),
        "keep_turns": st.booleans(),
        "reuse_host_copies": st.booleans(),
        "policy": st.sampled_from(["fcfs", "vtc"]),
    }
)

crowded = [
    TraceRequest(arrival_s=0.002 * row, prompt=[row + 1] * 12, output_tokens=16) for row in range(9)
]
tight = {"num_blocks": 14, "token_budget": 24, "max_num_seqs": 6, "prefix_caching": False}
tight |= {"preemption": "swap", "host_blocks": 40, "update_every": 3}


def log(plans):
    """All that a plan says, but for the tokens, which only a model knows."""
    lines = defaultdict(list)
    for plan in plans:
        for name in [
            "positions",
            "slot_mapping",
            "query_lengths",
            "context_lengths",
            "block_tables",
            "sample_rows",
            "output_positions",
            "feedback",
            "copies",
        ]:
            lines[name].append(getattr(plan, name).tolist())
        lines["requests"].append((plan.request_ids, plan.num_decodes, plan.sampled_ids))
        lines["transfers"].append(
            [
                (item.id, item.request_id, item.direction, item.runs.tolist())
                for item in plan.transfers
            ]
        )
    return lines


@settings(max_examples=8, deadline=None)
@given(loads(), swapping, st.booleans(), st.booleans(), st.sampled_from([0.0, 0.0004, 0.01]))
@example(crowded, tight, True, False, 0.002)
@example(crowded, tight, True, True, 0.002)
def test_engine_and_simulator_make_the_same_plans(
    model, trace, limits, shuffled, asynchronous, block_s
):
    config = SchedulerConfig(block_size=4, max_model_len=48, **limits)

    def scheduler():
        return Scheduler(config, policy=Shuffled() if shuffled else None)

    def transfer_time_s(item):
        return 0.0001 + block_s * int(item.runs[:, 2].sum())

    clock = VirtualClock()
    runner = TorchRunner(model, config, compiled=False)
    tiers = TimedTiers(
        TieredKV(runner.kv, make_store(runner.kv, config.host_blocks)), clock, transfer_time_s
    )
    driver = Driver(
        scheduler(),
        TimedRunner(runner, clock, step_time_s),
        clock,
        tiers=tiers,
        asynchronous=asynchronous,
    )
    real = drive_replay(driver, [make_request(item, row) for row, item in enumerate(trace)])
    driver.settle()
    tiers.close()
    simulated = simulate(
        scheduler(), trace, step_time_s, transfer_time_s=transfer_time_s, asynchronous=asynchronous
    )
    assert log(real.plans) == log(simulated.plans)
    for name in ("first_token_s", "last_token_s", "kv_utilization"):
        assert getattr(real.timeline, name).tolist() == getattr(simulated.timeline, name).tolist()
    assert driver.scheduler.num_swaps > 5 or limits is not tight
