import numpy as np
import pytest

from steelyard.errors import CapacityError, ConfigError, TraceError
from steelyard.serve import (
    Request,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    load_trace,
    make_request,
    synthetic_rows,
    with_prompts,
)
from steelyard.serve.simulate import simulate


def config(**changes):
    base = {
        "num_blocks": 32,
        "block_size": 4,
        "token_budget": 16,
        "max_num_seqs": 8,
        "max_model_len": 64,
        "prefix_caching": False,
    }
    return SchedulerConfig(**{**base, **changes})


def request(name, prompt, output=4, start=0):
    params = SamplingParams(max_tokens=output, ignore_end=True)
    return Request(id=name, prompt=list(range(start, start + prompt)), params=params)


def finish_step(scheduler, plan, now_s=0.0):
    return scheduler.complete(plan, plan.blank_output(), now_s)


def drain(scheduler, limit=2000):
    order = []
    for step in range(limit):
        plan = scheduler.schedule(float(step))
        if plan is None:
            return order
        order += [item.id for item in finish_step(scheduler, plan, float(step))]
    raise AssertionError("the scheduler did not come to an end")


def test_decodes_go_first_and_prompts_share_the_rest_of_the_budget():
    scheduler = Scheduler(config())
    scheduler.add(request("a", 4), 0.0)
    finish_step(scheduler, scheduler.schedule(0.0))
    scheduler.add(request("b", 10), 0.0)
    scheduler.add(request("c", 10), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan.request_ids == ["a", "b", "c"]
    assert plan.query_lengths.tolist() == [1, 10, 5]
    assert plan.sampled_ids == ["a", "b"]
    assert plan.sample_rows.tolist() == [0, 10]
    assert plan.num_decodes == 1
    assert plan.features().tolist() == [1, 3, 15, 55 + 15, 1, 5, 8]


def test_a_long_prompt_is_cut_into_chunks_that_fill_the_budget():
    scheduler = Scheduler(config())
    scheduler.add(request("a", 40), 0.0)
    sizes = []
    while not scheduler.running or scheduler.running[0].num_computed < 40:
        plan = scheduler.schedule(0.0)
        sizes.append(plan.num_tokens)
        finish_step(scheduler, plan)
    assert sizes == [16, 16, 8]


def test_the_latest_arrival_is_preempted_and_returns_to_its_place():
    scheduler = Scheduler(config(num_blocks=7, max_model_len=24))
    for index, name in enumerate("abc"):
        scheduler.add(request(name, 8, output=12, start=index * 8), 0.0)
    scheduler.add(request("d", 4, output=2), 0.0)
    preempted = None
    while preempted is None:
        finish_step(scheduler, scheduler.schedule(0.0))
        preempted = next((item for item in scheduler.waiting if item.num_preemptions), None)
    assert preempted.id == scheduler.waiting[0].id == "b"
    assert [item.id for item in scheduler.waiting] == ["b", "c", "d"]
    assert drain(scheduler)[:2] == ["a", "b"]
    assert scheduler.pool.num_in_use == 0
    assert len(preempted.output) == 12


def test_equal_prefixes_are_computed_once_but_the_last_token_always_runs():
    scheduler = Scheduler(config(prefix_caching=True))
    scheduler.add(request("a", 16), 0.0)
    drain(scheduler)
    scheduler.add(request("b", 16), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan.num_tokens == 4
    assert plan.positions.tolist() == [12, 13, 14, 15]
    finish_step(scheduler, plan)
    drain(scheduler)
    assert scheduler.pool.num_in_use == 0


def test_abort_gives_blocks_back_between_steps():
    scheduler = Scheduler(config())
    scheduler.add(request("a", 8), 0.0)
    scheduler.add(request("b", 40), 0.0)
    plan = scheduler.schedule(0.0)
    assert scheduler.abort("a").finish_reason == "abort"
    assert scheduler.abort("a") is None
    assert finish_step(scheduler, plan) == []
    assert drain(scheduler) == ["b"]
    assert scheduler.pool.num_in_use == 0


@pytest.mark.parametrize("seed", range(6))
def test_every_request_ends_within_all_limits_and_plans_repeat(seed):
    limits = config(num_blocks=20, prefix_caching=bool(seed % 2))
    generator = np.random.default_rng(seed)
    rows = synthetic_rows(
        generator,
        num_requests=40,
        rate_per_s=2.0,
        mean_prompt=20,
        mean_output=12,
        max_prompt=40,
        max_output=24,
    )
    trace = list(with_prompts(rows, generator, vocab_size=3))
    histories = []
    for _ in range(2):
        scheduler, history, now_s = Scheduler(limits), [], 0.0
        requests = [make_request(item, row) for row, item in enumerate(trace)]
        pending = list(requests)
        while pending or scheduler.has_work:
            while pending and pending[0].arrival_s <= now_s:
                scheduler.add(pending.pop(0), now_s)
            plan = scheduler.schedule(now_s)
            now_s += 0.1
            if plan is None:
                continue
            assert plan.num_tokens <= limits.token_budget
            assert len(plan.request_ids) <= limits.max_num_seqs
            assert len(set(plan.slot_mapping.tolist())) == plan.num_tokens
            assert [item.order for item in scheduler.running] == sorted(
                item.order for item in scheduler.running
            )
            history.append(
                (plan.request_ids, plan.query_lengths.tolist(), plan.slot_mapping.tolist())
            )
            finish_step(scheduler, plan, now_s)
            assert 0 <= scheduler.kv_utilization() <= 1
        assert all(
            len(item.output) == row.output_tokens for item, row in zip(requests, trace, strict=True)
        )
        assert scheduler.pool.num_in_use == 0
        histories.append(history)
    assert histories[0] == histories[1]


def test_limits_that_contradict_each_other_are_refused():
    with pytest.raises(CapacityError, match="cannot hold one sequence"):
        config(num_blocks=4)
    for changes in (
        {"block_size": 12},
        {"max_num_seqs": 17},
        {"token_budget": 0},
        {"watermark_fraction": 1.0},
    ):
        with pytest.raises(ConfigError):
            config(**changes)


def test_requests_that_could_never_finish_are_refused():
    scheduler = Scheduler(config())
    scheduler.add(request("a", 4), 0.0)
    for bad, message in (
        (request("b", 61, 4), "exceed the model length 64"),
        (request("b", 0), "empty"),
        (request("a", 4), "in flight"),
    ):
        with pytest.raises(ConfigError, match=message):
            scheduler.add(bad, 0.0)
    for changes in (
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"top_k": -1},
        {"seed": -1},
        {"temperature": float("nan")},
    ):
        with pytest.raises(ConfigError, match=next(iter(changes))):
            SamplingParams(**changes)


def test_traces_repeat_and_bad_rows_are_named(tmp_path):
    rows, again = (
        synthetic_rows(np.random.default_rng(3), num_requests=20, rate_per_s=1.0) for _ in range(2)
    )
    assert rows == again
    first, second = (
        list(with_prompts(rows, np.random.default_rng(3), vocab_size=50)) for _ in range(2)
    )
    assert first == second
    with pytest.raises(ConfigError, match="vocabulary of 0"):
        list(with_prompts(rows, np.random.default_rng(3), vocab_size=0))
    assert first[0].arrival_s == 0.0
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n1.0,5,6\n2.0,3,4\n")
    rows = load_trace(path, np.random.default_rng(0), vocab_size=10)
    assert [(row.arrival_s, len(row.prompt), row.output_tokens) for row in rows] == [
        (1.0, 5, 6),
        (2.0, 3, 4),
    ]
    for body, message in (
        ("arrival_s,prompt_tokens,output_tokens\n1,2,3\n1,x,3\n", "line 3"),
        ("arrival_s,prompt_tokens,output_tokens\n1,0,3\n", "prompt_tokens is 0"),
        ("arrival_s,prompt_tokens,output_tokens\nnan,1,3\n", "arrival_s is nan"),
        ("arrival_s,prompt_tokens\n1,2\n", "no column 'output_tokens'"),
        ("arrival_s,prompt_tokens,output_tokens\n", "no rows"),
        (
            "arrival_s,prompt_tokens,output_tokens\n2,1,1\n1,1,1\n",
            "line 3: arrival_s is 1 s, before",
        ),
    ):
        path.write_text(body)
        with pytest.raises(TraceError, match=message):
            load_trace(path, np.random.default_rng(0), vocab_size=10)
    with pytest.raises(TraceError, match="cannot read"):
        load_trace(tmp_path / "absent.csv", np.random.default_rng(0), vocab_size=10)


def test_planning_ahead_in_virtual_time_plans_what_an_asynchronous_engine_does():
    generator = np.random.default_rng(1)
    rows = synthetic_rows(generator, num_requests=30, rate_per_s=20.0, max_prompt=40, max_output=20)
    trace = list(with_prompts(rows, generator, vocab_size=9))
    replays = {
        ahead: simulate(
            Scheduler(config()),
            trace,
            lambda plan: 0.01 + 0.001 * plan.num_tokens,
            make_request,
            asynchronous=ahead,
        )
        for ahead in (False, True)
    }
    assert not any(len(plan.feedback) for plan in replays[False].plans)
    assert sum(len(plan.feedback) for plan in replays[True].plans) > 300
    served = {ahead: replay.timeline.output_tokens.tolist() for ahead, replay in replays.items()}
    assert served[True] == served[False] == [item.output_tokens for item in trace]
