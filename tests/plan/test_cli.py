"""`steelyard plan`: what is unknown leaves its own line out, and the rest is planned."""

import json

import pytest

from steelyard.cli.main import main


def run(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(["plan", "train", "--budget", "1e21FLOP", *arguments])
    return int(caught.value.code or 0)


def test_an_unknown_price_is_a_note_and_null(capsys):
    assert run("--cluster", "Frontier", "--nodes", "16") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "run.cost is left out: no price is known for MI250X-GCD" in text
    assert "train.total_time" in text and "run.energy" in text and "run.carbon" in text
    assert run("--cluster", "Frontier", "--nodes", "16", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    found = {item["quantity"]: item for item in made["forecasts"]}
    assert found["run.cost"]["value"] is None and "no price" in found["run.cost"]["source"]
    assert found["run.energy"]["value"] > 0 and made["unknown"].keys() == {"run.cost"}
    assert run("--cluster", "Frontier", "--nodes", "16", "--price-per-hour", "2 USD") == 0
    assert "left out" not in capsys.readouterr().out


def test_a_cluster_at_an_unknown_place_is_planned_with_the_worlds_average(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path))
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog" / "mine.toml").write_text('[clusters.Selene]\nsite = "a cellar"\n')
    assert run("--cluster", "Selene", "--nodes", "4", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    sources = [item["source"] for item in made["forecasts"] if item["quantity"] == "run.carbon"]
    assert "world-average" in sources[0]
