"""Which expert runs next, which stay in memory, and a node that serves them."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import catalog
from steelyard.errors import ConfigError
from steelyard.plan.experts import CompositionLoad, expert_node, plan_composition
from steelyard.serve.experts import ExpertQueue, ExpertResidency, PendingPrompt
from steelyard.sim.experts import run_composition, zipf_popularity


def _prompts(experts, spacing_s=0.0):
    return [PendingPrompt(row, expert, row * spacing_s) for row, expert in enumerate(experts)]


def _run(experts, order, *, capacity=1, spacing_s=0.0, prefetch=False, max_wait_s=1e9):
    queue = ExpertQueue(order, max_batch=2, max_wait_s=max_wait_s)
    return run_composition(
        _prompts(experts, spacing_s),
        queue,
        ExpertResidency(capacity),
        run_s=lambda count: 1.0,
        switch_s=lambda expert: 10.0,
        prefetch=prefetch,
    )


def test_orders_differ_in_how_often_they_switch():
    experts = [0, 1, 0, 1, 0, 1]
    # One after the other: a switch each; grouped in pairs: 0 0, 1 1, 0, 1.
    assert _run(experts, "fcfs").switches == 6
    assert _run(experts, "grouped").switches == 4
    assert _run(experts, "least-switch").switches == 2
    assert _run(experts, "fcfs").end_s == 66


def test_the_oldest_goes_first_once_it_waits_too_long():
    bounded = _run([0, 1, 0, 1, 0, 1], "least-switch", max_wait_s=10.5)
    # At 11 s the prompts of expert 1 are overdue, although expert 0, in memory, has one more.
    assert bounded.switches == 4
    assert _run([0, 1, 0, 1, 0, 1], "least-switch", max_wait_s=100).switches == 2


def test_what_was_used_last_stays():
    held = ExpertResidency(2)
    assert [held.use(item) for item in (0, 1, 0, 2, 1)] == [False, False, True, False, False]
    assert 0 not in held
    assert 2 in held


def test_prefetch_hides_the_switch_behind_the_batch():
    plain = _run([0, 1, 2, 3], "fcfs", capacity=1)
    ahead = _run([0, 1, 2, 3], "fcfs", capacity=1, prefetch=True)
    assert plain.end_s == 44
    # The first switch is bare; each further one begins with the batch before it.
    assert ahead.end_s == 10 + 3 * 10 + 1
    assert ahead.switches == 4


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=30),
    st.sampled_from(["fcfs", "grouped", "least-switch"]),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.7, 5.0]),
    st.booleans(),
)
def test_every_prompt_runs_once_and_time_adds_up(experts, order, capacity, spacing_s, prefetch):
    seen = _run(experts, order, capacity=capacity, spacing_s=spacing_s, prefetch=prefetch)
    assert (seen.run_s == 1).all()
    assert (seen.wait_s >= 0).all()
    ends = np.arange(len(experts)) * spacing_s + seen.wait_s + seen.switch_s + seen.run_s
    assert seen.end_s == pytest.approx(ends.max())
    assert len(set(experts)) <= seen.switches <= seen.batches + prefetch * seen.batches


def test_shares_are_a_distribution():
    assert zipf_popularity(150, 0.8).sum() == pytest.approx(1)
    assert zipf_popularity(3, 0).tolist() == pytest.approx([1 / 3] * 3)


def _load(**changes):
    shares = zipf_popularity(150, 1.0)
    arch = catalog.architecture_by_name("llama-2-7b")
    return CompositionLoad(arch=arch, shares=shares, **{"num_prompts": 400} | changes)


def test_few_experts_leave_only_the_execution():
    few = CompositionLoad(
        arch=catalog.architecture_by_name("llama-2-7b"),
        shares=zipf_popularity(10, 1.0),
        num_prompts=2000,
    )
    plan = plan_composition(few, expert_node("DGX-A100"))
    assert plan.switches == 10
    assert plan.nodes == 1


def test_a_larger_device_tier_switches_less():
    node = expert_node("DGX-A100")
    counts = [plan_composition(_load(), node, max_resident=item).switches for item in (4, 16, 0)]
    assert counts[0] > counts[1] > counts[2]


def test_bad_input_is_refused():
    with pytest.raises(ConfigError, match="not one of"):
        ExpertQueue("random", max_batch=1)
    with pytest.raises(ConfigError, match="rare experts never run"):
        ExpertQueue("least-switch", max_batch=1)
    with pytest.raises(ConfigError, match="at least 1"):
        ExpertResidency(0)
    with pytest.raises(ConfigError, match="sum to 1"):
        CompositionLoad(
            arch=catalog.architecture_by_name("llama-2-7b"), shares=np.array([0.5, 0.4])
        )


def test_the_verb_compares_nodes(capsys):
    from steelyard.cli.plan.experts import ComposedLoad, experts

    experts(asked=ComposedLoad(prompts=200))
    told = capsys.readouterr().out
    assert "DGX-H100" in told
    asked = ComposedLoad(prompts=200, rate="3 request/s")
    experts(asked=asked, nodes=("SN40L",), order="least-switch", json=True)
    (found,) = json.loads(capsys.readouterr().out)
    assert found["node"] == "SN40L"
    with pytest.raises(ConfigError, match="--count"):
        experts(asked=ComposedLoad(count=0))
    with pytest.raises(ConfigError, match="--resident"):
        experts(resident=2)
