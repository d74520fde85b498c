"""`steelyard operate autoscale`: from a file, an answer of Prometheus or a recipe to a table."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.errors import TraceError
from steelyard.operate.autoscale.config import AutoscaleConfig
from steelyard.operate.autoscale.demand import demand_of_series
from steelyard.operate.autoscale.study import choose_forecaster, run_study
from steelyard.operate.series import SeriesSet
from steelyard.runs import Ledger, RunStore
from steelyard.runs.host import process_started


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "runs"


def demand_values(count=120, seed=0):
    rng = np.random.default_rng(seed)
    return 100 + 40 * np.sin(np.arange(count) / 15) + rng.normal(0, 4, count)


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "demand.csv"
    rows = [f"{1_700_000_000 + 300 * place},{load}" for place, load in enumerate(demand_values())]
    path.write_text("timestamp,requests\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def answer(tmp_path):
    path = tmp_path / "answer.json"
    values = [
        [1_700_000_000 + 300 * place, str(load)] for place, load in enumerate(demand_values())
    ]
    other = [[time, "1"] for time, _ in values]
    result = [
        {"metric": {"__name__": "load"}, "values": values},
        {"metric": {"__name__": "other"}, "values": other},
    ]
    path.write_text(
        json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})
    )
    return path


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main(["operate", "autoscale", *map(str, words)])
    return ended.value.code


def test_every_scaler_stands_in_one_table(csv, capsys, tmp_path):
    page = tmp_path / "page.html"
    assert run(csv, "--startup", "2 min", "--json", "--report", page) == 0
    found = json.loads(capsys.readouterr().out)
    names = [item["controller"] for item in found["scalers"]]
    assert names[:5] == [
        "BayesianScaler",
        "QuantileScaler",
        "ReactiveHPA",
        "RecommenderVPA",
        "MovingWindowMax",
    ]
    assert names[-1] == "oracle" and names[-2].startswith("best fixed")
    assert found["lead_steps"] == 2 and found["steps"] == 60
    by_name = {item["controller"]: item for item in found["scalers"]}
    assert by_name["oracle"]["oracle_regret"] == 0
    assert by_name["ReactiveHPA"]["instance_hours"] > 0
    text = page.read_text()
    assert "Replicas over demand" in text and "<svg" in text


def test_a_table_is_printed_for_people(csv, capsys):
    assert run(csv, "--capacity", "10", "--no-keep") == 0
    out = capsys.readouterr().out
    assert "BayesianScaler" in out and "instance-hours" in out and "used" in out
    assert "80 % interval held" in out and "replaced" not in out


def test_what_was_decided_on_is_in_the_ledger_once(csv, capsys, own_store):
    assert run(csv, "--json", "--startup", "1 min") == 0
    told = json.loads(capsys.readouterr().out)["forecasts"]
    assert run(csv, "--json", "--startup", "1 min", "--seed", "3") == 0
    rows = Ledger(RunStore.existing(own_store)).summary()
    assert [(row.forecaster, row.count, row.coverage) for row in rows] == [
        (item["forecaster"], item["steps"], item["held"]) for item in told
    ]
    # Steps of the last forecast but one are half there: 2 a forecast, 60 steps.
    assert sum(row.count for row in rows) == 119
    assert {row.quantity for row in rows} == {"operate.demand"}


def test_a_generated_demand_is_no_measurement(tmp_path, capsys, own_store):
    recipe = tmp_path / "own.toml"
    recipe.write_text('archetype = "diurnal"\ndays = 0.4\n')
    assert run(recipe, "--json") == 0
    assert json.loads(capsys.readouterr().out)["forecasts"] and not own_store.exists()


def test_forecasts_that_take_too_long_are_replaced_in_a_replay(csv, capsys):
    assert run(csv, "--forecast-time", "40 s", "--forecast-deadline", "30 s") == 0
    assert "were late or failed and were replaced" in " ".join(capsys.readouterr().out.split())


def test_shadow_reads_an_answer_of_prometheus(answer, capsys):
    assert run("--shadow", answer, "--column", "load", "--json") == 0
    assert json.loads(capsys.readouterr().out)["source"].endswith("answer.json: load")


def test_a_recipe_names_its_demand(tmp_path, csv, capsys):
    recipe = tmp_path / "own.toml"
    recipe.write_text('demand = "demand.csv"\n[service]\nallowed = 0.1\nseed = 3\n')
    assert run(recipe, "--json") == 0
    assert json.loads(capsys.readouterr().out)["service"]["allowed"] == 0.1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "either a demand or --shadow"),
        (["{csv}", "--shadow", "x"], "either a demand or --shadow"),
        (["--shadow", "{answer}"], "holds 2 series"),
        (["--shadow", "{answer}", "--column", "none"], "no series 'none'"),
        (["--shadow", "http://127.0.0.1:9/x"], "cannot fetch"),
        (["{csv}", "--allowed", "2"], "--allowed is 2.0"),
        (["{csv}", "--history-share", "0"], "--history-share is 0.0"),
        (["{tmp}/none.csv"], "no such file"),
        (["serve", "{csv}", "--shadow"], "--shadow needs --replicas"),
        (["serve", "{csv}", "--period", "0"], "--period is 0.0"),
    ],
)
def test_what_cannot_be_is_refused(words, told, csv, answer, tmp_path, capsys):
    filled = [word.format(csv=csv, answer=answer, tmp=tmp_path) for word in words]
    assert run(*filled) == 2
    assert told in capsys.readouterr().err


def test_options_beside_a_recipe_are_refused(tmp_path, capsys):
    (tmp_path / "own.toml").write_text("[service]\n")
    assert run(tmp_path / "own.toml", "--allowed", "0.1") == 2
    assert "part of the recipe" in capsys.readouterr().err


def test_processes_are_driven_and_drained(csv, tmp_path, capsys, own_store):
    start = f"{sys.executable} -S -c 'import time;time.sleep(60)' {{port}}"
    journal = tmp_path / "journal.json"
    words = ("drive", csv, "--start", start, "--journal", journal, "--turns", "1", "--json")
    assert run(*words, "--capacity", "1000", "--max-replicas", "3") == 0
    assert json.loads(capsys.readouterr().out) == {
        "num_sent": 1,
        "num_failed": 0,
        "num_fallbacks": 0,
        "replicas": [1.0],
    }
    # What was forecast waits for the step that is still to come.
    (waiting,) = (own_store / "waiting").iterdir()
    (said,) = json.loads(waiting.read_text())["forecasts"]
    assert said["first_s"] == 1_700_000_000 + 300 * 120
    assert json.loads(journal.read_text())["next_sequence"] == 1


@pytest.mark.slow
def test_a_drive_that_was_killed_goes_on_with_its_processes(tmp_path):
    rows = [f"{1_700_000_000 + place},{load}" for place, load in enumerate(demand_values())]
    (tmp_path / "demand.csv").write_text("timestamp,requests\n" + "\n".join(rows) + "\n")
    log = tmp_path / "log"
    serves = tmp_path / "serves.py"
    serves.write_text(
        "import http.server, os, sys\n"
        f"open({str(log)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "    def log_message(self, *_): pass\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()\n"
    )
    words = [sys.executable, "-m", "steelyard", "operate", "autoscale", "drive"]
    words += [str(tmp_path / "demand.csv"), "--start", f"{sys.executable} {serves} {{port}}"]
    words += ["--journal", str(tmp_path / "journal.json"), "--first-port", "50500"]
    words += ["--capacity", "60", "--max-replicas", "4", "--json"]
    killed = subprocess.Popen(words)
    until_s = time.monotonic() + 60
    while not log.exists() or len(log.read_text().split()) < 2:
        assert time.monotonic() < until_s and killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    started = log.read_text().split()
    told = subprocess.run([*words, "--turns", "2"], capture_output=True, check=True, timeout=60)
    # Whoever was started before the kill is still used, and nobody was started in its place.
    assert json.loads(told.stdout)["num_failed"] == 0
    later = log.read_text().split()
    assert later[: len(started)] == started and len(later) <= 4
    # Nobody waits for those of the killed one: as zombies they have ended all the same.
    assert not any(process_started(int(pid)) for pid in later)


def test_the_forecaster_is_the_one_that_was_best_on_the_history():
    history = demand_values(600, seed=1)
    chosen, scores = choose_forecaster(history, step_s=300.0, horizon=1)
    assert scores[chosen.name] == min(scores.values()) and len(scores) >= 3


def test_a_demand_fills_holes_and_refuses_what_is_below_0():
    values = demand_values(60)
    values[[0, 30]] = np.nan
    made = SeriesSet.from_arrays([values], step_s=300.0, ids=["load"])
    found = demand_of_series(made)
    assert len(found.load) == 59 and found.load[29] == values[29] and found.start_s == 300.0
    values[40] = -1.0
    with pytest.raises(TraceError, match="row 41"):
        demand_of_series(SeriesSet.from_arrays([values], step_s=300.0, ids=["load"]))
    with pytest.raises(TraceError, match="48 are needed"):
        demand_of_series(SeriesSet.from_arrays([values[:40]], step_s=300.0, ids=["load"]))


def test_a_service_is_sized_by_its_history():
    load = demand_values(120)
    study = run_study(load, AutoscaleConfig(), step_s=300.0)
    assert study.service.replicas_for(np.quantile(load[:60], 0.99)) == 20
    with pytest.raises(TraceError, match="nearly throughout"):
        run_study(np.zeros(120), AutoscaleConfig(), step_s=300.0)
