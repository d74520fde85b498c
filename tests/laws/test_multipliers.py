import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.laws.forms.schedules.multipliers import constant, cosine, trapezoid


def test_trapezoid_rises_stays_and_falls_as_one_minus_the_root():
    rates = trapezoid(100, warmup=10, cooldown=20)
    assert len(rates) == 100
    assert rates[0] == 0.1 and rates[9] == 1 and rates[79] == 1
    assert rates[80] == 1 - math.sqrt(1 / 21)
    assert rates[99] == 1 - math.sqrt(20 / 21)


def test_cosine_starts_at_the_peak_and_nears_its_final_value():
    rates = cosine(100, warmup=10)
    assert rates[10] == 1 and rates[55] == pytest.approx(0.55)
    assert 0.1 < rates[99] < 0.1005


@given(st.integers(1, 400), st.data())
def test_multipliers_are_positive_within_the_run_and_never_rise_after_the_warm_up(total, data):
    warmup = data.draw(st.integers(0, total))
    cooldown = data.draw(st.integers(0, total - warmup))
    shape = data.draw(st.sampled_from(["1-sqrt", "linear", "cosine", "1-square"]))
    rates = trapezoid(total, warmup=warmup, cooldown=cooldown, shape=shape)
    assert ((rates > 0) & (rates <= 1)).all() and (np.diff(rates[warmup:]) <= 0).all()
    before = slice(total - cooldown)
    assert (rates[before] == constant(total, warmup=warmup)[before]).all()
    # The fall spares both ends: its first step is below the peak.
    assert not cooldown or rates[total - cooldown] < 1


@pytest.mark.parametrize("shape", ["1-sqrt", "linear", "cosine", "1-square", "exponential"])
def test_a_final_rate_lifts_the_end_of_every_shape(shape):
    rates = trapezoid(100, cooldown=50, shape=shape, final=0.1)
    assert rates[49] == 1 and 0.1 < rates[99] < 0.15


def test_linear_lies_above_one_minus_the_root():
    linear, root = (trapezoid(50, cooldown=30, shape=shape) for shape in ("linear", "1-sqrt"))
    assert (linear[20:] > root[20:]).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: trapezoid(0, cooldown=0), "cannot hold"),
        (lambda: trapezoid(10, warmup=6, cooldown=5), "10 steps cannot hold 6 warm-up and 5"),
        (lambda: trapezoid(10, warmup=-1, cooldown=0), "cannot hold"),
        (lambda: constant(10, warmup=11), "cannot hold"),
        (lambda: cosine(10, final=1.5), "1.5 must lie"),
        (lambda: trapezoid(10, cooldown=2, shape="exponential"), "cannot end at 0"),
    ],
)
def test_what_a_run_cannot_hold_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
