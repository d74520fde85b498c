"""Replicas that start, drain and fail: requests are served once, and paid time is right."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.operate.autoscale import ReactiveHPA, ScalerPolicy
from steelyard.serve.replica import SchedulerReplica
from steelyard.serve.routing import LongestPrefix, fewest_requests
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.sim.autoscale import Service
from steelyard.sim.control import Actuator, Command, Latency, Meter, simulate
from steelyard.sim.fleet import FleetJob, ScaledFleet, run_fleet

CONFIG = SchedulerConfig(
    num_blocks=64, block_size=4, token_budget=64, max_num_seqs=4, max_model_len=128
)
COLD = Service(capacity=1.0, min_replicas=1, max_replicas=8, startup=Latency.always(5.0))


def replica():
    return SchedulerReplica(CONFIG, lambda plan: 0.05 + 1e-3 * plan.num_tokens)


def made_jobs(count=40, rate=2.0, seed=0):
    generator = np.random.default_rng(seed)
    arrivals = np.cumsum(generator.exponential(1 / rate, count))
    return [
        FleetJob(
            arrival_s=float(at),
            input_tokens=int(generator.integers(4, 40)),
            output_tokens=int(generator.integers(1, 30)),
        )
        for at in arrivals
    ]


class Script:
    """A policy that says what was written down."""

    def __init__(self, numbers):
        self.numbers = iter(numbers)

    def decide(self, now_s, observation):
        number = next(self.numbers, None)
        return [] if number is None else [Command("replicas", float(number))]


def played(plant, policy=None, duration_s=200.0, period_s=5.0):
    meters = [
        Meter(name=name, period_s=period_s) for name in ("demand", "load", "ready", "utilization")
    ]
    actuators = [Actuator(target="replicas")]
    return simulate(
        policy or Script([]), plant, meters, actuators, period_s=period_s, duration_s=duration_s
    )


def test_a_fleet_that_stays_as_it_is_is_the_plain_one():
    jobs, plain = made_jobs(), made_jobs()
    plant = ScaledFleet(jobs, replica, COLD, route=fewest_requests, replicas=3)
    report = played(plant)
    run_fleet(plain, [replica() for _ in range(3)], route=fewest_requests)
    assert [job.last_token_s for job in jobs] == [job.last_token_s for job in plain]
    assert [job.first for job in jobs] == [job.first for job in plain]
    assert report.outcome.details["instance_hours"] == pytest.approx(3 * 200 / 3600)
    assert report.outcome.violated == 0


def test_cold_starts_take_their_time_and_are_paid():
    # The only replica fails at once in the beginning: all wait until the next one is ready.
    jobs = [FleetJob(arrival_s=10.0, input_tokens=8, output_tokens=3) for _ in range(3)]
    plant = ScaledFleet(jobs, replica, COLD, route=fewest_requests, ttft_s=4.0)

    class Failing:
        def decide(self, now_s, observation):
            if now_s == 5.0:
                plant._fail(plant._members[0])
            return []

    # Failed at 5 s, the next one is ready at 10 s, when the requests come.
    report = played(plant, Failing(), duration_s=50.0)
    assert report.outcome.violated == 0 and jobs[0].first == 1
    assert report.outcome.details["instance_hours"] == pytest.approx(50 / 3600)
    late = [FleetJob(arrival_s=6.0, input_tokens=8, output_tokens=3) for _ in range(3)]
    plant = ScaledFleet(late, replica, COLD, route=fewest_requests, ttft_s=4.0)
    assert played(plant, Failing(), duration_s=50.0).outcome.violated == 3
    assert late[0].first_token_s > 10.0


def test_a_replica_that_is_let_go_ends_its_requests_first():
    jobs = [FleetJob(arrival_s=4.9, input_tokens=8, output_tokens=100) for _ in range(2)]
    plant = ScaledFleet(jobs, replica, COLD, route=fewest_requests, replicas=2)
    report = played(plant, Script([2, 1]), duration_s=60.0)
    assert {job.first for job in jobs} == {0, 1}
    assert all(job.last_token_s > 9.0 for job in jobs)
    # The one that went is paid until its request ended, the other to the end.
    paid_s = 60.0 + min(job.last_token_s for job in jobs)
    assert report.outcome.details["instance_hours"] == pytest.approx(paid_s / 3600)


@settings(max_examples=25, deadline=None)
@given(
    numbers=st.lists(st.integers(1, 5), max_size=15),
    life_s=st.sampled_from([8.0, 40.0, math.inf]),
    retries=st.integers(0, 4),
    seed=st.integers(0, 100),
)
def test_every_request_ends_once_or_is_lost(numbers, life_s, retries, seed):
    jobs = made_jobs(30, seed=seed)
    route = LongestPrefix()
    plant = ScaledFleet(
        jobs, replica, COLD, route=route, mean_life_s=life_s, retries=retries, seed=seed,
        gone=route.index.forget,
    )  # fmt: skip
    report = played(plant, Script(numbers), duration_s=2000.0)
    ended = [job for job in jobs if not math.isnan(job.last_token_s)]
    assert len(ended) + len(plant.lost) == len(jobs)
    assert report.outcome.violated == len(plant.lost)
    assert all(job.first_token_s >= job.arrival_s for job in ended)
    assert plant.num_retries <= retries * len(jobs)
    if life_s == math.inf:
        assert not plant.lost and not plant.num_retries
    # One replica at least is paid all the time, and no more than the most.
    hours = report.outcome.details["instance_hours"] * 3600 / 2000.0
    assert 1 - 1e-9 <= hours <= COLD.max_replicas + len(jobs)
    assert plant.read("waiting") == 0


def test_scalers_of_services_control_it():
    # Ten minutes of hardly any load, then fifty times as much.
    calm = [FleetJob(arrival_s=20.0 * row, input_tokens=20, output_tokens=8) for row in range(30)]
    rush = [
        FleetJob(arrival_s=600.0 + 0.4 * row, input_tokens=20, output_tokens=8)
        for row in range(1000)
    ]
    plant = ScaledFleet([*calm, *rush], replica, COLD, route=fewest_requests, window_s=30.0)
    policy = ScalerPolicy(ReactiveHPA(COLD))
    report = played(plant, policy, duration_s=1010.0, period_s=15.0)
    assert plant.wanted >= 3 and report.outcome.violated == 0
    # Far fewer than the most all the time, and more than one.
    assert 1010 / 3600 < report.outcome.details["instance_hours"] < 4 * 1010 / 3600


@pytest.mark.parametrize("bad", [{"window_s": 0.0}, {"mean_life_s": 0.0}, {"retries": -1}])
def test_bad_arguments_are_refused(bad):
    with pytest.raises(ConfigError):
        ScaledFleet(made_jobs(2), replica, COLD, route=fewest_requests, **bad)
    with pytest.raises(ConfigError, match="by arrival"):
        ScaledFleet(made_jobs(2)[::-1], replica, COLD, route=fewest_requests)
