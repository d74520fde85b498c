"""Static and autoscaled fleets on a trace with a daily shape."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from steelyard.cost.phase_time import PhaseStepTime
from steelyard.errors import TraceError
from steelyard.plan.service.daily import DailyService
from steelyard.plan.service.goodput import goodput
from steelyard.plan.service.load import ServiceLoad
from steelyard.plan.service.options import EngineOption
from steelyard.plan.service.search import FleetInstance
from steelyard.serve.client.summary import Slo
from steelyard.serve.traces import TraceRow
from steelyard.sim.fleet.instance import ReplicaGroup, simulate_fleet

STEP_TIME = PhaseStepTime.from_fits(
    prefill=(0.018, 1e-4, 7e-9), decode=(0.02, 6e-7, 4e-5), source="made up"
)
OPTION = EngineOption(tensor=1, pipeline=1, step_time=STEP_TIME, kv_tokens=16_000)
GROUP = ReplicaGroup(step_time=STEP_TIME, blocks=1000, max_num_seqs=4, token_budget=512)
INSTANCE = FleetInstance(kind="colocated, chunked prompts", options=(OPTION,), groups=(GROUP,))
APART = FleetInstance(
    kind="apart in one node",
    options=(OPTION, OPTION),
    groups=(
        replace(GROUP, role="prefill", whole_prompts=True),
        replace(GROUP, role="decode"),
    ),
)


@cache
def day(peak=10.0, hours=4 / 3, seed=0):
    """Two waves of load between nothing much and a peak rate."""
    generator = np.random.default_rng(seed)
    times = np.cumsum(generator.exponential(1 / peak, int(peak * hours * 3600)))
    kept = generator.random(len(times)) < np.sin(np.pi * times / 2400) ** 2
    return [
        TraceRow(arrival_s=float(at), input_tokens=int(size), output_tokens=int(length))
        for at, size, length in zip(
            times[kept],
            generator.integers(50, 300, len(times))[kept],
            generator.integers(20, 80, len(times))[kept],
            strict=True,
        )
    ]


SLO = Slo(ttft_s=0.5, tpot_s=0.05)


@cache
def carried(instance):
    generator = np.random.default_rng(0)
    inputs = [row.input_tokens for row in day()]
    outputs = [row.output_tokens for row in day()]
    load = ServiceLoad.drawn(np.array(inputs), np.array(outputs), generator, count=400)
    return goodput(instance.groups, load, SLO, 0.9).rate_per_s


def service(instance=INSTANCE, start_up_s=30.0):
    rows = day()
    return DailyService.of_rows(
        rows, instance, carried(instance), rate_per_s=len(rows) / rows[-1].arrival_s,
        slo=SLO, share=0.9, start_up_s=start_up_s,
    )  # fmt: skip


@pytest.mark.parametrize("instance", [INSTANCE, APART])
def test_scaling_by_the_load_takes_fewer_hours_at_the_same_attainment(instance):
    made = service(instance)
    static, scaled = made.static(), made.scaled()
    assert scaled is not None
    assert static.attainment >= 0.9 <= scaled.attainment
    assert static.most >= 2
    assert scaled.instance_hours < static.instance_hours
    # The fewest that keep the limits: one fewer does not.
    fewer = np.tile([0.0, 0.0, math.inf], (static.most - 1, 1))
    assert made._judged(fewer, "static").attainment < 0.9


def test_static_fleet_is_that_of_the_simulator():
    made = service()
    found = made.static()
    run = simulate_fleet(
        [replace(GROUP, count=found.most)], made.arrival_s, made.input_tokens, made.output_tokens
    )
    assert run.timeline.within(0.5, 0.05).mean() == found.attainment
    hours = found.most * run.timeline.last_token_s.max() / 3600
    assert found.instance_hours == pytest.approx(hours)


def test_slow_starts_cost_hours():
    quick, slow = service(start_up_s=5.0).scaled(), service(start_up_s=600.0).scaled()
    assert quick is not None
    assert slow is None or slow.instance_hours > quick.instance_hours


def test_short_traces_are_refused():
    with pytest.raises(TraceError, match="too short to scale"):
        DailyService.of_rows(
            day()[:20], INSTANCE, 3.0, rate_per_s=3.0, slo=SLO, share=0.9, start_up_s=1.0
        )
