import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from steelyard.errors import BackendError, CapacityError, ConfigError
from steelyard.parallel import parallel_map, spawn_seeds, stream_map


def test_results_keep_the_order_of_the_items():
    assert parallel_map(abs, range(-20, 0), workers=2) == list(range(20, 0, -1))


def test_seeds_depend_on_the_seed_and_not_on_the_workers():
    def draw(item, seed):
        return item, float(np.random.default_rng(seed).random())

    alone = parallel_map(draw, range(6), workers=1, seed=7)
    assert alone == parallel_map(draw, range(6), workers=2, seed=7)
    assert alone != parallel_map(draw, range(6), workers=1, seed=8)
    assert len({value for _, value in alone}) == 6


def test_spawned_seeds_are_stable_and_a_prefix_of_more():
    assert spawn_seeds(3, 4) == spawn_seeds(3, 9)[:4]
    assert len(set(spawn_seeds(0, 1000))) == 1000


def test_no_items_give_no_results():
    assert parallel_map(abs, []) == []


def test_an_error_in_a_task_reaches_the_caller():
    with pytest.raises(TypeError):
        parallel_map(abs, [1, "x", 2], workers=2)


@pytest.mark.parametrize("workers", [0, -1])
def test_too_few_workers_are_refused(workers):
    with pytest.raises(ConfigError, match="workers"):
        parallel_map(abs, [1], workers=workers)


def test_a_progress_bar_goes_to_standard_error(capsys):
    assert parallel_map(abs, [1, 2], workers=1, label="weighing") == [1, 2]
    assert capsys.readouterr().out == ""


def test_a_cluster_without_ray_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BackendError) as caught:
        parallel_map(abs, [1], cluster="auto")
    assert "steelyard[ray]" in caught.value.hint


def test_items_are_read_only_as_results_are_taken():
    read = []

    def items():
        for item in range(10**9):
            read.append(item)
            yield item

    results = stream_map(abs, items(), workers=2, in_flight=3)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(read) == 7
    results.close()
    alone = stream_map(abs, items(), workers=1)
    assert next(alone) == 0
    assert len(read) == 8


def test_no_calls_in_flight_are_refused():
    with pytest.raises(ConfigError, match="in_flight: 0"):
        list(stream_map(abs, [1], workers=1, in_flight=0))


def killed_once(item, folder):
    """Kill the worker of some item at its first call."""
    mark = Path(folder, str(item))
    if item == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


def test_the_items_of_a_worker_that_dies_are_done_again(tmp_path):
    work = partial(killed_once, folder=str(tmp_path))
    assert list(stream_map(work, range(8), workers=2)) == [item * item for item in range(8)]
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def killed_always(item):
    if item == 2:
        held = bytearray(120_000_000)
        held[::4096] = b"x" * len(held[::4096])
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_an_item_that_kills_twice_is_refused_by_name_with_its_memory():
    with pytest.raises(CapacityError, match="the worker of item 2 died") as caught:
        list(stream_map(killed_always, range(4), workers=2, name=lambda item: f"item {item}"))
    assert "SIGKILL" in str(caught.value)
    held = float(re.search(r"it held ([\d.]+) MB", str(caught.value))[1])
    assert 120 <= held < 900


SLEEPER = """
import os, sys, time
from pathlib import Path
from steelyard.parallel import parallel_map

def work(item):
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(60)

if __name__ == "__main__":
    try:
        parallel_map(work, range(4), workers=2)
    except KeyboardInterrupt:
        sys.exit(130)
"""


def is_alive(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_ctrl_c_leaves_no_workers(tmp_path):
    script, seen = tmp_path / "sleeper.py", tmp_path / "seen"
    script.write_text(SLEEPER.replace("sys.argv[1]", repr(str(seen))))
    seen.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(script)],
        start_new_session=True,
        stderr=subprocess.PIPE,
        # A shell starts background jobs with interrupts ignored, and their children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while len(list(seen.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = [int(path.name) for path in seen.iterdir()]
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors.decode()
    deadline = time.monotonic() + 10
    while any(map(is_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(workers) == 2
    assert not [worker for worker in workers if is_alive(worker)]
