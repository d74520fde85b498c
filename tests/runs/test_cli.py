import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from steelyard.cli.main import main
from steelyard.quantity import Forecast, Measurement
from steelyard.runs import RunStore


@pytest.fixture
def ids(tmp_path: Path) -> list[str]:
    store = RunStore(tmp_path / "store")
    made = []
    for value, rate in ((2.1, 0.1), (9.0, 0.2)):
        with store.create(
            "train", {"optimizer": {"rate": rate}, "steps": 3}, seed=0, name=f"rate {rate}"
        ) as run:
            run.forecast(
                Forecast.about(
                    "train.step_time", 2.0, relative=0.1, provenance="fitted", source="law"
                )
            )
            run.forecast(
                Forecast.about("eval.loss", 3.0, relative=0.1, provenance="fitted", source="law")
            )
            run.measure(Measurement(quantity="train.step_time", value=value))
            for step in range(3):
                run.log(step, loss=1.0 / (step + 1))
        made.append(run.id)
    return made


def call(*words: str, tmp_path: Path) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(["runs", *words, "--store", str(tmp_path / "store")])
    return int(exit_.value.code or 0)


def test_list_show_compare(ids: list[str], tmp_path: Path, capsys) -> None:
    assert call("list", tmp_path=tmp_path) == 0
    out = capsys.readouterr().out
    assert all(run in out for run in ids)
    assert call("list", "--json", "--limit", "1", tmp_path=tmp_path) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in rows] == [ids[1]]
    assert rows[0]["measurements"]
    assert call("show", ids[0][:6], "--html", str(tmp_path / "run.html"), tmp_path=tmp_path) == 0
    out = capsys.readouterr().out
    assert "optimizer.rate" in out
    assert "train.step_time" in out
    assert "Logged losses" in (tmp_path / "run.html").read_text()
    assert call("compare", *ids, tmp_path=tmp_path) == 0
    out = capsys.readouterr().out
    assert "4.29×" in out
    assert "recipe.optimizer.rate" in out
    assert "recipe.steps" not in out


def test_check_exits_by_verdict_and_fills_the_ledger(
    ids: list[str], tmp_path: Path, capsys
) -> None:
    assert call("check", ids[0], "--record", "law", tmp_path=tmp_path) == 0
    out = capsys.readouterr().out
    assert "inside" in out
    assert "Forecast but not measured: eval.loss" in out
    assert call("check", ids[1], "--record", "law", "--json", tmp_path=tmp_path) == 1
    assert json.loads(capsys.readouterr().out)["checks"][0]["covered"] is False
    assert call("ledger", tmp_path=tmp_path) == 0
    assert "50 %" in capsys.readouterr().out


def test_export_json_and_parquet(ids: list[str], tmp_path: Path, capsys) -> None:
    out = tmp_path / "run.json"
    assert call("export", ids[0], "--out", str(out), tmp_path=tmp_path) == 0
    told = json.loads(out.read_text())
    assert told["columns"] == {"step": [0, 1, 2], "loss": [1.0, 0.5, 1 / 3]}
    assert told["measurements"][0]["value"] == 2.1
    out = tmp_path / "run.parquet"
    assert (
        call("export", ids[0], "--to", "parquet", "--out", str(out), "--json", tmp_path=tmp_path)
        == 0
    )
    assert pl.read_parquet(out).height == 3
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["place"] == str(out)


@pytest.mark.parametrize(
    ("target", "package"), [("mlflow", "mlflow"), ("tensorboard", "torch.utils.tensorboard")]
)
def test_export_names_the_missing_package(
    ids: list[str], tmp_path: Path, capsys, monkeypatch, target: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert call("export", ids[0], "--to", target, tmp_path=tmp_path) == 2
    assert f"pip install {target}" in capsys.readouterr().err


@pytest.mark.peers
def test_export_to_tensorboard(ids: list[str], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert (
        call(
            "export",
            ids[0],
            "--to",
            "tensorboard",
            "--out",
            str(tmp_path / "logs"),
            tmp_path=tmp_path,
        )
        == 0
    )
    events = EventAccumulator(str(tmp_path / "logs" / ids[0]))
    events.Reload()
    assert [round(item.value, 3) for item in events.Scalars("loss")] == [1.0, 0.5, 0.333]
    assert events.Scalars("train.step_time")[0].value == pytest.approx(2.1)


@pytest.mark.peers
def test_export_to_mlflow(ids: list[str], tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert call("export", ids[0], "--to", "mlflow", "--out", uri, tmp_path=tmp_path) == 0
    client = mlflow.MlflowClient(tracking_uri=uri)
    found = client.search_runs([client.get_experiment_by_name("steelyard").experiment_id])
    assert found[0].data.params["optimizer.rate"] == "0.1"
    assert found[0].data.metrics["train.step_time"] == 2.1
    assert [item.value for item in client.get_metric_history(found[0].info.run_id, "loss")] == [
        1.0,
        0.5,
        1 / 3,
    ]


def test_bad_input_is_one_line_and_a_hint(ids: list[str], tmp_path: Path, capsys) -> None:
    assert call("show", ids[0][:-2] + "zz", tmp_path=tmp_path) == 2
    error = capsys.readouterr().err
    assert ids[0] in error
    assert call("compare", ids[0], tmp_path=tmp_path) == 2
    assert "at least two" in capsys.readouterr().err
    assert call("list", tmp_path=tmp_path / "absent") == 2
    assert "no run store" in capsys.readouterr().err
    assert not (tmp_path / "absent").exists()


def test_the_command_module_imports_nothing_heavy() -> None:
    names = ("torch", "polars", "altair", "sqlalchemy", "numpy")
    code = (
        f"import sys, steelyard.cli.runs, steelyard.runs; print([name for name in {names} if "
        f"name in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
