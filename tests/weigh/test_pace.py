"""The speed of the moment: timings on a clock of the test's own."""

import math

import numpy as np
import pytest

from steelyard.weigh.pace import Pace, Pacer, drift, joined


class Clock:
    """A clock that moves by a fixed time whenever it is read."""

    def __init__(self, step_s: float) -> None:
        self.now_s = 0.0
        self.step_s = step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def test_the_work_is_timed_five_times_a_second():
    clock = Clock(0.001)
    pacer = Pacer(clock=clock)
    for _ in range(100):
        pacer.tick()
        clock.now_s += 0.05
    # 5 s pass; a timing ends shortly after it was due, and the next 0.05 s later at the latest.
    assert 19 <= len(pacer.timings_s) <= 25
    assert pacer.timings_s == pytest.approx([0.001] * len(pacer.timings_s))
    assert len(pacer.lone_timings_s) == len(pacer.timings_s)


def test_a_pace_sums_the_timings_up_by_windows():
    pacer = Pacer()
    assert pacer.pace() == Pace()
    pacer.timings_s = [1.0] * 25 + [3.0] * 25 + [2.0] * 12
    pacer.lone_timings_s = [1.0] * 3
    found = pacer.pace()
    # The last twelve are less than half a window.
    assert found.windows_s == (1.0, 3.0) and found.lone_windows_s == (1.0,)
    assert found.median_s == 2.0 and found.mean_s == pytest.approx(124 / 62)


def test_a_timing_that_slept_counts_four_medians_at_most():
    pacer = Pacer()
    pacer.timings_s = [1.0] * 9 + [1000.0]
    pacer.lone_timings_s = [1.0] * 10
    assert pacer.pace().mean_s == pytest.approx(1.3)


def test_times_without_a_pace_do_not_count():
    first, second = Pace(median_s=1.0, mean_s=2.0, windows_s=(2.0,)), Pace()
    assert joined([first, second]) == first
    assert joined([]) == Pace()
    third = Pace(
        median_s=3.0, mean_s=4.0, windows_s=(4.0, 4.5), lone_mean_s=1.0, lone_windows_s=(1.0,)
    )
    both = joined([first, third])
    assert both.median_s == 2.0 and both.windows_s == (2.0, 4.0, 4.5)
    assert both.lone_windows_s == (1.0,)


def test_drift_holds_four_fifths_of_the_windows():
    generator = np.random.default_rng(0)
    windows = np.exp(generator.normal(0, 0.3, 20_000))
    half = drift(windows.tolist())
    inside = np.abs(np.log(windows)) <= math.log1p(half)
    assert inside.mean() == pytest.approx(0.8, abs=0.01)
    assert drift([1.0] * 5) == 0.0 and drift([1.0, 9.0]) == 0.0


def test_the_work_is_real():
    pacer = Pacer()
    pacer.tick()
    pacer.tick()
    assert len(pacer.timings_s) == 1 and pacer.timings_s[0] > 0 and pacer.lone_timings_s[0] > 0
