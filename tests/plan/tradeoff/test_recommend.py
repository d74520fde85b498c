import math
from dataclasses import replace

import pytest

from steelyard import catalog
from steelyard.cost import serve_point
from steelyard.cost.longcontext import KVSpec
from steelyard.errors import ConfigError
from steelyard.plan.tradeoff.configuration import BASELINE
from steelyard.plan.tradeoff.predicted import Goals, candidates, predict
from steelyard.plan.tradeoff.recommend import recommend
from steelyard.plan.tradeoff.table import tabulate

from .test_table import ARCH, FAST, SHARP, WINDOW, YARN, measured

LLAMA = catalog.architecture_by_name("llama-3-8b")
H100 = catalog.accelerator("H100-SXM5-80GB")


@pytest.fixture
def table():
    return tabulate(
        measured(
            [
                (BASELINE, [0.9, 0.8, 0.2], 2.0, 100.0, 400.0),
                (YARN, [0.85, 0.76, 0.75], 2.0, 99.0, 1e4),
                (WINDOW, [0.3, 0.1, 0.05], 2.004, 150.0, 1e18),
                (FAST, [0.9, 0.8, 0.2], 2.001, 140.0, 600.0),
                (SHARP, [0.99, 0.9, 0.2], 1.9, 130.0, 600.0),
            ]
        )
    )


def test_the_plain_model_is_predicted_as_the_cost_room_does():
    goals = Goals(context=8192, output_tokens=100)
    found = predict(BASELINE, goals, LLAMA, H100)
    point = serve_point(LLAMA, H100, context=8192, batch=found.sequences)
    assert found.sequences == min(point.concurrency, 256)
    assert found.ttft_s == pytest.approx(point.prefill_s)
    assert found.tpot_s == pytest.approx(point.decode_s_per_token)
    rate = 100 / (point.prefill_s + 100 * point.decode_s_per_token / found.sequences)
    assert found.tokens_per_s == pytest.approx(rate)
    int8 = predict(replace(BASELINE, kv_dtype="int8"), goals, LLAMA, H100)
    share = (1 + 4 / LLAMA.head_dim) / 2
    half = serve_point(LLAMA, H100, context=8192, kv=KVSpec(hidden=share))
    assert int8.sequences == min(half.concurrency, 256) and int8.ttft_s == found.ttft_s


def test_a_limit_on_waiting_takes_fewer_users_together():
    free = predict(BASELINE, Goals(context=8192), LLAMA, H100)
    tight = predict(BASELINE, Goals(context=8192, tpot_s=0.012), LLAMA, H100)
    assert tight.sequences < free.sequences and tight.tpot_s <= 0.012
    more = serve_point(LLAMA, H100, context=8192, batch=tight.sequences + 1)
    assert more.decode_s_per_token > 0.012


def test_candidates_go_together_and_what_is_not_exact_must_be_measured():
    goals = Goals(context=32_000)
    advice = recommend(goals, LLAMA, H100)
    names = [item.configuration.name for item in advice.ranked]
    assert len(set(names)) == len(names) and advice.is_feasible
    for item in advice.ranked:
        assert item.predicted.context_tokens >= 32_000
        assert (item.accuracy_drop == 0) == (item.accuracy_source == "exact")
        assert item.is_known or item.accuracy_source.startswith("must be measured")
    # Without positions that reach so far, only shorter prompts do.
    for item in candidates(goals, LLAMA):
        assert item.stretch > 1 or item.prompt_kept * 32_000 <= LLAMA.max_positions
    near = recommend(Goals(context=8000), LLAMA, H100)
    assert near.ranked[0].is_known and near.ranked[0].configuration.name == "dense"


def test_measured_accuracy_decides_before_rates(table):
    top = recommend(Goals(context=300, accuracy_drop=0.02), ARCH, table=table)
    assert [item.configuration.name for item in top.ranked] == ["fast", "sharp", "dense"]
    far = recommend(Goals(context=450, accuracy_drop=0.1), ARCH, table=table)
    assert [item.configuration.name for item in far.ranked] == ["yarn"]
    assert far.ranked[0].accuracy_drop == pytest.approx(0.045)


def test_what_nothing_reaches_names_the_goal_to_relax_and_the_nearest(table):
    found = recommend(Goals(context=450, accuracy_drop=0.01), ARCH, table=table)
    assert not found.is_feasible
    assert "yarn" in found.relax["accuracy"] and "4.5 points" in found.relax["accuracy"]
    assert "context" in found.relax
    assert len(found.nearest) == 3
    worst = [max(item.misses.values()) for item in found.nearest]
    assert worst == sorted(worst)
    fast = recommend(Goals(context=100, accuracy_drop=1, tpot_s=0.001), ARCH, table=table)
    assert set(fast.relax) == {"tpot"}
    none = recommend(Goals(context=10**9, ttft_s=1e-9, tpot_s=1e-9), LLAMA, H100)
    assert not none.is_feasible and none.nearest and not none.relax


def test_bad_goals_are_refused():
    with pytest.raises(ConfigError, match="neither a device nor a measurement"):
        recommend(Goals(context=10), LLAMA)
    for bad in ({"context": 0}, {"accuracy_drop": 2}, {"ttft_s": 0}, {"shared": 1}):
        with pytest.raises(ConfigError):
            Goals(**({"context": 10} | bad))
    assert math.isinf(Goals(context=1).ttft_s)
