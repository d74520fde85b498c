import json
from dataclasses import replace

import pytest

from steelyard import config as configs
from steelyard.cli import train as cli
from steelyard.cli.models import model_folder
from steelyard.errors import ConfigError
from steelyard.runs.store import RunStore
from steelyard.train import TrainResult


def test_recipe_runs_and_prints_what_was_measured(config, data, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path / "home"))
    recipe = tmp_path / "recipe.json"
    configs.dump(replace(config, architecture=replace(config.architecture, vocab_size=300)), recipe)
    cli.run(recipe, data=data, out=tmp_path / "run")
    assert "train.step_time" in capsys.readouterr().out
    cli.run(recipe, data=data, out=tmp_path / "run", json=True)
    printed = json.loads(capsys.readouterr().out)
    assert TrainResult.from_plain(printed["result"]) == TrainResult.load(tmp_path / "run")
    assert {item["quantity"] for item in printed["measurements"]} >= {
        "eval.loss",
        "train.step_time",
    }
    assert [record.id for record in RunStore().list()] == [
        printed["run"]
    ]  # finished once, recorded once
    assert model_folder(printed["run"]) == (tmp_path / "run" / "model").resolve()
    assert (tmp_path / "run" / "model" / "tokenizer.json").read_bytes() == (
        data / "tokenizer.json"
    ).read_bytes()


def test_recipe_that_is_not_there_is_named(data, tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        cli.run(tmp_path / "none.toml", data=data, out=tmp_path / "run")


def test_processes_that_share_a_run_start_no_others(config, tmp_path, monkeypatch):
    recipe = tmp_path / "recipe.json"
    configs.dump(config, recipe)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="share the steps of one run"):
        cli.run(recipe, data=tmp_path, out=tmp_path / "run", subprocess=True)
