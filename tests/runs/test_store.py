import math
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
import sqlalchemy as sa

from steelyard.errors import BackendError, CapacityError, DataError, StoreError
from steelyard.files import read_json
from steelyard.quantity import Forecast, Measurement
from steelyard.runs import RunStore
from steelyard.runs.database import RUNS


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "store")


def forecast(value: float = 2.0, name: str = "train.step_time") -> Forecast:
    return Forecast.about(name, value, relative=0.1, provenance="fitted", source="test")


@dataclass(frozen=True)
class Recipe:
    steps: int
    out: Path


def test_a_run_comes_back_as_written(store: RunStore, tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(b"abc")
    with store.create(
        "train", {"config": Recipe(steps=3, out=Path("x")), "rate": 0.1}, seed=7, name="first"
    ) as run:
        run.forecast(forecast())
        run.measure(Measurement(quantity="train.step_time", value=2.1, spread=0.1, count=5))
        inside = run.directory / "checkpoint"
        inside.mkdir()
        (inside / "a.bin").write_bytes(b"1234")
        run.artifact("weights", file)
        run.artifact("checkpoint", inside)
        for step in range(3):
            run.log(step, loss=3.0 - step, rate=0.1)
        assert store.get(run.id).status == "running"
    record = store.get(run.id)
    assert (record.kind, record.name, record.status, record.seed) == ("train", "first", "done", 7)
    assert record.recipe == {"config": {"steps": 3, "out": "x"}, "rate": 0.1}
    assert record.forecasts == (forecast(),)
    assert record.measurements[0].value == 2.1
    assert record.measurements[0].time_s > 1.6e9
    assert {item.name: item.num_bytes for item in record.artifacts} == {
        "weights": 3,
        "checkpoint": 4,
    }
    assert all(item.path.exists() for item in record.artifacts)
    assert record.versions["python"].startswith("3.")
    assert record.machine["cores"] >= 1
    assert record.finished_s is not None
    assert record.finished_s >= record.started_s
    assert store.columns(run.id).to_dict(as_series=False) == {
        "step": [0, 1, 2],
        "loss": [3.0, 2.0, 1.0],
        "rate": [0.1] * 3,
    }
    stored = read_json(record.directory / "recipe.json")
    assert (stored["id"], stored["seed"], stored["recipe"]) == (record.id, 7, record.recipe)


def test_a_store_can_be_moved(store: RunStore, tmp_path: Path) -> None:
    with store.create("train", {}, seed=0) as run:
        run.log(0, loss=1.0)
        run.artifact("recipe", run.directory / "recipe.json")
    store.folder.rename(tmp_path / "elsewhere")
    moved = RunStore(tmp_path / "elsewhere")
    assert moved.columns(run.id).height == 1
    assert moved.get(run.id).artifacts[0].path.exists()


def test_an_exception_marks_the_run_as_failed(store: RunStore) -> None:
    with pytest.raises(ZeroDivisionError), store.create("train", {}, seed=0) as run:
        run.log(0, loss=1.0)
        raise ZeroDivisionError
    assert store.get(run.id).status == "failed"
    assert store.columns(run.id).height == 1


def test_a_repeated_step_keeps_the_later_values_and_late_columns_fit_in(store: RunStore) -> None:
    with store.create("train", {}, seed=0) as run:
        run.log(0, loss=5.0)
        run.log(1, loss=4.0)
        run.flush()
    with store.resume(run.id) as run:
        run.log(1, loss=3.5)
        run.log(1, eval=3.0)
        run.log(2, loss=float("nan"))
    frame = store.columns(run.id)
    assert frame["step"].to_list() == [0, 1, 2]
    assert frame["loss"].to_list()[:2] == [5.0, 3.5]
    assert math.isnan(frame["loss"].to_list()[2])
    assert frame["eval"].to_list() == [None, 3.0, None]


def test_many_chunks_are_merged_without_loss(store: RunStore) -> None:
    run = store.create("train", {}, seed=0)
    run._flush_rows = 3
    for step in range(600):
        run.log(step, value=float(step))
    assert len(list((run.directory / "columns").glob("*.parquet"))) < 80
    assert store.columns(run.id)["value"].to_list() == list(range(600))
    run.finish()
    assert len(list((run.directory / "columns").glob("*.parquet"))) == 1
    assert store.columns(run.id)["step"].to_list() == list(range(600))


def test_a_kill_between_merging_and_removing_counts_nothing_twice(store: RunStore) -> None:
    run = store.create("train", {}, seed=0)
    folder = run.directory / "columns"
    for step in range(4):
        run.log(step, value=1.0)
        run.flush()
    saved = {path: path.read_bytes() for path in folder.glob("*.parquet")}
    run.finish()
    for path, payload in saved.items():
        path.write_bytes(payload)
    assert store.columns(run.id)["value"].sum() == 4.0
    assert pl.concat([pl.read_parquet(path) for path in folder.glob("*.parquet")]).height == 8


def test_a_running_run_of_a_dead_process_is_interrupted(store: RunStore) -> None:
    run = store.create("train", {}, seed=0)
    assert store.get(run.id).status == "running"
    with pytest.raises(StoreError, match="another process"):
        store.resume(run.id)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    for changes in ({"pid": child.pid}, {"process_started": "another time"}):
        with store.database.write() as connection:
            connection.execute(sa.update(RUNS).values(changes))
        assert store.get(run.id).status == "interrupted"
    with store.database.write() as connection:
        connection.execute(sa.update(RUNS).values(host="some-other-host"))
    assert store.get(run.id).status == "running"


def test_unknown_and_ambiguous_ids_are_explained(store: RunStore) -> None:
    with pytest.raises(StoreError) as error:
        store.get("abc")
    assert "no runs" in error.value.hint
    run = store.create("train", {}, seed=0)
    assert store.get(run.id[:5]).id == run.id
    wrong = run.id[:-1] + ("0" if run.id[-1] != "0" else "1")
    with pytest.raises(StoreError) as error:
        store.get(wrong)
    assert run.id in error.value.hint
    with store.database.write() as connection:
        row = dict(connection.execute(sa.select(RUNS)).mappings().one())
        connection.execute(sa.insert(RUNS).values(row | {"id": run.id[:4] + "zzzz"}))
    with pytest.raises(StoreError, match="2 runs begin") as error:
        store.get(run.id[:4])
    assert run.id in error.value.hint


def test_list_is_newest_first_and_filters(store: RunStore) -> None:
    ids = [store.create(kind, {}, seed=0).id for kind in ("train", "serve", "train")]
    assert [record.id for record in store.list()] == ids[::-1]
    assert [record.id for record in store.list(kind="train")] == [ids[2], ids[0]]
    assert [record.id for record in store.list(limit=1)] == [ids[2]]


def test_check_pairs_the_last_of_each_name(store: RunStore) -> None:
    with store.create("train", {}, seed=0) as run:
        for value in (1.0, 2.0):
            run.forecast(forecast(value))
            run.measure(Measurement(quantity="train.step_time", value=value + 0.1))
        run.forecast(forecast(3.0, "eval.loss"))
    checks = store.check(run.id)
    assert [(item.forecast.value, item.measurement.value) for item in checks] == [(2.0, 2.1)]
    assert checks[0].covered


def test_threads_of_one_process_share_a_store(store: RunStore) -> None:
    def work() -> None:
        for _ in range(5):
            with store.create("train", {}, seed=0) as run:
                run.forecast(forecast())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(record.forecasts) for record in store.list()] == [1] * 15


def test_a_corrupted_database_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "runs.sqlite").write_bytes(b"not a database at all, but long enough to look" * 100)
    with pytest.raises(StoreError, match="not a database") as error:
        RunStore(tmp_path)
    assert "corrupted" in error.value.hint
    assert "\n" not in str(error.value)


def test_a_database_damaged_in_the_middle_is_one_clear_line(store: RunStore) -> None:
    for _ in range(60):
        store.create("train", {"x": "y" * 500}, seed=0)
    path = store.folder / "runs.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    payload = bytearray(path.read_bytes())
    for start in range(4096, len(payload), 4096):
        payload[start : start + 64] = os.urandom(64)
    path.write_bytes(bytes(payload))
    with pytest.raises(StoreError, match="malformed"):
        RunStore(store.folder).list()


def test_a_corrupted_chunk_is_named(store: RunStore) -> None:
    with store.create("train", {}, seed=0) as run:
        run.log(0, loss=1.0)
    chunk = next((run.directory / "columns").glob("*.parquet"))
    chunk.write_bytes(chunk.read_bytes()[:-20])
    with pytest.raises(DataError, match=chunk.name):
        store.columns(run.id)


def test_a_full_disk_is_a_capacity_error_and_rows_keep_waiting(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.create("train", {}, seed=0)
    for step in range(5000):
        run._columns.add(step, {"loss": math.sin(step)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CapacityError, match="disk full"):
            run.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((run.directory / "columns").iterdir())
    run.finish()
    assert store.columns(run.id).height == 5000


def test_a_full_database_is_a_capacity_error(store: RunStore) -> None:
    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA max_page_count=30").close()

    sa.event.listen(store.database._engine, "connect", limit)
    with pytest.raises(CapacityError, match="disk full"):
        store.create("train", {"big": "x" * 300_000}, seed=0)
    sa.event.remove(store.database._engine, "connect", limit)
    assert store.list() == []


def test_bad_places_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot use"):
        RunStore(tmp_path / "file")
    for url in ("nonsense://host/db", "http://"):
        with pytest.raises(StoreError):
            RunStore(url, folder=tmp_path)


def test_a_missing_driver_names_the_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(BackendError) as error:
        RunStore("postgresql://nobody:secret@127.0.0.1:1/none", folder=tmp_path)
    assert "pip install" in error.value.hint
    assert "secret" not in str(error.value)


def test_a_missing_artifact_and_a_wrong_status_are_refused(store: RunStore, tmp_path: Path) -> None:
    run = store.create("train", {}, seed=0)
    with pytest.raises(DataError, match="no such artifact"):
        run.artifact("x", tmp_path / "absent")
    with pytest.raises(StoreError, match="cannot finish"):
        run.finish("perhaps")
