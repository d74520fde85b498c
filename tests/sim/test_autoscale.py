"""The service under a demand: what is paid, missed and queued."""

import numpy as np
import pytest

from steelyard.errors import ConfigError, TraceError
from steelyard.sim.autoscale import Service, ServicePlant
from steelyard.sim.control import Command, Latency
from steelyard.sim.loop import EventLoop


def plant_of(demand, *, replicas=0, step_s=100.0, **options):
    service = Service(capacity=10.0, target_utilization=0.5, **options)
    return ServicePlant(service, demand, step_s=step_s, replicas=replicas)


def test_replicas_that_start_are_paid_and_carry_nothing():
    plant = plant_of([20.0], replicas=2, startup=Latency.always(30.0))
    plant.start(EventLoop())
    plant.apply(Command("replicas", 4))
    plant.advance(30.0)
    assert (plant.read("ready"), plant.read("starting")) == (4, 0)
    assert plant.read("utilization") == 1.0
    plant.advance(100.0)
    outcome = plant.outcome()
    assert outcome.violated == pytest.approx(30.0) and outcome.checked == 100.0
    assert outcome.details["instance_hours"] == pytest.approx(400 / 3600)
    # Two replicas were missing for 30 s, at 19 times their price.
    assert outcome.penalty == pytest.approx(2 * 30 / 3600 * 19)
    assert plant.read("utilization") == 0.5 and plant.ready_by_step[0] == pytest.approx(3.4)


def test_those_that_start_are_given_up_before_ready_ones_are_drained():
    plant = plant_of([5.0], replicas=3, startup=Latency.always(50.0), drain_s=20.0)
    plant.apply(Command("replicas", 5))
    plant.advance(10.0)
    plant.apply(Command("replicas", 2))
    plant.advance(100.0)
    assert (plant.read("ready"), plant.read("starting")) == (2, 0)
    # 5 for 10 s, then 2 ready and one that drains for 20 s.
    assert plant.paid_s == pytest.approx(5 * 10 + 2 * 90 + 20)


def test_limits_hold():
    plant = plant_of([5.0], min_replicas=2, max_replicas=4)
    plant.apply(Command("replicas", 99))
    assert plant.read("ready") == 4
    plant.apply(Command("replicas", 0))
    assert plant.read("ready") == 2


@pytest.mark.parametrize(("load", "missed_s"), [([15.0, 0.0], 150.0), ([10.0, 10.0], 0.0)])
def test_work_waits_in_a_queue_until_it_is_done(load, missed_s):
    # 5 too many a second make 500 in 100 s; ten are worked off a second; above 50 is too long.
    plant = plant_of(load, replicas=1, goal="queue", max_wait_s=5.0)
    plant.advance(37.0)
    plant.advance(200.0)
    expected = 90.0 + 45.0 if missed_s else 0.0
    assert plant.outcome().violated == pytest.approx(expected)


def test_pieces_of_time_add_up():
    rng = np.random.default_rng(0)
    demand = rng.uniform(0, 60, 20)
    ends = np.sort(rng.uniform(0, 2000, 300))
    whole, parts = (plant_of(demand, startup=Latency.lognormal(40, 0.5)) for _ in range(2))
    for plant in (whole, parts):
        plant.advance(500.0)
        plant.apply(Command("replicas", 9))
    for end in ends[ends > 500]:
        parts.advance(end)
    for plant in (whole, parts):
        plant.advance(2000.0)
    assert parts.outcome().cost == pytest.approx(whole.outcome().cost)
    assert parts.outcome().violated == pytest.approx(whole.outcome().violated)
    assert parts.ready_by_step == pytest.approx(whole.ready_by_step)


def test_nothing_is_known_before_the_first_step():
    plant = plant_of([7.0, 9.0])
    assert np.isnan(plant.read("demand")) and np.isnan(plant.read("utilization"))
    plant.advance(100.0)
    assert plant.read("demand") == 7.0
    plant.advance(100.5)
    assert plant.read("demand") == 9.0


def test_capacities_spread_as_asked():
    service = Service(capacity=10.0, target_utilization=1.0)
    plant = ServicePlant(service, np.full(4000, 20.0), step_s=1.0, replicas=2, capacity_spread=0.1)
    use = []
    for step in range(4000):
        plant.advance(step + 1.0)
        use.append(1 / plant.read("utilization"))
    assert np.mean(use) == pytest.approx(1.0, abs=0.01)
    assert np.std(use) == pytest.approx(0.1, rel=0.1)


def test_replicas_follow_load_within_limits():
    service = Service(capacity=10.0, target_utilization=0.8, max_replicas=7)
    assert [service.replicas_for(load) for load in (0, 8, 8.1, 1e9)] == [1, 1, 2, 7]
    assert service.miss_ratio == pytest.approx(19)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: Service(capacity=0.0), ConfigError, "capacity"),
        (
            lambda: Service(capacity=1.0, min_replicas=5, max_replicas=4),
            ConfigError,
            "max_replicas",
        ),
        (lambda: plant_of([1.0, -1.0]), TraceError, "step 1"),
        (lambda: plant_of([1.0, np.nan]), TraceError, "step 1"),
        (lambda: plant_of([]), TraceError, "at least one"),
        (lambda: plant_of([1.0], step_s=0.0), ConfigError, "step of 0.0"),
    ],
)
def test_what_cannot_be_is_refused(make, kind, words):
    with pytest.raises(kind, match=words):
        make()
