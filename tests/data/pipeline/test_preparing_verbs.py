"""`data table transform` and `split`, from files to files."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("pyarrow")

from steelyard.cli.data import app
from steelyard.errors import ConfigError

RECIPE = Path(__file__).parents[3] / "recipes" / "pipeline.toml"


def run(*words):
    app([str(word) for word in words], result_action="return_value", exit_on_error=False)


@pytest.fixture
def sales(tmp_path):
    rng = np.random.default_rng(0)
    lines = [
        f"{place},{'broken' if place == 7 else round(float(rng.lognormal()), 3)},"
        f"{'nse'[place % 3]},{place % 2}"
        for place in range(400)
    ]
    path = tmp_path / "sales.csv"
    path.write_text("\n".join(["id,price,shop,y", *lines, lines[0]]) + "\n")
    return path


def test_transform_plans_fits_writes_and_applies(sales, tmp_path, capsys):
    run("table", "transform", sales, "--recipe", RECIPE, "--dry-run", "--json")
    plan = json.loads(capsys.readouterr().out)
    assert plan["passes"][0]["steps"] == ["duplicates"] and plan["num_bytes"] > 0
    out = tmp_path / "features.parquet"
    more = ("--lineage", tmp_path / "lineage", "--memory", "200MB", "--json")
    run("table", "transform", sales, "--recipe", RECIPE, "--out", out, *more)
    told = json.loads(capsys.readouterr().out)["written"]
    train, test = told["train"], told["test"]
    # 401 rows: one is broken, and one of the training rows is there twice if it is among them.
    assert train["rows"] + test["rows"] + train["set_aside"] + test["set_aside"] in (402, 403)
    made = pl.read_parquet(train["out"])
    assert "price.missing" in made.columns and "shop=e" in made.columns
    beside = pl.read_csv(tmp_path / "features-train.quarantine.csv")
    assert "broken" in beside["value"].to_list()
    run(
        "table",
        "transform",
        sales,
        "--fitted",
        tmp_path / "features.pipeline",
        "--out",
        tmp_path / "n.csv",
    )
    assert pl.read_csv(tmp_path / "n.csv").height == 400
    assert "Features in" in capsys.readouterr().out
    run("govern", "lineage", tmp_path / "lineage", "--json")
    assert len(json.loads(capsys.readouterr().out)["records"]) == 2


def test_splits_and_what_is_refused(sales, tmp_path, capsys):
    out = tmp_path / "s.csv"
    run("table", "split", sales, "--out", out, "--stratify", "y", "--by", "id", "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["train"]["rows"] + told["test"]["rows"] == 400
    for words in (
        ("split", sales, "--out", out, "--shares", "train"),
        ("split", sales, "--out", out, "--time", "id", "--by", "id"),
        ("transform", sales, "--out", out),
        ("transform", sales, "--recipe", RECIPE),
        ("transform", sales, "--recipe", tmp_path / "none.toml", "--out", out),
    ):
        with pytest.raises(ConfigError):
            run("table", *words)


def test_a_share_that_no_key_falls_into_is_told(tmp_path, capsys):
    table = tmp_path / "one.csv"
    table.write_text("shop,price\n" + "a,1\n" * 50)
    run("table", "split", table, "--out", tmp_path / "s.csv", "--by", "shop", "--json")
    told = json.loads(capsys.readouterr().out)
    empty = [name for name in ("train", "test") if not told[name]["rows"]]
    assert len(empty) == 1
    assert empty[0] in told["warnings"][0]
