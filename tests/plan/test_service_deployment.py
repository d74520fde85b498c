"""Deployments: the file, what one engine refuses, reduced size, single changes, assumptions."""

import json
from dataclasses import replace

import numpy as np
import pytest

from steelyard.catalog.architecture import Architecture
from steelyard.cli.main import main
from steelyard.config import convert, dump, flatten, load, to_plain
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.step_time import ServeStepTime
from steelyard.errors import CapacityError, ConfigError
from steelyard.plan.service.against import carried_by, changed, single_changes
from steelyard.plan.service.arrangement import Arranger, ServiceLimits
from steelyard.plan.service.assumptions import weakest_assumptions
from steelyard.plan.service.case import ServiceCase
from steelyard.plan.service.deployed import deployed_instance, deployment_of, service_forecasts
from steelyard.plan.service.expected import expected, paced
from steelyard.plan.service.goodput import goodput
from steelyard.plan.service.load import ServiceLoad
from steelyard.plan.service.options import EngineOption
from steelyard.plan.service.reduced import reduced
from steelyard.plan.service.search import ServiceSearch
from steelyard.quantity import Forecast
from steelyard.serve.client.summary import Slo
from steelyard.serve.deployment import DeployedGroup, DeployedLoad, DeployedMachine, Deployment
from steelyard.serve.options import EngineOptions

TIMES = PhaseStepTime.from_fits(
    prefill=(0.018, 1e-4, 7e-9), decode=(0.02, 6e-7, 4e-5), source="made up"
)
SMALL = Architecture(
    name="small", vocab_size=97, max_positions=256, hidden_size=32, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=8, intermediate_size=64,
)  # fmt: skip
STEPS = PhaseStepTime.of(
    ServeStepTime(
        coefficients=(1e-3, 1e-5, 2e-5, 1e-9, 1e-4, 1e-8, 0.0), relative_spread=0.1, count=7
    )
)


def made_load(count=200):
    draw = np.random.default_rng(0)
    return ServiceLoad.drawn(
        draw.integers(200, 600, 500), draw.integers(20, 80, 500), draw, count=count
    )


def made_option(**changes):
    given = {"tensor": 1, "pipeline": 1, "step_time": TIMES, "kv_tokens": 20_000}
    return EngineOption(**(given | changes))


def deployed(**changes):
    given = {
        "model": "llama-3-8b",
        "machine": DeployedMachine(accelerator="H100-SXM5-80GB", per_node=4),
        "groups": (DeployedGroup(num_blocks=20_000, token_budget=512, max_num_seqs=64),),
        "max_model_len": 1500,
        "load": DeployedLoad(rate_per_s=10.0, ttft_s=0.5, tpot_s=0.05, requests=120),
    }
    return Deployment(**(given | changes))


def made_case(running):
    return ServiceCase.asked(running.model, running.machine, running.load)


def test_memory_is_left_for_the_steps_that_an_arrangement_runs():
    # Each token of a step displaces a tenth of a token's keys and values.
    option = made_option(kv_tokens=10_000, step_tokens=512, kv_per_step_token=0.1)
    arranger = Arranger(ServiceLimits(token_budget=512, max_num_seqs=64), longest=6000)
    chunked, whole = (arranger.colocated(option, whole=kind).groups[0] for kind in (False, True))
    assert chunked.blocks == 10_000 // 16
    assert whole.token_budget == 2048
    assert whole.blocks == int(10_000 - 0.1 * (6000 - 512)) // 16
    prefill = arranger.apart(option, option).groups[0]
    assert prefill.blocks == whole.blocks
    # A step that leaves less than the longest request is not arranged at all.
    tight = made_option(kv_tokens=6100, step_tokens=512, kv_per_step_token=0.1)
    assert arranger.takes(tight, "both")
    assert not arranger.takes(tight, "both", whole=True)


def test_file_gives_back_what_was_planned(tmp_path):
    search = ServiceSearch(
        load=made_load(), slo=Slo(ttft_s=0.4, tpot_s=0.06), share=0.9, options=(made_option(),),
        limits=ServiceLimits(per_node=2, max_num_seqs=64),
    )  # fmt: skip
    for arrangement in (
        search.colocated(search.options[0], whole=False),
        search.colocated(search.options[0], whole=True),
        search.apart(search.options[0], search.options[0]),
    ):
        made = deployment_of(
            arrangement,
            model="m",
            machine=DeployedMachine(accelerator="a"),
            instances=3,
            max_model_len=search.load.longest,
            load=DeployedLoad(rate_per_s=1.0, ttft_s=0.4, tpot_s=0.06),
        )
        dump(made, tmp_path / "d.json")
        again = load(tmp_path / "d.json", Deployment)
        assert again == made
        times = [TIMES] * len(made.groups)
        assert deployed_instance(again, times).groups == arrangement.groups
        assert made.num_accelerators == 3 * arrangement.num_devices


def test_file_refuses_what_cannot_be():
    plain = to_plain(deployed())
    for change, match in (
        ({"max_model_len": 10**7}, "do not hold a request"),
        ({"groups": []}, "both, or prefill and decode"),
        ({"instances": 0}, "instances"),
        ({"surprise": 1}, "surprise"),
    ):
        with pytest.raises((ConfigError, CapacityError), match=match):
            convert(plain | change, Deployment, where="d.json")


def test_one_engine_names_what_it_does_not_run():
    halves = (
        DeployedGroup(role="prefill", num_blocks=200, tensor=2),
        DeployedGroup(role="decode", num_blocks=200, pipeline=2),
    )
    wide = deployed(groups=halves, instances=2)
    with pytest.raises(ConfigError, match=r"model .* given.*of their own; 4 replicas; tensor"):
        wide.engine_options("small", EngineOptions())
    one = deployed()
    options = one.engine_options("llama-3-8b", EngineOptions(threads=1))
    assert (options.num_blocks, options.max_model_len, options.threads) == (20_000, 1500, 1)
    with pytest.raises(ConfigError, match="--token-budget and --deployment both"):
        one.engine_options("llama-3-8b", EngineOptions(token_budget=64))


def test_reduced_is_as_busy_and_as_tight_as_planned():
    said = [
        Forecast(
            quantity="serve.goodput", value=20.0, low=15.0, high=25.0, provenance="simulated",
            source="made up",
        )
    ]  # fmt: skip
    asked = DeployedLoad(
        rate_per_s=10.0, ttft_s=0.5, tpot_s=0.05, alone_ttft_s=0.1, alone_tpot_s=0.02, requests=120
    )
    planned = deployed(load=asked, forecasts=tuple(said))
    here = reduced(planned, SMALL, STEPS, memory_bytes=1e7)
    (group,) = here.groups
    assert here.model == "small"
    assert here.max_model_len <= SMALL.max_positions
    rows = here.rows()
    assert len(rows) > 10
    assert max(row.input_tokens + row.output_tokens for row in rows) <= here.max_model_len
    assert here.load.ttft_s / here.load.alone_ttft_s == pytest.approx(5.0)
    assert here.load.tpot_s / here.load.alone_tpot_s == pytest.approx(2.5)
    assert group.num_blocks * 16 * 2 * 2 * 2 * 8 * 4 <= 1e7
    found = {item.quantity: item for item in here.forecasts}
    assert {"serve.ttft", "serve.tpot", "serve.slo_attainment"} <= set(found)
    assert any("x 1/" in line for line in here.reduced)
    assert here.engine_options("small", EngineOptions()).max_model_len == here.max_model_len
    with pytest.raises(CapacityError, match="longest request"):
        reduced(planned, SMALL, STEPS, memory_bytes=1e3)


def test_forecasts_hold_their_value_and_widen_with_the_spread():
    search = ServiceSearch(
        load=made_load(), slo=Slo(ttft_s=0.4, tpot_s=0.06), share=0.9, options=(made_option(),)
    )
    groups = search.colocated(search.options[0], whole=False).groups
    requests = search.load.lasting(2.0, 0.0)
    narrow, wide = (
        {
            item.quantity: item
            for item in expected(groups, requests, search.slo, spread=spread, source="made up")
        }
        for spread in (0.05, 0.5)
    )
    for name, item in narrow.items():
        assert wide[name].low <= item.low <= item.value <= item.high <= wide[name].high
    # Nobody knows from 200 requests that all of a service's keep their limits.
    assert narrow["serve.slo_attainment"].low < narrow["serve.slo_attainment"].value
    assert wide["serve.slo_attainment"].high <= 1.0
    summed = service_forecasts(list(narrow.values()), 3)
    for one, three in zip(narrow.values(), summed, strict=True):
        is_rate = one.quantity in ("serve.throughput", "serve.request_rate")
        assert three.value == pytest.approx(one.value * (3 if is_rate else 1))


def test_assumptions_equal_runs_one_at_a_time():
    search = ServiceSearch(
        load=made_load(), slo=Slo(ttft_s=0.3, tpot_s=0.05), share=0.9, options=(made_option(),)
    )
    arrangement = search.colocated(search.options[0], whole=False)
    planned = search.carried(arrangement).rate_per_s
    found = weakest_assumptions(search, arrangement, planned)
    assert [item.lost for item in found] == sorted((item.lost for item in found), reverse=True)
    by_words = {item.words: item for item in found}
    load = search.load
    for words, groups, other in (
        ("steps take 20% longer", paced(arrangement.groups, 1.2), load),
        (
            "prompts 25% longer",
            arrangement.groups,
            replace(load, input_tokens=np.rint(load.input_tokens * 1.25).astype(int)),
        ),
        (
            "outputs 25% longer",
            arrangement.groups,
            replace(load, output_tokens=np.rint(load.output_tokens * 1.25).astype(int)),
        ),
        (
            "gaps between arrivals vary 2 times as much",
            arrangement.groups,
            load.with_variation(2.0, np.random.default_rng(17)),
        ),
    ):
        carried = goodput(groups, other, search.slo, 0.9).rate_per_s
        assert by_words[words].goodput_per_s == carried
        assert by_words[words].lost == pytest.approx(1 - carried / planned)


def test_changes_are_ranked_and_each_can_be_made():
    running = deployed()
    case = made_case(running)
    base, *found = single_changes(case, running)
    assert base.deployment == running
    able = [item for item in found if item.goodput]
    assert [item.per_device for item in able] == sorted(
        (item.per_device for item in able), reverse=True
    )
    names = {item.name.partition("=")[0] for item in found}
    assert {"tensor", "pipeline", "instances", "roles", "prompts", "dtype", "num_blocks"} <= names
    for item in able[:3]:
        made = changed(case, running, item.name)
        assert made == item.deployment
        assert carried_by(case, made) == item.goodput
        name = item.name.partition("=")[0]
        # Memory follows the change, nothing else does.
        one, two = (
            {key: value for key, value in flatten(to_plain(deployment)).items()
             if not key.endswith(("num_blocks", name, "token_budget"))}
            for deployment in (made, running)
        )  # fmt: skip
        assert one == two or name in ("roles", "prompts")
    # Twice the blocks do not fit beside the weights, and are not claimed to.
    with pytest.raises(CapacityError, match="do not fit"):
        carried_by(case, changed(case, running, "num_blocks=200000"))
    with pytest.raises(ConfigError, match="no change 'tensr=2'"):
        changed(case, running, "tensr=2")
    with pytest.raises(ConfigError, match="whole number"):
        changed(case, running, "tensor=many")


def run_verb(*words):
    with pytest.raises(SystemExit) as caught:
        main(["plan", "serve", *map(str, words)])
    return int(caught.value.code or 0)


def test_verbs_write_compare_and_change(capsys, tmp_path):
    file, other = tmp_path / "d.json", tmp_path / "other.json"
    size = ("--per-node", 1, "--requests", 100, "--prompt", 64, "--output", 16, "--rate", 5)
    named = ("--model", "llama-3-8b", "--machine", "H100-SXM5-80GB")
    assert run_verb(*named, *size, "--out", file, "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    costs = [item["lost"] for item in plan["assumptions"]]
    assert costs == sorted(costs, reverse=True)
    running = load(file, Deployment)
    assert running.load.rate_per_s == 5
    assert {item.quantity for item in running.forecasts} >= {"serve.goodput", "serve.ttft"}
    assert run_verb("--against", file, "--json") == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    assert changes[0]["change"] == ""
    # The plan and the running deployment are the same service.
    goodput_of_plan = next(
        item for item in plan["forecasts"] if item["quantity"] == "serve.goodput"
    )
    assert changes[0]["goodput_per_s"] == pytest.approx(
        goodput_of_plan["value"] * running.instances, rel=1e-6
    )
    words = next(item["command"] for item in changes if item["command"]).split()
    assert words[:3] == ["steelyard", "plan", "serve"]
    assert run_verb("--against", file, "--change", "token_budget=256", "--out", other) == 0
    assert load(other, Deployment).groups[0].token_budget == 256
    assert run_verb("--against", file, "--change", "token_budget=256") == 2
    assert "--change and --out" in capsys.readouterr().err
    assert run_verb("--rate", 5) == 2
    assert "--model is missing" in capsys.readouterr().err
