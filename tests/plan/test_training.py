from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator, Cluster, Site
from steelyard.catalog.parameters import count_parameters
from steelyard.config import convert
from steelyard.cost.efficiency import Efficiencies
from steelyard.cost.layout import Layout
from steelyard.cost.roofline import Machine
from steelyard.cost.step import training_step
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan import decoder_near, plan_training
from steelyard.plan.alternatives import nearest_fit
from steelyard.plan.changes import NoPlanError
from steelyard.plan.intervals import step_relative
from steelyard.plan.layouts import search_layouts

SITE = Site(
    name="somewhere", country="Italy", pue=1.2, price_usd_per_kwh=0.1, carbon_g_per_kwh=300.0
)
A100 = Accelerator(
    name="A100-SXM4-80GB",
    vendor="NVIDIA",
    kind="gpu",
    year=2020,
    peak_flops_per_s={"bf16": 312e12},
    memory_bytes=80e9,
    memory_bytes_per_s=2.0e12,
    scale_up_bytes_per_s=300e9,
    host_link_bytes_per_s=20e9,
    tdp_w=400.0,
)
FORECAST = {
    "train.step_time",
    "train.total_time",
    "train.mfu",
    "plan.memory_per_accelerator",
    "run.energy",
    "run.cost",
    "run.carbon",
    "run.duration",
    "run.interruptions",
    "train.goodput",
    "eval.loss",
}


def cluster(nodes: int) -> Cluster:
    return Cluster(
        name=f"{nodes} nodes",
        site="somewhere",
        year=2021,
        num_nodes=nodes,
        accelerator=A100.name,
        accelerators_per_node=8,
        scale_up_bytes_per_s=300e9,
        injection_bytes_per_s=200e9,
    )


def plan(parameters: float, tokens: float, nodes: int, **options):
    allocation = SimpleNamespace(
        parameters=parameters, tokens=tokens, loss=SimpleNamespace(value=2.2, low=2.1, high=2.3)
    )
    return plan_training(allocation, cluster=cluster(nodes), accelerator=A100, site=SITE, **options)


@pytest.mark.parametrize(
    ("parameters", "tokens", "nodes"),
    [(1e8, 2e9, 1), (3e9, 6e10, 16), (70e9, 1.4e12, 128), (175e9, 3e11, 128)],
)
def test_plans_are_sane_and_complete(parameters, tokens, nodes):
    made = plan(parameters, tokens, nodes)
    choice = made.recipe()
    assert {item.quantity for item in made.forecasts} >= FORECAST
    assert all(item.low <= item.value <= item.high and item.source for item in made.forecasts)
    assert (
        choice["data"] * choice["tensor"] * choice["pipeline"]
        == choice["num_accelerators"]
        <= nodes * 8
    )
    assert choice["data"] * choice["micro_batch"] * choice["accumulation"] == choice["global_batch"]
    assert choice["tokens"] == pytest.approx(tokens, rel=0.01)
    assert choice["parameters"] == pytest.approx(parameters, rel=0.15)
    assert 0.25 < made.forecast("train.mfu").value < 0.62
    assert made.forecast("plan.memory_per_accelerator").value < 80e9
    assert made.rejected and made.binding_constraint
    assert convert(choice["architecture"], Architecture).hidden_size % choice["tensor"] == 0


def test_total_time_is_steps_times_step_time():
    made = plan(3e9, 6e10, 16)
    steps = made.choice["steps"]
    assert made.forecast("train.total_time").value == pytest.approx(
        steps * made.forecast("train.step_time").value
    )


def test_more_nodes_are_never_slower():
    times = [plan(7e9, 1.4e11, nodes).forecast("train.total_time").value for nodes in (4, 16, 64)]
    assert times == sorted(times, reverse=True)


def test_llama_70b_on_1024_takes_what_such_runs_take():
    """Llama 2 70B took 1.72 million A100 hours for 2e12 tokens (arXiv 2307.09288, table 2)."""
    made = plan(69e9, 2e12, 128)
    hours = made.forecast("train.total_time").value / 3600 * made.choice["num_accelerators"]
    assert 1.72e6 * 0.6 < hours < 1.72e6 * 1.1


def test_impossible_plans_name_what_binds():
    with pytest.raises(InfeasibleError, match=r"^memory: .* needs at least"):
        plan(175e9, 3e11, 1)
    with pytest.raises(InfeasibleError, match=r"^time: "):
        plan(70e9, 1.4e12, 16, deadline_s=86400.0)
    with pytest.raises(InfeasibleError, match=r"^budget: "):
        plan(1e5, 2e6, 1)
    with pytest.raises(ConfigError, match="positive"):
        plan(-1.0, 2e6, 1)


def test_what_does_not_fit_comes_with_the_nearest_changes_that_do():
    with pytest.raises(NoPlanError, match=r"^memory: ") as caught:
        plan(70e9, 2e10, 1)
    nodes, memory, *_ = caught.value.changes
    count = nodes.layout["num_accelerators"] // 8
    assert nodes.name == f"{count} nodes"
    plan(70e9, 2e10, count)
    # Halves of the nodes are part of every search, so the nearest smaller number is.
    with pytest.raises(NoPlanError):
        plan(70e9, 2e10, count - 1)
    wanted = float(memory.name.split()[2])
    roomy = replace(A100, memory_bytes=wanted * 1.01e9)
    asked = SimpleNamespace(parameters=70e9, tokens=2e10, loss=2.0)
    where = {"cluster": cluster(1), "site": SITE}
    plan_training(asked, accelerator=roomy, **where)
    with pytest.raises(NoPlanError, match=r"^memory: "):
        plan_training(asked, accelerator=replace(roomy, memory_bytes=wanted * 0.98e9), **where)


def test_too_short_a_deadline_comes_with_the_time_and_the_nodes_that_do():
    with pytest.raises(NoPlanError, match=r"^time: ") as caught:
        plan(7e9, 1.4e11, 4, deadline_s=86400.0)
    found = {item.name.split()[-1]: item for item in caught.value.changes}
    assert found["nodes"].duration_s <= 86400.0 < found["time"].duration_s
    allowed = found["time"].duration_s * 1.001
    assert plan(7e9, 1.4e11, 4, deadline_s=allowed).duration_s == pytest.approx(
        found["time"].duration_s, rel=0.01
    )


def test_what_would_help_is_priced_anew():
    made = plan(7e9, 1.4e11, 4, reprices=True)
    saved = [item.saved for item in made.helps]
    assert saved == sorted(saved, reverse=True) and saved[-1] > 0
    found = {item.name: item for item in made.helps}
    twice = found["twice the rate of products"]
    faster = replace(A100, peak_flops_per_s={"bf16": 624e12})
    asked = SimpleNamespace(parameters=7e9, tokens=1.4e11, loss=2.2)
    other = plan_training(
        asked,
        cluster=cluster(4),
        accelerator=faster,
        site=SITE,
        efficiencies=Efficiencies.typical(312e12),
    )
    assert other.choice["num_accelerators"] == made.choice["num_accelerators"]
    assert twice.duration_s == pytest.approx(other.duration_s, rel=0.01)
    assert not plan(7e9, 1.4e11, 4).helps


def test_failures_lengthen_the_run_with_its_accelerators():
    small, large = plan(3e9, 6e10, 16), plan(70e9, 1.4e12, 128)
    for made in (small, large):
        kept = made.forecast("train.goodput")
        assert kept.low < kept.value < kept.high < 1
        total = made.forecast("train.total_time").value
        assert made.duration_s == pytest.approx(total / kept.value)
        assert made.forecast("run.duration").value == made.duration_s
        assert 1 <= made.choice["checkpoint_every"] <= made.choice["steps"]
    assert large.forecast("train.goodput").value < small.forecast("train.goodput").value
    # As many accelerator-hours as Llama 3's, as many interruptions.
    hours = large.duration_s / 3600 * large.choice["num_accelerators"]
    expected = 419 * hours / (54 * 24 * 16384)
    assert large.forecast("run.interruptions").value == pytest.approx(expected)


def test_an_interval_depends_on_what_a_layout_waits_for():
    machine = Machine.from_accelerator(A100, cluster=cluster(4))
    arch = catalog.architecture_by_name("gpt3-6.7b")
    how = {"machine": machine, "micro_batch": 1, "sequence_length": 2048, "accumulation": 8}
    plain = training_step(arch, layout=Layout(), **how)
    linked = training_step(arch, layout=Layout(tensor=8), **how)
    assert 1.5 * step_relative(machine, plain, arch) < step_relative(machine, linked, arch)
    other = replace(machine, name="MI250X-GCD")
    assert step_relative(other, plain, arch) > step_relative(machine, plain, arch)
    own = replace(machine, provenance="measured")
    found = [step_relative(own, step, arch) for step in (plain, linked)]
    assert found == [own.calibrated_relative] * 2
    # Nothing was fitted with 8-bit products or routed experts, so either makes it wider.
    experts = replace(arch, num_experts=8, experts_per_token=2, moe_intermediate_size=1024)
    narrow = replace(machine, dtype="fp8")
    for unlike in ((narrow, plain, arch), (machine, plain, experts)):
        assert step_relative(*unlike) > step_relative(machine, plain, arch)


def test_a_layout_that_does_not_fit_is_one_change_from_one_that_does():
    arch = catalog.architecture_by_name("gpt3-6.7b")
    machine = Machine.from_accelerator(A100, cluster=cluster(2))
    search = search_layouts(arch, machine, counts=[16], global_batch=256, sequence_length=2048)
    index = int(np.flatnonzero(~search.fits)[0])
    name, other = nearest_fit(search, index)
    assert search.fits[other]
    before, after = search.choice(index), search.choice(other)
    changed = {key for key in before if before[key] != after[key]} - {"accumulation"}
    assert changed and changed <= {*name.split(), "sequence_parallel", *([name] if name else [])}


def test_an_unknown_price_leaves_money_out_and_plans_the_rest():
    where = replace(cluster(16), accelerator="MI250X-GCD")
    chip = replace(A100, name="MI250X-GCD")
    allocation = SimpleNamespace(parameters=3e9, tokens=6e10, loss=2.2)
    made = plan_training(allocation, cluster=where, accelerator=chip, site=SITE)
    assert {item.quantity for item in made.forecasts} >= FORECAST - {"run.cost"}
    assert made.unknown.keys() == {"run.cost"}
    assert any("run.cost is left out: no price is known for MI250X" in note for note in made.notes)
    with pytest.raises(ConfigError, match="no price is known"):
        made.forecast("run.cost")
    priced = plan_training(allocation, cluster=where, accelerator=chip, site=SITE, rent_usd=2.0)
    assert priced.forecast("run.cost").value > 0 and not priced.unknown


def test_a_deadline_uses_more_accelerators():
    relaxed = plan(1e8, 2e9, 128)
    tight = plan(1e8, 2e9, 128, deadline_s=0.8 * relaxed.forecast("train.total_time").value)
    assert tight.choice["num_accelerators"] > relaxed.choice["num_accelerators"]


@pytest.mark.parametrize("target", [3e6, 5e7, 1.2e8, 1e9, 7e9, 7e10, 4e11])
def test_shapes_are_near_their_target_and_in_proportion(target):
    vocab = 2048 if target < 1e7 else 32768
    arch = decoder_near(target, vocab_size=vocab)
    assert count_parameters(arch).total == pytest.approx(target, rel=0.12)
    assert 20 <= arch.hidden_size / arch.num_layers <= 200
    assert arch.num_heads * arch.head_dim == arch.hidden_size
    assert arch.num_heads % arch.num_kv_heads == 0
