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


def test_a_run_that_diverged_is_replayed_from_its_folder(config, data, tmp_path, capsys):
    from steelyard.data.shards import TokenShards
    from steelyard.errors import DivergedError
    from steelyard.train.trainer import train

    # A rate that no schedule would have: the weights leave the numbers within a few steps.
    shape = replace(config.architecture, vocab_size=300)
    wild = replace(config, architecture=shape, learning_rate=9.9, warmup_steps=0, clip=0.0)
    wild = replace(wild, optimizer="sgd", weight_decay=9.0, steps=60)
    with pytest.raises(DivergedError) as caught:
        train(wild, TokenShards(data), tmp_path / "run")
    step = int(str(caught.value).split("step ")[1].split()[0])
    cli.replay(tmp_path / "run", data=data)
    page = capsys.readouterr().out
    assert "came again bit for bit" in page and "the first layer is" in page
    cli.replay(tmp_path / "run", data=data, json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["is_identical"] and found["steps"][-1]["step"] == step - 1
    with pytest.raises(ConfigError, match="no folder of a run"):
        cli.replay(tmp_path, data=data)
