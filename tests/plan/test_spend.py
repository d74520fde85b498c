import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import catalog, laws
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan import plan_training
from steelyard.plan.machines import machines_of, nodes_of
from steelyard.plan.spend import Budget, plan_within, read_budget

LAW = laws.published["besiroglu2024"].fit()


def planner(machines, deadline_s=1e9):
    def plan(flops):
        return plan_training(
            laws.allocate(LAW, flops),
            cluster=machines.cluster,
            accelerator=machines.accelerator,
            site=machines.site,
            deadline_s=deadline_s,
        )

    return plan


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("$5,000", 5000, "USD"),
        ("5 kUSD", 5000, "USD"),
        ("1e22FLOP", 1e22, "FLOP"),
        ("3 days", 3 * 86400, "s"),
        ("2 h", 7200, "s"),
    ],
)
def test_a_budget_is_read_in_compute_money_or_time(text, amount, unit):
    assert read_budget(text) == Budget(amount, unit)


@pytest.mark.parametrize("text", ["5000", "", "-$5", "0 FLOP", "3 parsecs", "5 GB", "nan FLOP"])
def test_an_amount_of_something_else_is_refused_by_name(text):
    with pytest.raises(ConfigError, match="--budget"):
        read_budget(text, where="--budget")


@pytest.mark.parametrize("text", ["$5,000", "$300,000", "3 days"])
def test_money_and_time_buy_nearly_all_they_can_and_no_more(text):
    budget = read_budget(text)
    machines = machines_of(accelerator="H100-SXM5-80GB", count=64)
    made = plan_within(budget, planner(machines))
    quantity = "run.cost" if budget.unit == "USD" else "train.total_time"
    spent = made.forecast(quantity).value
    assert 0.9 * budget.amount <= spent <= budget.amount


@settings(max_examples=15)
@given(st.floats(1.5, 50))
def test_more_money_never_buys_less_compute(factor):
    plan = planner(machines_of(accelerator="A100-SXM4-80GB", count=8))
    small = plan_within(Budget(1000.0, "USD"), plan)
    large = plan_within(Budget(1000.0 * factor, "USD"), plan)
    # A jump between layouts may leave a few per cent of the budget unspent.
    assert large.forecast("train.flops").value > 0.95 * small.forecast("train.flops").value


def test_a_budget_beyond_what_the_memory_holds_is_not_used_up():
    made = plan_within(
        Budget(3e5, "USD"), planner(machines_of(accelerator="H100-SXM5-80GB", count=8))
    )
    assert made.forecast("run.cost").value < 2e5
    assert "more compute fails on memory" in made.notes[0]


def test_an_amount_too_small_for_any_run_is_infeasible():
    plan = planner(machines_of(accelerator="H100-SXM5-80GB", count=8))
    with pytest.raises(InfeasibleError):
        plan_within(Budget(1e-12, "USD"), plan)


def test_money_without_a_price_is_refused():
    plan = planner(machines_of(accelerator="SN40L", count=8))
    with pytest.raises(ConfigError, match=r"run\.cost"):
        plan_within(Budget(100.0, "USD"), plan)


@given(st.integers(1, 4096))
def test_nodes_hold_exactly_the_count(count):
    cluster = nodes_of(catalog.accelerator("H100-SXM5-80GB"), count)
    assert cluster.num_accelerators == count
    assert cluster.accelerators_per_node <= 8


def test_machines_are_one_of_cluster_and_accelerator():
    for names in ({}, {"cluster": "Frontier", "accelerator": "T4"}):
        with pytest.raises(ConfigError, match="either a cluster or an accelerator"):
            machines_of(**names)
    part = machines_of(cluster="Frontier", count=16)
    assert part.cluster.num_accelerators == 16


def test_what_would_be_ignored_is_refused():
    with pytest.raises(ConfigError, match="this-machine is one"):
        machines_of(accelerator="this-machine", count=8)
    with pytest.raises(ConfigError, match="nodes are of a cluster"):
        machines_of(accelerator="T4", nodes=2)
