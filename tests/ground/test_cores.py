"""The share of a core that a process gets."""

import time

import pytest

from steelyard import cores


@pytest.mark.parametrize(("used", "share"), [(1.0, 1.0), (0.25, 0.25), (0.0, 0.02)])
def test_a_share_is_processor_time_over_wall_time(monkeypatch, used, share):
    moments = iter([0.0, 0.0, 0.2, 0.2])
    monkeypatch.setattr(time, "perf_counter", lambda: next(moments))
    worked = iter([3.0, 3.0 + 0.2 * used])
    monkeypatch.setattr(time, "thread_time", lambda: next(worked))
    assert cores.core_share(0.1) == pytest.approx(share)


def test_a_real_probe_is_a_share():
    assert 0 < cores.core_share(0.001) <= 1
