"""Writers that are killed, and writers that write at once."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from steelyard.runs import RunStore

# Writes row i with value 2i, and after each flush says how many rows are safe; measures between, so
# the database is hit too.
WRITER = """
import sys
from pathlib import Path
from steelyard.quantity import Forecast, Measurement
from steelyard.runs import RunStore
store = RunStore(Path(sys.argv[1]))
run = store.create("train", {"n": 1}, seed=0)
print("id", run.id, flush=True)
run._flush_rows, run._flush_s = 7, 1e9
safe = 0
for step in range(int(sys.argv[2])):
    run.log(step, value=2.0 * step)
    if (step + 1) % 7 == 0:
        print("rows", step + 1, flush=True)
    if step % 5 == 0:
        run.measure(Measurement(quantity="train.loss", value=float(step)))
        safe += 1
        print("measured", safe, flush=True)
run.finish()
"""


def start(folder: Path, rows: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(rows)], stdout=subprocess.PIPE, text=True
    )


def kill_once(folder: Path, delay_s: float) -> None:
    """Kill one writer, then hold what is stored against what the writer had said to be safe."""
    child = start(folder, 10**9)
    assert child.stdout is not None
    run_id = child.stdout.readline().split()[1]
    time.sleep(delay_s)
    child.send_signal(signal.SIGKILL)
    said = dict(
        line.split()
        for line in child.stdout.read().splitlines()
        if len(line.split()) == 2 and line.split()[1].isdigit()
    )
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    store = RunStore(folder)
    record = store.get(run_id)
    assert record.status == "interrupted"
    assert [item.value for item in record.measurements] == [
        5.0 * i for i in range(len(record.measurements))
    ]
    frame = store.columns(run_id)
    # The writer's last words may be cut, so what is kept may run ahead of them, never behind, and
    # never by more than one flush.
    assert frame["step"].to_list() == list(range(frame.height))
    if frame.height:
        assert frame["value"].to_list() == [2.0 * i for i in range(frame.height)]
    assert 0 <= frame.height - int(said.get("rows", 0)) <= 7
    assert 0 <= len(record.measurements) - int(said.get("measured", 0)) <= 1
    with store.resume(run_id) as run:
        run.log(frame.height, value=2.0 * frame.height)
    assert store.columns(run_id)["value"].to_list() == [2.0 * i for i in range(frame.height + 1)]
    assert not list((record.directory / "columns").glob(".*"))


def test_a_killed_writer_loses_only_its_tail(tmp_path: Path) -> None:
    rng = random.Random(0)
    for _ in range(3):
        kill_once(tmp_path, rng.uniform(0.0, 0.4))
    assert len(RunStore(tmp_path).list()) == 3


@pytest.mark.slow
def test_fifty_killed_writers_lose_only_their_tails(tmp_path: Path) -> None:
    rng = random.Random(1)
    for _ in range(50):
        kill_once(tmp_path, rng.uniform(0.0, 0.8))
    assert len(RunStore(tmp_path).list()) == 50


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    children = [start(tmp_path, 200) for _ in range(2)]
    for child in children:
        child.communicate()
        assert child.returncode == 0
    store = RunStore(tmp_path)
    for record in store.list():
        assert record.status == "done"
        assert [item.value for item in record.measurements] == [5.0 * i for i in range(40)]
        assert store.columns(record.id)["value"].to_list() == [2.0 * i for i in range(200)]
    assert len(store.list()) == 2


@pytest.mark.postgres
def test_postgresql_through_the_same_code(tmp_path: Path) -> None:
    url = os.environ.get("STEELYARD_TEST_POSTGRES", "")
    if not url:
        pytest.skip("STEELYARD_TEST_POSTGRES holds no URL")
    from steelyard.quantity import Check, Forecast, Measurement
    from steelyard.runs import Ledger

    store = RunStore(url, folder=tmp_path)
    made = Forecast.about("eval.loss", 3.0, relative=0.1, provenance="fitted", source="law")
    found = Measurement(quantity="eval.loss", value=3.1, time_s=1.0)
    with store.create("train", {"a": [1, {"b": None}]}, seed=2**40, name="ü") as run:
        run.forecast(made)
        run.measure(found)
        run.log(0, loss=1.0)
        run.artifact("recipe", run.directory / "recipe.json")
        run.artifact("recipe", run.directory / "recipe.json")
    record = RunStore(url, folder=tmp_path).get(run.id[:8])
    assert (record.status, record.name, record.seed, record.recipe) == (
        "done",
        "ü",
        2**40,
        {"a": [1, {"b": None}]},
    )
    assert (record.forecasts, record.measurements, len(record.artifacts)) == ((made,), (found,), 1)
    assert isinstance(store.columns(run.id), pl.DataFrame)
    ledger, name = Ledger(store), f"law-{run.id}"
    for _ in range(2):
        ledger.record(name, store.check(run.id), run.id)
    ledger.record(name, [Check(made, found)])
    assert [row.count for row in ledger.summary() if row.forecaster == name] == [2]


@pytest.mark.postgres
def test_two_processes_write_to_postgresql_at_once(tmp_path: Path) -> None:
    url = os.environ.get("STEELYARD_TEST_POSTGRES", "")
    if not url:
        pytest.skip("STEELYARD_TEST_POSTGRES holds no URL")
    code = WRITER.replace(
        "RunStore(Path(sys.argv[1]))", f"RunStore({url!r}, folder=Path(sys.argv[1]))"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), "60"], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    ids = [child.communicate(timeout=120)[0].split()[1] for child in children]
    store = RunStore(url, folder=tmp_path)
    for run_id in ids:
        assert len(store.get(run_id).measurements) == 12
        assert store.columns(run_id).height == 60
