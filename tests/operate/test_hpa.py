"""The rules of autoscaling/v2, one by one, against numbers worked out by hand."""

import numpy as np
import pytest

from steelyard.errors import ConfigError
from steelyard.operate.autoscale import ReactiveHPA, ServiceState, wanted_replicas
from steelyard.sim.autoscale import Service

SERVICE = Service(capacity=1.0, target_utilization=0.5, max_replicas=1000)


def wanted(ready, use, *, starting=0, missing=0, target=0.5):
    state = ServiceState(ready=ready, starting=starting, utilization=use, missing=missing)
    return wanted_replicas(state, target_utilization=target)


@pytest.mark.parametrize(
    ("ready", "use", "expected"),
    [
        (4, 0.5, 4),
        (4, 0.545, 4),  # within 10 %
        (4, 0.455, 4),
        (4, 0.56, 5),  # ceil(4 x 1.12)
        (4, 0.44, 4),  # ceil(4 x .88)
        (10, 0.25, 5),
        (3, 1.0, 6),
        (4, float("nan"), 4),
    ],
)
def test_the_mean_use_is_brought_to_its_target(ready, use, expected):
    assert wanted(ready, use) == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        # Unready replicas count as unused where more are wanted: 3 x 1.0 over 5 is .6, ratio 1.2.
        ({"ready": 3, "use": 1.0, "starting": 2}, 6),
        # 3 x .6 over 5 would turn the direction around: nothing changes.
        ({"ready": 3, "use": 0.6, "starting": 2}, 5),
        # Where fewer are wanted they are left out: ratio .5 of 4 ready.
        ({"ready": 4, "use": 0.25, "starting": 2}, 2),
        # Missing ones are fully used where fewer are wanted: (8 x .1 + 2 x 1) / 10 over .5.
        ({"ready": 10, "use": 0.1, "missing": 2}, 6),
        # (4 x .25 + 4 x 1) / 8 over .5 is above 1: nothing changes.
        ({"ready": 8, "use": 0.25, "missing": 4}, 8),
        # Missing ones are unused where more are wanted: 4 x 1 over 6 and .5 is 1.33, of 6.
        ({"ready": 6, "use": 1.0, "missing": 2}, 8),
        ({"ready": 2, "use": 1.0, "missing": 2}, 2),
    ],
)
def test_replicas_without_metric_are_taken_for_the_careful_value(state, expected):
    assert wanted(**state) == expected


def decide(hpa, now_s, ready, use, starting=0):
    return hpa.decide(now_s, None, ServiceState(ready=ready, starting=starting, utilization=use))


def test_replicas_come_by_the_larger_of_double_and_four_in_15_s():
    hpa = ReactiveHPA(SERVICE)
    assert decide(hpa, 0.0, 2, 50.0) == 6
    assert decide(hpa, 15.0, 6, 50.0) == 12
    assert decide(hpa, 20.0, 12, 50.0) == 12  # six were added within 15 s, so 6 may double to 12
    assert decide(hpa, 30.0, 12, 50.0) == 24


def test_fewer_are_asked_for_after_five_minutes_below():
    hpa = ReactiveHPA(SERVICE)
    assert decide(hpa, 0.0, 10, 0.5) == 10
    found = [decide(hpa, now_s, 10, 0.2) for now_s in np.arange(15.0, 331.0, 15.0)]
    # The last wish for 10 was at 0 s: it holds until it is 300 s old.
    assert found.index(4) == 19 and set(found[:19]) == {10}


def test_the_largest_wish_of_the_window_holds():
    hpa = ReactiveHPA(SERVICE)
    decide(hpa, 0.0, 10, 0.2)
    decide(hpa, 100.0, 10, 0.4)
    assert decide(hpa, 301.0, 10, 0.1) == 8
    assert decide(hpa, 401.0, 8, 0.1) == 2


def test_limits_come_first():
    hpa = ReactiveHPA(Service(capacity=1.0, min_replicas=3, max_replicas=8))
    assert decide(hpa, 0.0, 1, 0.1) == 3
    assert decide(hpa, 15.0, 9, 9.0) == 8
    assert decide(hpa, 30.0, 8, 9.0) == 8


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="tolerance"):
        ReactiveHPA(SERVICE, tolerance=1.0)
