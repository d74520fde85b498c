"""The tool's own record beside its forecasts, prices that are unknown, and what is asked for."""

import contextlib
import io
import json
import sqlite3
import threading
import time

import pytest

from steelyard.catalog import Calibration, MatmulPoint, store_calibration
from steelyard.cli.main import main
from steelyard.quantity import Check, Forecast, Measurement
from steelyard.runs import Ledger, Report, RunStore
from steelyard.runs import database as databases
from steelyard.runs.track import track_record


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def calibrated(home):
    point = {"dtype": "fp32", "flops_per_s": 5e10, "spread": 0.1}
    store_calibration(
        Calibration(
            description="a machine",
            num_threads=2,
            memory_bytes=16e9,
            matmul=tuple(MatmulPoint(m=size, n=size, k=size, **point) for size in (64, 1024)),
            stream_bytes_per_s=2e10,
            cache_bytes_per_s=8e10,
            gather_bytes_per_s=4e9,
            disk_read_bytes_per_s=0.0,
            disk_write_bytes_per_s=0.0,
            link_latency_s=1e-5,
            link_bytes_per_s=2e9,
            launch_s=2e-6,
            noise=0.05,
        )
    )
    return home


def ask(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out, shown.err


def keep(home, errors, *, machine="this-machine", forecaster="cost.training_step"):
    ledger = Ledger(RunStore(home / "runs"))
    for error in errors:
        forecast = Forecast.about(
            "train.step_time", 1 + error, relative=0.2, provenance="derived", source="s"
        )
        measured = Measurement(quantity="train.step_time", value=1.0, machine=machine)
        ledger.record(forecaster, [Check(forecast, measured)])


def test_the_record_counts_nine_tenths_of_this_machines_checks(home):
    assert track_record("cost.training_step") == {}
    assert not (home / "runs").exists()
    keep(home, [0.01, -0.02, 0.03, 0.04, -0.05, 0.06, 0.07, -0.08, 0.12, 0.9])
    keep(home, [3.0], machine="another")
    keep(home, [3.0], forecaster="somebody")
    said = {"train.step_time": "within 12 % in 9 of 10 so far"}
    assert track_record("cost.training_step") == said
    place = home / "runs" / "runs.sqlite"
    with sqlite3.connect(place) as other:
        other.execute("DROP TABLE checks")
    assert track_record("cost.training_step") == {}
    place.write_bytes(b"no database")
    assert track_record("cost.training_step") == {}


def test_forecasts_for_this_machine_carry_its_record(calibrated, capsys):
    own = (
        ("cost", "train", "--model", "gpt2"),
        ("plan", "train", "--budget", "1 h", "--cluster", "this-machine", "--model", "30M"),
        ("plan", "fit", "30M", "--use", "train", "--accelerator", "this-machine"),
    )
    for words in own:
        assert "so far" not in ask(capsys, *words)[1]
    keep(calibrated, [0.1, 0.2])
    for words in own:
        assert "within 20 % in 2 of 2 so far" in " ".join(ask(capsys, *words)[1].split())
    # It says nothing of machines that nothing was measured on.
    elsewhere = ask(capsys, "cost", "train", "--model", "gpt2", "--machine", "L40S")[1]
    assert "so far" not in elsewhere


def test_unknown_prices_are_null_and_purchase_is_apart_from_rent(home, capsys):
    def price(*words):
        code, out, _ = ask(capsys, "cost", *words, "--json")
        assert code == 0
        return json.loads(out)["price"]

    serve = ("serve", "--model", "gpt2", "--machine")
    unknown = price(*serve, "MI250X-GCD")
    assert unknown["rent_usd_per_hour"] is unknown["usd_per_million_tokens"] is None
    known = price(*serve, "H100-SXM5-80GB")
    assert known["rent_usd_per_hour"] == 6.88 and known["purchase_usd"] > 20_000
    given = price(*serve, "MI250X-GCD", "--price", "$2")
    assert given["usd_per_hour"] == 2 and given["price_source"] == "rent as given"
    assert given["usd_per_million_tokens"] > 0
    assert price("train", "--model", "gpt2", "--machine", "L40S", "--price", "9 USD")[
        "rent_usd_per_hour"
    ] == pytest.approx(9)
    shown = ask(capsys, "cost", *serve, "MI250X-GCD")[1]
    assert "no rent is known for MI250X-GCD; --price supplies one" in " ".join(shown.split())
    assert ask(capsys, "cost", *serve, "L40S", "--price", "0 USD")[0] == 2
    record = json.loads(ask(capsys, "catalog", "show", "MI250X-GCD", "--json")[1])[0]
    assert record["price_usd_per_hour"] is record["purchase_usd"] is None


@pytest.mark.parametrize(("context", "beyond"), [("8k", False), ("200k", True)])
def test_a_context_beyond_the_models_positions_is_flagged(home, capsys, context, beyond):
    words = ("plan", "fit", "llama-3.1-8b", "--use", "serve", "--context", context)
    assert ("more than the 131,072 that" in ask(capsys, *words)[1]) == beyond
    placed = json.loads(ask(capsys, *words, "--json")[1])
    assert {item["beyond_positions"] for item in placed} == {beyond}


def test_text_is_asked_for_where_none_is_named(home, capsys, monkeypatch, tmp_path):
    code, _, err = ask(capsys, "data", "prepare", "--out", "tokens")
    assert code == 2 and len(err.strip().splitlines()) == 2
    assert "needs files or folders of text" in err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin.readline", lambda: "'a folder' nosuch.txt\n", raising=False)
    code, _, err = ask(capsys, "data", "prepare", "--out", str(tmp_path / "tokens"))
    assert code == 2
    assert "files and folders of text (none: this Python's own texts):" in err
    assert "no such file or folder" in err


def test_a_locked_store_says_that_it_waits(home, capsys, monkeypatch):
    monkeypatch.setattr(databases, "_SILENT_MS", 20)
    store = RunStore(home / "runs")
    other = sqlite3.connect(home / "runs" / "runs.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    ended = threading.Event()

    def write():
        with store.create("train", {}, seed=0):
            ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    said = ""
    while "locked" not in said and writer.is_alive():
        time.sleep(0.01)
        said += capsys.readouterr().err
    assert "runs.sqlite is locked by another process: waiting, for a minute at most" in said
    assert not ended.is_set()
    other.execute("COMMIT")
    other.close()
    writer.join()
    assert ended.is_set() and len(store.list()) == 1
    assert "locked" not in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_quickstart_ends_with_its_record_and_what_to_serve(home, monkeypatch, capsys):
    keep(home, [0.05, -0.1])
    monkeypatch.setattr("steelyard.weigh.quickstart.run_quickstart", lambda *_, **__: None)
    monkeypatch.setattr("steelyard.weigh.report.build", lambda _: Report("Weighed", "", []))
    shown = Terminal()
    with contextlib.redirect_stdout(shown):
        ask(capsys, "quickstart", "--out", str(home / "out"))
    text = " ".join(shown.getvalue().split())
    assert "train.step_time within 10 % in 2 of 2 so far" in text
    assert f"next: steelyard serve {home / 'out'}" in text
