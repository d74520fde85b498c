"""How many servers a row carries, and the settings of least energy, against all of them."""

import itertools
import json

import numpy as np
import pytest

from steelyard import catalog
from steelyard.cli.main import main
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.energy import EnergyGoal, Knobs, evaluate_setting, plan_knobs
from steelyard.plan.energy_models import energy_models
from steelyard.plan.power import LatencyLimits, plan_row, second_threshold
from steelyard.sim.power import RowRequests, RowScenario

A100 = catalog.accelerator("A100-SXM4-80GB")
KNOBS = Knobs(clocks=(1.0, 0.8, 0.6), batches=(2, 8))


def stream(count=120, rate=0.8, seed=0):
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.random(count)) * count / rate
    prompts, outputs = rng.integers(50, 1500, count), rng.integers(20, 300, count)
    return RowRequests.of(arrival, prompts, outputs, np.zeros(count))


@pytest.mark.parametrize("rate", [0.2, 1.0, 2.0])
def test_the_planned_setting_is_that_of_all_settings(rate):
    models = energy_models("llama-2-70b", A100, (2, 4, 8))
    goal = EnergyGoal(ttft_s=3.0, tpot_s=0.12, violations=0.02)
    requests = stream(rate=rate)
    plan = plan_knobs(models, requests, goal, accelerators=16, knobs=KNOBS)
    kept = []
    for width, model in models.items():
        counts = range(1, 16 // width + 1)
        for replicas, clock, batch in itertools.product(counts, KNOBS.clocks, KNOBS.batches):
            made = evaluate_setting(
                model, requests, goal, replicas=replicas, clock=clock, batch=batch
            )
            if made.violations <= goal.violations:
                kept.append(made.energy_per_token_j)
    assert plan.best.energy_per_token_j == pytest.approx(min(kept))
    if plan.fastest is not None:
        assert (plan.fastest.tensor_parallel, plan.fastest.clock) == (8, 1.0)
        assert 0 < plan.saving < 1


def test_a_power_cap_lowers_the_clock():
    model = energy_models("llama-2-70b", A100, (2,))[2]
    goal = EnergyGoal()
    free, capped = (
        evaluate_setting(model, stream(), goal, replicas=4, clock=1.0, batch=8, cap_w=cap_w)
        for cap_w in (np.inf, 200.0)
    )
    assert capped.clock < free.clock == 1.0
    assert capped.power_w < free.power_w
    assert capped.tpot_s > free.tpot_s


def test_models_that_were_not_measured_follow_the_roofline():
    models = energy_models("llama-3.1-8b", catalog.accelerator("H100-SXM5-80GB"), (1, 2))
    assert models[1].token(500, 8).time_s > models[2].token(500, 8).time_s
    assert 100 < models[1].token(500, 8).power_w < 700
    with pytest.raises(InfeasibleError, match="does not fit"):
        energy_models("llama-2-70b", A100, (1,))


def test_goals_out_of_reach_name_the_best_and_what_it_misses():
    models = energy_models("llama-2-70b", A100, (4,))
    with pytest.raises(InfeasibleError, match=r"the most is .*, missing tpot"):
        plan_knobs(models, stream(), EnergyGoal(tpot_s=0.001), accelerators=8, knobs=KNOBS)
    with pytest.raises(InfeasibleError, match="hold no copy"):
        plan_knobs(models, stream(), EnergyGoal(), accelerators=2)
    with pytest.raises(ConfigError, match="clocks"):
        Knobs(clocks=(1.2,))


def test_a_row_carries_more_servers_than_planned_but_not_any_number():
    scenario = RowScenario(servers=10, days=0.1)
    told = []
    # Few servers vary much, so that the first threshold is low and caps are on all day.
    limits = LatencyLimits(high_p50=0.2, high_p99=0.2, low_p50=0.2)
    plan = plan_row(scenario, limits=limits, seeds=(0, 1), most_added=1.0, told=told.append)
    assert 0 < plan.added < 10
    assert plan.t1 < plan.t2 == second_threshold(plan.rise)
    assert {trial.seed for trial in plan.trials if trial.added == plan.added} == {0, 1}
    assert all(not item.fault(limits) for item in plan.trials if item.added <= plan.added)
    assert "more" in plan.binding and told
    # No brake in two trials still leaves a chance of more than a half.
    assert plan.brake_chance == pytest.approx(0.553, abs=0.001)


def test_rows_in_training_and_rows_that_are_full_are_refused():
    with pytest.raises(InfeasibleError, match="97%"):
        plan_row(RowScenario(), is_training=True)
    with pytest.raises(InfeasibleError, match="no room"):
        second_threshold(0.9)
    with pytest.raises(InfeasibleError, match="does not carry"):
        plan_row(RowScenario(servers=4, days=0.05, hungrier=2.0), seeds=(0,))


def test_the_verbs_answer_in_json(capsys):
    calls = (
        "plan energy --rate 1 --requests 100 --count 8 --json",
        "plan power --servers 10 --days 0.05 --seeds 1 --json --low-p50 0.2 --high-p50 0.2 "
        "--high-p99 0.2",
    )
    for words in calls:
        with pytest.raises(SystemExit) as done:
            main(words.split())
        assert done.value.code == 0
    energy, power = capsys.readouterr().out.split("\n}\n{\n")
    assert json.loads(energy + "}")["best"]["tensor_parallel"] in (2, 4, 8)
    assert json.loads("{" + power)["servers"] == 10


@pytest.mark.parametrize(
    ("words", "told", "code"),
    [
        (["energy"], "neither --trace nor --rate", 2),
        (["energy", "--rate", "1", "--count", "0"], "--count", 2),
        (["energy", "--rate", "99", "--count", "8", "--requests", "50"], "no setting", 1),
        (["power", "--training"], "in training", 1),
        (["power", "--servers", "1"], "--servers", 2),
    ],
)
def test_the_verbs_refuse_what_cannot_be(capsys, words, told, code):
    with pytest.raises(SystemExit) as done:
        main(["plan", *words])
    assert done.value.code == code
    assert told in capsys.readouterr().err
