import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.train import schedules


def test_trapezoid_rises_stays_and_falls_as_one_minus_the_root():
    rate = schedules.trapezoid(100, warmup=10, cooldown=20)
    assert rate(0) == 0.1 and rate(9) == 1 and rate(79) == 1
    assert rate(80) == 1 - math.sqrt(1 / 21)
    assert rate(99) == 1 - math.sqrt(20 / 21)
    assert rate(100) == 0


def test_cosine_ends_at_its_final_value():
    rate = schedules.cosine(100, warmup=10)
    assert rate(10) == 1 and rate(55) == pytest.approx(0.55) and rate(100) == pytest.approx(0.1)


@given(st.integers(1, 400), st.data())
def test_multipliers_are_positive_within_the_run_and_never_rise_after_the_warm_up(total, data):
    warmup = data.draw(st.integers(0, total))
    cooldown = data.draw(st.integers(0, total - warmup))
    shape = data.draw(st.sampled_from(["1-sqrt", "linear"]))
    rate = schedules.trapezoid(total, warmup=warmup, cooldown=cooldown, shape=shape)
    values = [rate(step) for step in range(total)]
    assert all(0 < value <= 1 for value in values)
    assert values[warmup:] == sorted(values[warmup:], reverse=True)
    assert values[: total - cooldown] == [
        schedules.constant(total, warmup=warmup)(step) for step in range(total - cooldown)
    ]


def test_linear_lies_above_one_minus_the_root():
    linear, root = (
        schedules.trapezoid(50, cooldown=30, shape=shape) for shape in ("linear", "1-sqrt")
    )
    assert all(linear(step) > root(step) for step in range(20, 50))


@pytest.mark.parametrize("arguments", [(0, 0, 0), (10, 6, 5), (10, -1, 0)])
def test_lengths_that_do_not_fit_are_refused(arguments):
    total, warmup, cooldown = arguments
    with pytest.raises(ConfigError, match="cannot hold"):
        schedules.trapezoid(total, warmup=warmup, cooldown=cooldown)
