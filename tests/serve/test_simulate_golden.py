"""The simulator against stored values of a simulator with an event loop of its own.

That program, which came before the driver was shared, wrote them; they hold to the last digit.
"""

import csv
import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steelyard.serve import Scheduler, SchedulerConfig, make_request, synthetic_rows
from steelyard.serve.scheduling.fairness.order import OrderPolicy
from steelyard.serve.simulate import simulate
from steelyard.serve.traces import TraceRequest

GOLDEN = Path(__file__).parents[1] / "golden" / "serve_simulate.csv"

CASES = {
    "plain": {},
    "one step ahead": {"asynchronous": True},
    "small chunks": {"token_budget": 8},
    "small chunks, one step ahead": {"token_budget": 9, "asynchronous": True, "rate_per_s": 80.0},
    "one sequence": {"max_num_seqs": 1},
    "prefix caching": {"prefix_caching": True},
    "prefix caching, one step ahead": {"prefix_caching": True, "asynchronous": True},
    "preemption": {"num_blocks": 15, "rate_per_s": 1000.0},
    "preemption, one step ahead": {"num_blocks": 15, "rate_per_s": 1000.0, "asynchronous": True},
    "block groups": {"allocator": "block-group", "num_blocks": 20},
    "families": {"outputs": 3},
    "families, one step ahead": {"outputs": 3, "asynchronous": True, "num_blocks": 30},
    "vtc": {"policy": "vtc", "clients": 4, "rate_per_s": 60.0},
    "vtc, one step ahead": {"policy": "vtc", "clients": 2, "max_num_seqs": 2, "asynchronous": True},
    "vtc, often idle": {"policy": "vtc", "rate_per_s": 9.0},
    "dlpm": {"policy": "dlpm", "prefix_caching": True, "rate_per_s": 25.0},
    "shortest job": {"policy": "sjf", "update_every": 4},
    "changing order": {"order": True, "update_every": 3, "num_blocks": 16},
    "changing order, one step ahead": {"order": True, "update_every": 2, "asynchronous": True},
    "idle between": {"rate_per_s": 4.0},
    "all at once": {"rate_per_s": float("inf"), "token_budget": 64},
    "unsteady steps": {"irregular": True, "prefix_caching": True, "num_blocks": 18},
    "unsteady steps, one step ahead": {"irregular": True, "asynchronous": True},
}


class Shuffled(OrderPolicy):
    """Ranks that change with every round."""

    round = 0

    def update(self, now_s):
        self.round += 1

    def key(self, request, now_s):
        return ((request.order * 7 + self.round * 5) % 11, request.order)


def trace(rate_per_s, clients=3):
    """Arrivals are multiples of 1/1024 s, as are regular steps: many fall on the end of a step."""
    generator = np.random.default_rng(11)
    rows = synthetic_rows(
        generator,
        num_requests=24,
        rate_per_s=rate_per_s,
        mean_prompt=12,
        mean_output=8,
        max_prompt=30,
        max_output=16,
    )
    shared = generator.integers(0, 50, 16).tolist()
    return [
        TraceRequest(
            arrival_s=round(row.arrival_s * 1024) / 1024,
            prompt=[*shared, *generator.integers(0, 50, 30).tolist()][-row.input_tokens :]
            if index % 3
            else [*shared, index][: row.input_tokens],
            output_tokens=row.output_tokens,
            client="abcdefgh"[index * index % clients],
        )
        for index, row in enumerate(rows)
    ]


def regular(plan):
    return (8 + plan.num_tokens // 4 + len(plan.request_ids)) / 1024


def irregular(plan):
    return 0.0071 + 0.00013 * plan.num_tokens + 1.7e-6 * int(plan.context_lengths.sum())


def run(case, simulate=simulate):
    """Replay the trace of one case."""
    options = {"rate_per_s": 40.0, **CASES[case]}
    order, outputs = options.pop("order", False), options.pop("outputs", 1)
    step_time_s = irregular if options.pop("irregular", False) else regular
    requests, asynchronous = (
        trace(options.pop("rate_per_s"), options.pop("clients", 3)),
        options.pop("asynchronous", False),
    )

    def several(item, row):
        request = make_request(item, row)
        request.params = replace(request.params, n=outputs)
        return request

    limits = {"num_blocks": 26, "block_size": 4, "token_budget": 24, "max_num_seqs": 6}
    config = SchedulerConfig(**{**limits, "max_model_len": 48, "prefix_caching": False, **options})
    scheduler = Scheduler(config, policy=Shuffled() if order else None)
    replay = simulate(scheduler, requests, step_time_s, several, asynchronous=asynchronous)
    return scheduler, replay


def row_of(case, replay):
    """Times of requests digit by digit, those of steps as a digest of their bits."""
    times = replay.timeline
    steps = [*times.step_s.tolist(), *times.kv_utilization.tolist()]
    return {
        "case": case,
        "steps": str(len(times.step_s)),
        "steps_sha256": hashlib.sha256(struct.pack(f"<{len(steps)}d", *steps)).hexdigest(),
        "first_token_s": " ".join(map(repr, times.first_token_s.tolist())),
        "last_token_s": " ".join(map(repr, times.last_token_s.tolist())),
    }


def golden():
    with GOLDEN.open() as stream:
        return {row["case"]: row for row in csv.DictReader(stream)}


@pytest.mark.parametrize("case", CASES)
def test_values_equal_those_of_the_earlier_simulator(case):
    scheduler, replay = run(case)
    assert row_of(case, replay) == golden()[case]
    assert scheduler.num_preemptions > 0 or "preemption" not in case
    assert not scheduler.has_work
