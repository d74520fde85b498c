"""Plans of an index: goals in words, the cheapest that holds, and why others lost."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steelyard.catalog import accelerator, storage_tier
from steelyard.catalog.search_rates import reference_search_rates
from steelyard.cli.main import main
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.retrieve.index_goal import IndexGoal, parse_goal
from steelyard.plan.retrieve.indexing import IndexPlan, plan_index
from steelyard.plan.retrieve.machine_offer import MachineOffer
from steelyard.plan.retrieve.probing import ProbeRule
from steelyard.plan.retrieve.tenancy import price_ways
from steelyard.plan.retrieve.tenancy_goal import TenancyGoal

RATES = reference_search_rates()
TIER = storage_tier("s3-standard")


def _plan(goal: IndexGoal, rule: ProbeRule | None = None) -> IndexPlan:
    offer = MachineOffer.of(accelerator("Xeon-8488C"), goal.memory_bytes, 48)
    return plan_index(goal, RATES, offer, TIER, rule=rule or ProbeRule())


def test_goals_in_words() -> None:
    goal = parse_goal("10 M x 768, 200 tenants, seen by 3, recall .95, 20 ms, 8 GB, 50 queries/s")
    assert goal == IndexGoal(
        vectors=10_000_000,
        dim=768,
        tenants=200,
        seen_by=3,
        recall=0.95,
        latency_s=0.02,
        memory_bytes=8e9,
        queries_per_s=50,
    )
    assert goal.own_vectors == 150_000
    assert parse_goal("5000 x 16, recall 90 %").recall == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("recall .9", "names no vectors"),
        ("10 M x 768, quickly", "cannot read 'quickly'"),
        ("10 M x 768, recall high", "cannot read 'recall high'"),
        ("10 M x 768, recall 2", "a recall of 2"),
        ("10 x 768, 20 tenants", "no more tenants than vectors"),
        ("10 x 8, 5 tenants, seen by 9", "seen by 9 of 5"),
    ],
)
def test_wrong_goals_are_named(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_goal(text)
    assert told in f"{error.value} {error.value.hint}"


def test_the_chosen_index_holds_the_goal_and_is_the_cheapest_of_those_that_do() -> None:
    goal = parse_goal("2 M x 128, recall .95, 5 ms, 8 GB, 100 queries/s")
    plan = _plan(goal)
    best = plan.chosen
    assert best.query_s.high <= goal.latency_s
    assert best.recall.value >= goal.recall
    assert best.query_s.low <= best.query_s.value <= best.query_s.high
    assert best.machines.value * plan.offer.memory_bytes >= best.memory_bytes.value
    for other in plan.others:
        assert other.lost
        if "times as much" in other.lost:
            assert other.usd_per_month.value > best.usd_per_month.value
    assert any("may take" in other.lost for other in plan.others)


def test_more_memory_a_machine_needs_fewer_of_them_and_a_lower_recall_no_more_money() -> None:
    goal = parse_goal("20 M x 128, recall .95, 20 ms, 4 GB")
    small, large = _plan(goal), _plan(replace(goal, memory_bytes=16e9))
    assert small.chosen.machines.value > large.chosen.machines.value
    lower = _plan(replace(goal, recall=0.6))
    assert lower.chosen.usd_per_month.value <= small.chosen.usd_per_month.value
    assert lower.chosen.memory_bytes.value < small.chosen.memory_bytes.value


def test_a_vector_that_many_see_is_kept_once_where_that_pays() -> None:
    goal = parse_goal("1 M x 256, 100 tenants, seen by 20, recall .9, 10 ms, 4 GB")
    plan = _plan(goal)
    assert plan.chosen.sharing == "shared, each tenant listed"
    alone = [other for other in plan.others if other.sharing == "one per tenant"]
    assert min(other.memory_bytes.value for other in alone) > plan.chosen.memory_bytes.value


@pytest.mark.parametrize("memory", ["64 GB", "1 GB"])
def test_ways_to_share_cost_what_the_plan_of_tenants_says(memory: str) -> None:
    goal = parse_goal(f"2 M x 128, 100 tenants, seen by 4, recall .95, 20 ms, {memory}")
    plan = _plan(goal)
    said = {
        option.name.partition(":")[0]: option
        for option in (plan.chosen, *plan.others)
        if option.shape is None
    }
    priced = {option.way: option for option in price_ways(TenancyGoal.of(goal), RATES)}
    assert said.keys() == priced.keys()
    for way, option in said.items():
        assert option.memory_bytes == priced[way].memory_bytes
        if memory == "64 GB" or way == "index per tenant":
            assert option.query_s == priced[way].query_s
        else:
            assert option.query_s.value < priced[way].query_s.value
            assert "on each of 2 machines" in option.name
    # Filters and lists work on whole vectors alone.
    coded = {other.sharing for other in plan.others if other.shape is not None}
    assert coded == {"one per tenant"}


def test_goals_out_of_reach_name_the_nearest_miss() -> None:
    with pytest.raises(InfeasibleError, match="no index reaches the goal; the nearest"):
        _plan(parse_goal("1 G x 1024, recall .999, 10 us, 1 GB"))


def test_a_sample_sets_the_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = ProbeRule.measured(50, 0.9, 5)
    assert rule.probes(50, 0.9).value == 5
    rng = np.random.default_rng(0)
    np.save(tmp_path / "sample.npy", rng.normal(size=(1500, 8)).astype(np.float32))

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["plan", "retrieve", *map(str, words)])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    goal = "100k x 8, recall .9, 10 ms, 1 GB"
    code, out, _ = run(goal, "--sample", tmp_path / "sample.npy")
    assert code == 0
    assert "measured on the sample" in out
    code, out, _ = run(goal, "--budget", "$5000", "--json")
    assert code == 0
    assert json.loads(out)["goal"]["recall"] == 0.999
    code, _, err = run(goal, "--budget", "$1")
    assert code == 1
    assert "1 USD a month buy none" in err
    code, _, err = run("100k x 9, recall .9", "--sample", tmp_path / "sample.npy")
    assert code == 2
    assert "1,500 vectors of 8 numbers" in err
    code, _, err = run(goal, "--machine", "Xeon-8358")
    assert code == 2
    assert "cores of Xeon-8358 are not known" in err
