"""Fleets over a whole trace: those that stay, those that follow it, and why each lost."""

import json

import numpy as np
import pytest
from tests.plan.test_service import made_search
from tests.plan.test_service_daily import SLO, day

from steelyard import catalog
from steelyard.cli.main import main
from steelyard.errors import CapacityError
from steelyard.plan.service.case import ServiceCase
from steelyard.plan.service.over_trace import fleets_over_trace, is_long_enough
from steelyard.plan.service.search import ServiceCandidate
from steelyard.plan.service.shared import SharedPrompts
from steelyard.serve.traces import TraceRow


@pytest.fixture(scope="module")
def case():
    return ServiceCase(
        arch=catalog.architecture_by_name("llama-3-8b"),
        accelerator=catalog.accelerator("L4"),
        load=made_search().load,
        rate_per_s=10.0,
        slo=SLO,
    )


@pytest.fixture(scope="module")
def found():
    search = made_search(slo=SLO)
    one, two = search.options
    together, apart = search.colocated(one, whole=False), search.apart(one, two)
    return [
        ServiceCandidate(arrangement=item, goodput=search.carried(item))
        for item in (together, apart)
    ]


def test_the_fleet_with_the_fewest_accelerator_hours_comes_first(case, found):
    rows = day()
    fleets = fleets_over_trace(case, found, 6, rows, rate_per_s=8.0, start_up_s=30.0)
    names = [(item.kind, item.fleet) for item in fleets]
    kinds = {item.arrangement.kind for item in found}
    assert {kind for kind, _ in names} == kinds
    assert {fleet for _, fleet in names} == {"as planned", "fewest all the time", "autoscaled"}
    kept = [item for item in fleets if item.attainment >= 0.9]
    hours = [item.accelerator_hours for item in kept]
    assert hours == sorted(hours)
    assert not fleets[0].reason
    assert all(item.reason for item in fleets[1:])
    planned = next(item for item in fleets if item.fleet == "as planned")
    assert planned.most == 6
    assert planned.usd == pytest.approx(planned.accelerator_hours * 0.8048, rel=1e-3)
    more = planned.accelerator_hours / fleets[0].accelerator_hours - 1
    assert planned.reason.startswith(f"{more:.0%} more accelerator hours")


def test_fleets_that_start_too_late_say_so(case, found):
    # Hardly anything for ten minutes, then a rush that is over before anything has started.
    times = np.concatenate([np.arange(0, 600, 10.0), 600 + np.arange(0, 120, 0.01)])
    rows = [TraceRow(arrival_s=at, input_tokens=200, output_tokens=40) for at in times]
    rate = len(rows) / 720
    fleets = fleets_over_trace(case, found[:1], 20, rows, rate_per_s=rate, start_up_s=600.0)
    scaled = next(item for item in fleets if item.fleet == "autoscaled")
    assert scaled.attainment < 0.9
    assert "less than 90%: instances are ready too late" in scaled.reason
    assert not is_long_enough(1200.0, 300.0)


def test_prompts_that_share_need_fewer_hours(case, found):
    alone = [TraceRow(arrival_s=i / 8, input_tokens=520, output_tokens=20) for i in range(2000)]
    shared = [
        TraceRow(arrival_s=row.arrival_s, input_tokens=520, output_tokens=20,
                 hash_ids=(0, place + 1), block_tokens=256)
        for place, row in enumerate(alone)
    ]  # fmt: skip
    hours = []
    for rows in (alone, shared):
        fleets = fleets_over_trace(case, found[:1], 6, rows, rate_per_s=8.0, start_up_s=10.0)
        made = {item.fleet: item for item in fleets}
        hours.append(made["fewest all the time"].accelerator_hours)
    assert hours[1] < hours[0]


def test_blocks_are_as_coarse_as_they_have_to_be(found):
    rows = [
        TraceRow(arrival_s=0.0, input_tokens=40_960, output_tokens=1, hash_ids=tuple(range(80)))
    ] * 1000
    made = SharedPrompts.of_rows(rows)
    assert made.block_size == 64
    assert sum(len(ids) for ids in made.block_ids) <= 1_000_000
    (group,) = made.groups(found[0].arrangement.groups, 40_961)
    assert group.blocks * group.block_size >= 40_961
    assert not SharedPrompts.of_rows(
        [TraceRow(arrival_s=0.0, input_tokens=9, output_tokens=1)]
    ).block_ids
    many = SharedPrompts(block_ids=((0,),), block_size=16, num_names=50_000_000)
    with pytest.raises(CapacityError, match="too many to follow"):
        many.groups(found[0].arrangement.groups, 10)


def test_verb_shows_fleets_over_a_long_trace(tmp_path, capsys):
    generator = np.random.default_rng(0)
    times = np.cumsum(generator.exponential(0.1, 15_000))
    busy = times[generator.random(len(times)) < np.sin(np.pi * times / 1500) ** 2]
    lines = "".join(f"{at:.3f},300,40\n" for at in busy)
    path = tmp_path / "day.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n" + lines)
    words = ["plan", "serve", "--model", "llama-3-8b", "--machine", "L4", "--requests", "100"]
    words += ["--trace", str(path), "--per-node", "1", "--tpot", "100 ms"]
    words += ["--start-up", "20 s", "--json"]
    with pytest.raises(SystemExit, match="0"):
        main(words)
    found = json.loads(capsys.readouterr().out)
    fleets = found["over_trace"]
    assert [item["fleet"] for item in fleets].count("autoscaled") == 1
    scaled = next(item for item in fleets if item["fleet"] == "autoscaled")
    planned = next(item for item in fleets if item["fleet"] == "as planned")
    assert scaled["accelerator_hours"] < planned["accelerator_hours"]
    assert planned["most"] == found["choice"]["instances"]
    with pytest.raises(SystemExit, match="2"):
        main([*words[:-3], "--start-up", "-3 s"])
    assert "--start-up" in capsys.readouterr().err
