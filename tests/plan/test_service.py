"""Serving fleets: goodput, which arrangement wins, and what is said when none keeps the limits."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steelyard import catalog
from steelyard.cli.main import main
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.roofline import Machine
from steelyard.errors import CapacityError, InfeasibleError
from steelyard.plan.machines import nodes_of
from steelyard.plan.service.assumptions import weakest_assumptions
from steelyard.plan.service.goodput import attained, goodput
from steelyard.plan.service.load import ServiceLoad
from steelyard.plan.service.options import EngineOption, engine_options
from steelyard.plan.service.planned import goodput_forecast
from steelyard.plan.service.search import ServiceLimits, ServiceSearch
from steelyard.serve.client.summary import Slo
from steelyard.serve.traces import TraceRow, read_rows
from steelyard.serve.traces.statistics.local import local_arrivals
from steelyard.sim.fleet.instance import ReplicaGroup, simulate_fleet

SHARED = Path(os.environ.get("STEELYARD_SHARED", Path(__file__).parents[2].parent / "shared"))
AZURE = SHARED / "data" / "llm-traces" / "azure2023_conv.csv.gz"


def option(tensor, *, kv_tokens=40_000, pipeline=1):
    """A split whose steps are the faster the more accelerators share it, with a loss."""
    pace = 1 / tensor**0.8
    return EngineOption(
        tensor=tensor,
        pipeline=pipeline,
        step_time=PhaseStepTime.from_fits(
            prefill=(0.018 * pace, 1e-4 * pace, 7e-9 * pace),
            decode=(0.02 * pace, 6e-7 * pace, 4e-5 * pace),
            source="made up",
        ),
        kv_tokens=kv_tokens * tensor * pipeline,
    )


def made_load(count=300, prompt=400, output=60):
    generator = np.random.default_rng(0)
    lengths = generator.integers(prompt // 2, prompt * 3 // 2, 1000)
    return ServiceLoad.drawn(
        lengths, generator.integers(output // 2, output * 3 // 2, 1000), generator, count=count
    )


def made_search(**changes):
    given = {
        "load": made_load(),
        "slo": Slo(ttft_s=0.4, tpot_s=0.04),
        "share": 0.9,
        "options": (option(1), option(2)),
        "limits": ServiceLimits(per_node=4, max_num_seqs=128),
    }
    return ServiceSearch(**(given | changes))


def test_goodput_of_uniform_prompts_is_where_the_queue_says():
    # M/D/1 with D = 0.1 s: P(wait > 0.3 s) passes 10 % near a load of 0.7 (Erlang's formula).
    model = PhaseStepTime.from_fits(prefill=(0.1, 0, 0), decode=(1, 0, 0), source="made up")
    group = ReplicaGroup(
        step_time=model, role="prefill", whole_prompts=True, blocks=10_000, token_budget=1,
        max_num_seqs=1,
    )  # fmt: skip
    ones = np.ones(10, int)
    load = ServiceLoad.drawn(2 * ones, ones, np.random.default_rng(0), count=20_000)
    slo = Slo(ttft_s=0.4)
    found = goodput((group,), load, slo, 0.9)
    assert found.at.both >= 0.9 > found.beyond.both
    assert found.binding == "ttft"
    assert 6.2 < found.rate_per_s < 7.4
    assert attained((group,), load, 3.0, slo, 0.9).both > 0.99


def test_load_repeats_until_it_lasts():
    load = made_load(count=100)
    arrivals, inputs, outputs = load.lasting(10.0, 25.0)
    assert len(arrivals) == len(inputs) == len(outputs) == 300
    assert np.all(np.diff(arrivals) >= 0)
    assert arrivals[-1] == pytest.approx(30.0)


def test_load_takes_the_variation_of_a_trace():
    times = np.cumsum(np.tile([0.1, 0.1, 0.1, 2.9], 50))
    rows = [TraceRow(arrival_s=t, input_tokens=10, output_tokens=5) for t in times]
    load = ServiceLoad.of_rows(rows, np.random.default_rng(0), count=50)
    own = np.std(np.diff(times)) / np.mean(np.diff(times))
    # The mean of the 199 gaps is itself drawn, which lifts the estimate a little.
    assert load.variation == pytest.approx(own, rel=0.02)


def test_days_are_no_bursts():
    generator = np.random.default_rng(0)
    times = np.cumsum(generator.exponential(4.0, 60_000))  # two nights, two days and more
    busy = generator.random(len(times)) < 0.5 - 0.45 * np.cos(2 * np.pi * times / 86_400)
    rows = [TraceRow(arrival_s=at, input_tokens=400, output_tokens=60) for at in times[busy]]
    load = ServiceLoad.of_rows(rows, np.random.default_rng(0), count=400)
    assert load.variation == pytest.approx(1.0, abs=0.05)
    even = ServiceLoad.drawn(np.array([400]), np.array([60]), np.random.default_rng(0), count=400)
    search = made_search()
    group = search.colocated(search.options[0], whole=False).groups
    slo = Slo(ttft_s=0.4, tpot_s=0.04)
    # It carries what Poisson arrivals of these lengths do.
    assert goodput(group, load, slo, 0.9).rate_per_s == pytest.approx(
        goodput(group, even, slo, 0.9).rate_per_s, rel=0.1
    )


@pytest.mark.skipif(not AZURE.exists(), reason="needs shared/data/llm-traces")
def test_an_instance_for_the_fullest_minutes_serves_a_public_trace():
    rows = list(read_rows(AZURE))
    load = ServiceLoad.of_rows(rows, np.random.default_rng(0), count=1000)
    group = made_search().colocated(option(2), whole=False).groups
    slo = Slo(ttft_s=1.0, tpot_s=0.06)
    found = goodput(group, load, slo, 0.9)
    times = np.array([row.arrival_s for row in rows])
    stretched = times * (local_arrivals(times).busiest_per_s / found.rate_per_s)
    lengths = [[row.input_tokens for row in rows], [row.output_tokens for row in rows]]
    kept = simulate_fleet(group, stretched, *lengths).timeline.within(slo.ttft_s, slo.tpot_s)
    assert 0.9 <= kept.mean() < 0.99


def test_shared_prefixes_carry_more_and_are_an_assumption():
    rows = [
        TraceRow(
            arrival_s=float(place), input_tokens=512, output_tokens=16,
            hash_ids=(0, place + 1), block_tokens=256,
        )
        for place in range(200)
    ]  # fmt: skip
    load = ServiceLoad.of_rows(rows, np.random.default_rng(0), count=100)
    assert load.shared_fraction == pytest.approx(0.5, abs=0.01)
    search = made_search(load=load, options=(option(1),), slo=Slo(ttft_s=0.4, tpot_s=0.06))
    arrangement = search.colocated(search.options[0], whole=False)
    shared = search.carried(arrangement).rate_per_s
    alone = replace(search, load=replace(load, block_ids=())).carried(arrangement).rate_per_s
    assert shared > 1.2 * alone
    found = {
        item.words: item.goodput_per_s for item in weakest_assumptions(search, arrangement, shared)
    }
    half = found["50% of the prompts share no prefix"]
    assert alone < half < shared
    one = replace(search, load=load.less_shared(0.5, np.random.default_rng(17)))
    assert half == one.carried(arrangement).rate_per_s
    # A round that repeats the requests does not find their prompts in the cache.
    first, again = load.contents(200)[:100], load.contents(200)[100:]
    assert not set(first[5]) & set(again[5])


def test_search_equals_trying_every_pair():
    search = made_search()
    best = max(search.search_in_node(), key=lambda item: item.per_device)
    rates = {}
    for prefill in search.usable:
        for decode in search.usable:
            pair = search.apart(prefill, decode)
            if pair.num_devices <= 4:
                rates[pair.words] = search.carried(pair).rate_per_s / pair.num_devices
    assert best.per_device == max(rates.values())
    assert best.arrangement.words == max(rates, key=lambda words: rates[words])


def test_tight_tokens_take_phases_apart_and_loose_ones_do_not():
    load, one = made_load(count=150, prompt=900, output=80), (option(1),)
    tight = made_search(load=load, options=one, slo=Slo(ttft_s=0.6, tpot_s=0.03)).run(5.0)
    loose = made_search(load=load, options=one, slo=Slo(ttft_s=3.0, tpot_s=0.3)).run(5.0)
    assert tight[0].arrangement.kind == "apart in one node"
    assert loose[0].arrangement.kind.startswith("colocated")


def test_limits_that_nothing_keeps_name_what_binds_and_the_best_value():
    with pytest.raises(InfeasibleError, match=r"^ttft of 5.* best .* without any load is .* TP 2$"):
        made_search(slo=Slo(ttft_s=0.005, tpot_s=0.04)).run(1.0)
    with pytest.raises(InfeasibleError, match=r"^tpot of 1 ms"):
        made_search(slo=Slo(ttft_s=1.0, tpot_s=0.001)).run(1.0)


def test_requests_that_no_split_holds_are_refused():
    small = replace(option(1), kv_tokens=300)
    with pytest.raises(CapacityError, match="longest request has"):
        made_search(options=(small,)).run(1.0)


def test_room_for_keys_and_values_counts_weights_and_the_largest_step():
    arch = catalog.architecture_by_name("llama-3-70b")
    record = catalog.accelerator("H100-SXM5-80GB")
    machine = Machine.from_accelerator(record, cluster=nodes_of(record, 8))
    options = {
        (item.tensor, item.pipeline): item
        for item in engine_options(arch, machine, step_tokens=2048)
    }
    assert "needs 143 GB" in options[1, 1].reason
    assert options[1, 1].kv_tokens == 0
    # Eight hold 608 GB less 141 GB of weights, 327,680 bytes for each token.
    assert options[8, 1].kv_tokens == pytest.approx((608e9 - 141e9) / 327_680, rel=0.02)
    more = engine_options(arch, machine, step_tokens=16_384, tensors=[8], pipelines=[1])[0]
    assert more.kv_tokens < options[8, 1].kv_tokens


def run_verb(*words):
    with pytest.raises(SystemExit) as caught:
        main(["plan", "serve", "--model", "llama-3-8b", "--machine", "H100-SXM5-80GB", *words])
    return int(caught.value.code or 0)


def test_verb_plans_and_says_why_the_others_lost(capsys, tmp_path):
    page = tmp_path / "plan.html"
    size = ("--per-node", "2", "--requests", "100", "--prompt", "64", "--output", "32")
    assert run_verb("--rate", "40", *size, "--report", str(page), "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    choice = plan["choice"]
    assert choice["accelerators"] == choice["instances"] * sum(
        group["replicas"] * group["tensor"] * group["pipeline"] for group in choice["groups"]
    )
    assert plan["rejected"]
    assert all(item["reason"] for item in plan["rejected"])
    found = {item["quantity"]: item for item in plan["forecasts"]}
    assert found["serve.goodput"]["low"] < found["serve.goodput"]["high"]
    assert plan["attainment"]
    assert "Share of the requests" in page.read_text()


def test_verb_wants_a_load(capsys):
    assert run_verb() == 2
    assert "--trace or --rate" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("limit", "told"), [("50", "has no unit"), ("0 ms", "is above 0")])
def test_verb_wants_limits_with_a_unit(capsys, limit, told):
    assert run_verb("--rate", "1 request/s", "--tpot", limit) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_an_interval_joins_slow_steps_and_the_noise_of_a_run():
    search = made_search(load=made_load(count=100))
    arrangement = search.colocated(search.options[0], whole=False)
    found = search.carried(arrangement)
    said = goodput_forecast(search, arrangement, found)
    assert said.low < said.value == found.rate_per_s < said.high
    # Steps without any error leave the noise of a run.
    exact = replace(
        search.options[0], step_time=replace(search.options[0].step_time, relative_spread=0.0)
    )
    one = replace(search, options=(exact,))
    alone = goodput_forecast(one, one.colocated(exact, whole=False), found)
    assert said.low < alone.low <= alone.value <= alone.high < said.high
    # More error of a step, more width.
    unsure = replace(search, drift=0.5)
    assert goodput_forecast(unsure, arrangement, found).low < said.low
