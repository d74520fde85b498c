"""Fleets for days not seen: sizes against a plain count, days that may come, refusals."""

import json
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.errors import ConfigError, InfeasibleError, TraceError
from steelyard.plan.service.days import DayLoad, days_of
from steelyard.plan.service.options import EngineOption
from steelyard.plan.service.search import ServiceLimits, ServiceSearch
from steelyard.plan.service.tomorrow import fleet_of, plan_tomorrow, tomorrows
from steelyard.serve.client.summary import Slo
from steelyard.serve.traces import TraceRow, write_rows
from steelyard.serve.traces.columns import TraceColumns

SLO = Slo(ttft_s=0.5, tpot_s=0.06)
DAY_S = 86_400.0


def day(rate, seed=0, *, span_s=2400.0, peak=1.0):
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, span_s, int(rate * span_s)))
    if peak > 1:
        busy = rng.uniform(0.4 * span_s, 0.5 * span_s, int((peak - 1) * rate * span_s / 10))
        times = np.sort(np.concatenate([times, busy]))
    rows = [
        TraceRow(arrival_s=float(at), input_tokens=int(size), output_tokens=24)
        for at, size in zip(times, rng.integers(100, 900, len(times)), strict=True)
    ]
    return DayLoad.of(f"day {seed}", TraceColumns.of(rows), rng, parts=8, piece_s=30.0)


@pytest.fixture(scope="module")
def found():
    times = PhaseStepTime.from_fits(
        prefill=(0.018, 1e-4, 7e-9), decode=(0.02, 6e-7, 4e-5), source="made up"
    )
    option = EngineOption(tensor=1, pipeline=1, step_time=times, kv_tokens=40_000)
    load = day(4.0).load(np.random.default_rng(0), 200)
    limits = ServiceLimits(per_node=1, max_num_seqs=64)
    return ServiceSearch(load=load, slo=SLO, share=0.9, options=(option,), limits=limits).run(4.0)


def plainly(candidate, days, holds):
    """Return the first size that holds, counted one by one, with its shares."""
    for size in count(1):
        shares = [item.attainment(fleet_of(candidate, size), SLO) for item in days]
        if holds(shares):
            return size, tuple(shares)


def test_fewest_instances_are_those_of_a_plain_count(found):
    days = [day(4.0, 1), day(10.0, 2), day(5.0, 3)]
    made = plan_tomorrow(found, days, SLO, 0.9, np.random.default_rng(0), draws=3, arrangements=1)
    coming = [*days, *tomorrows(days, np.random.default_rng(0), 3)]
    size, shares = plainly(found[0], days, lambda seen: np.mean(seen) >= 0.9)
    assert (made.average.instances, made.average.seen) == (size, shares)
    size, shares = plainly(found[0], coming, lambda seen: min(seen) >= 0.9)
    assert (made.lasting.instances, made.lasting.tomorrow) == (size, shares)
    assert made.lasting.devices >= made.average.devices
    assert sum(group.count for group in made.lasting.groups) == made.lasting.instances


def test_days_alike_change_little(found):
    days = [day(6.0, seed) for seed in range(3)]
    coming = tomorrows(days, np.random.default_rng(0), 6)
    assert [item.name for item in coming] == ["day 0", "day 1", "day 2"] * 2
    rates = [item.peak_per_s / 6.0 for item in coming]
    assert 0.7 < min(rates) <= max(rates) < 1.6
    fast = days[0].faster(2.0)
    assert fast.rate_per_s == pytest.approx(2 * days[0].rate_per_s)
    assert fast.attainment(found[0].arrangement.groups, SLO) <= days[0].attainment(
        found[0].arrangement.groups, SLO
    )


def test_parts_count_by_their_requests(found):
    busy = day(2.0, 5, peak=6.0)
    assert busy.peak_per_s > 3 * busy.rate_per_s / 1.6
    idle = replace(busy, weights=np.where(np.arange(8) == busy.weights.argmax(), 0.0, 1.0))
    groups = found[0].arrangement.groups
    assert busy.attainment(groups, SLO) <= idle.attainment(groups, SLO)


def test_a_trace_falls_into_its_days():
    times = np.linspace(0, 2.95 * DAY_S, 3000)
    rows = [TraceRow(arrival_s=float(at), input_tokens=9, output_tokens=9) for at in times]
    days = days_of("week", TraceColumns.of(rows), np.random.default_rng(0))
    assert [item.name for item in days] == ["week, day 1", "week, day 2", "week, day 3"]
    later = [replace(row, arrival_s=row.arrival_s + DAY_S / 2) for row in rows]
    halves = days_of("week", TraceColumns.of(later), np.random.default_rng(0))
    assert [item.name for item in halves] == ["week, day 2", "week, day 3"]
    hour = [TraceRow(arrival_s=float(at), input_tokens=9, output_tokens=9) for at in range(300)]
    assert len(days_of("hour", TraceColumns.of(hour), np.random.default_rng(0))) == 1
    with pytest.raises(TraceError, match="few has 3 requests"):
        days_of("few", TraceColumns.of(hour[:3]), np.random.default_rng(0))


def test_what_cannot_be_planned_is_said(found):
    with pytest.raises(ConfigError, match="1 day shows nothing"):
        plan_tomorrow(found, [day(2.0)], SLO, 0.9, np.random.default_rng(0))
    slow = replace(day(2.0, 7), input_tokens=np.full(len(day(2.0, 7).part), 9000))
    with pytest.raises(InfeasibleError, match=r"reaches 0\.0%"):
        plan_tomorrow(found, [slow, slow], SLO, 0.9, np.random.default_rng(0), draws=2)


def test_the_verb_takes_a_file_for_each_day(tmp_path, capsys):
    words = ["plan", "tomorrow", "--model", "llama-3-8b", "--machine", "A100-SXM4-80GB", "--json"]
    for place, rate in enumerate((1.0, 2.0)):
        rows = [
            TraceRow(arrival_s=at / rate, input_tokens=200, output_tokens=20) for at in range(600)
        ]
        write_rows(tmp_path / f"{place}.csv", rows)
        words += ["--trace", str(tmp_path / f"{place}.csv")]
    words += ["--per-node", "1", "--requests", "100", "--draws", "2"]
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert [item["name"] for item in told["days"]] == ["0.csv", "1.csv"]
    assert told["lasting"]["accelerators"] >= told["average"]["accelerators"] >= 1
    with pytest.raises(SystemExit) as caught:
        main([*words, "--sure", "2"])
    assert caught.value.code == 2
    assert "--sure" in capsys.readouterr().err


def test_prompts_that_share_need_smaller_fleets(found):
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 2400.0, 24_000))
    alone = [TraceRow(arrival_s=float(at), input_tokens=600, output_tokens=24) for at in times]
    shared = [
        TraceRow(
            arrival_s=row.arrival_s, input_tokens=600, output_tokens=24,
            hash_ids=(0, place + 1), block_tokens=256,
        )
        for place, row in enumerate(alone)
    ]  # fmt: skip
    kept = []
    for rows in (alone, shared):
        made = DayLoad.of("day", TraceColumns.of(rows), np.random.default_rng(1), parts=4)
        kept.append(made.attainment(fleet_of(found[0], 1), SLO))
        load = made.load(np.random.default_rng(0), 100)
        assert len(load.input_tokens) == 100
    assert kept[1] > kept[0] + 0.1
    assert load.shared_fraction == pytest.approx(256 / 600, rel=0.05)
    assert made.faster(2.0).shared is made.shared
