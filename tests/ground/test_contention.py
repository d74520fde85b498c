"""What other work takes: counters of a made-up kernel, and of this one."""

import os
from pathlib import Path

import pytest

from steelyard.contention import LoadMeter

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
PROCESSOR = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0


def kernel(
    root: Path, *, busy_s: float, stolen_s: float = 0.0, threads: dict[str, tuple[float, float]]
) -> None:
    """Write the counters of a machine of one processor."""
    ticks = [round(busy_s / TICK_S), 0, 0, 5000, 0, 0, 0, round(stolen_s / TICK_S), 0, 0]
    lines = ["cpu  1 2 3 4 5 6 7 8 9 10", f"cpu{PROCESSOR} {' '.join(map(str, ticks))}", "intr 1 2"]
    root.mkdir(exist_ok=True)
    (root / "stat").write_text("\n".join(lines))
    for name, (ran_s, waited_s) in threads.items():
        folder = root / "self" / "task" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"{round(ran_s * 1e9)} {round(waited_s * 1e9)} 7\n")


@pytest.fixture
def clock(monkeypatch):
    """Stand the clocks of wall and own processor time still; a test moves them."""
    times = {"wall": 100.0, "own": 10.0}
    monkeypatch.setattr("steelyard.contention.time.perf_counter", lambda: times["wall"])
    monkeypatch.setattr(
        "steelyard.contention.os.times",
        lambda: os.times_result((times["own"], 0.0, 0.0, 0.0, times["wall"])),
    )
    return times


def test_the_most_disturbed_busy_thread_counts(tmp_path, clock):
    kernel(tmp_path, busy_s=50.0, threads={"1": (5.0, 1.0), "2": (5.0, 1.0), "3": (0.0, 0.0)})
    meter = LoadMeter(tmp_path)
    clock["wall"] += 10.0
    clock["own"] += 12.0
    # Thread 2 had to wait for 4 of the 10 seconds. Thread 3 waited for most of what it wanted, but
    # it wanted next to nothing.
    kernel(tmp_path, busy_s=66.0, threads={"1": (15.0, 1.0), "2": (11.0, 5.0), "3": (0.1, 0.9)})
    load = meter.read()
    assert load.lost == pytest.approx(0.4)
    assert load.others == pytest.approx(0.4, abs=0.01)
    assert load.wall_s == pytest.approx(10.0)


def test_what_the_hypervisor_takes_is_lost_too(tmp_path, clock):
    kernel(tmp_path, busy_s=0.0, threads={"1": (0.0, 0.0)})
    meter = LoadMeter(tmp_path)
    clock["wall"] += 10.0
    clock["own"] += 8.0
    kernel(tmp_path, busy_s=8.0, stolen_s=2.0, threads={"1": (8.0, 0.0)})
    load = meter.read()
    assert load.lost == pytest.approx(0.2, abs=0.01)
    assert load.others == 0.0


def test_a_system_without_counters_says_nothing(tmp_path, clock):
    meter = LoadMeter(tmp_path / "missing")
    clock["wall"] += 1.0
    clock["own"] += 1.0
    load = meter.read()
    assert (load.lost, load.others, load.wall_s) == (0.0, 0.0, pytest.approx(1.0))


def test_this_systems_counters_can_be_read():
    load = LoadMeter().read()
    assert 0.0 <= load.lost <= 1.0
    assert load.others >= 0.0
