"""`steelyard data table` fit, compare, cluster, reduce and detect, as a user types them."""

import json

import numpy as np
import polars as pl
import pytest

pytest.importorskip("pyarrow")

from steelyard.cli.data import app
from steelyard.errors import ConfigError, DataError


def run(*words) -> None:
    app([str(word) for word in words], result_action="return_value", exit_on_error=False)


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=800), rng.normal(size=800)
    shop = rng.choice(["north", "south"], 800)
    bought = np.where(x + rng.normal(size=800) > 0, "yes", "no")
    z[55] = 30.0
    path = tmp_path / "t.csv"
    columns = {"id": np.arange(800), "x": x, "z": z, "shop": shop, "bought": bought}
    pl.DataFrame(columns | {"same": np.ones(800)}).write_csv(path)
    return path


def test_a_learner_of_a_recipe_is_fitted_and_predicts(table, tmp_path, capsys):
    recipe = tmp_path / "fit.toml"
    recipe.write_text('learner = "forest"\ntrees = 5\nleave_out = "id"\n')
    words = ("table", "fit", table, "--target", "bought", "--out", tmp_path / "a.model")
    run(*words, "--recipe", recipe, "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["learner"] == "forest"
    assert "column same is constant" in told["warnings"]
    # What is given on the line counts instead of what stands in the file.
    run(*words, "--recipe", recipe, "--learner", "linear", "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["learner"] == "linear"
    assert "id" not in told["importances"]
    assert told["scores"]["AUC"]["low"] > 0.7
    run("table", "predict", tmp_path / "a.model", table, "--out", tmp_path / "p.csv")
    assert "800" in capsys.readouterr().out
    assert pl.read_csv(tmp_path / "p.csv").columns == ["prediction", "share of yes"]
    recipe.write_text('lerner = "forest"\n')
    with pytest.raises(ConfigError, match="lerner"):
        run(*words, "--recipe", recipe)


def test_learners_are_compared(table, tmp_path, capsys):
    words = ("table", "compare", table, "--target", "bought", "--leave-out", "id", "--time", "20s")
    out = tmp_path / "best.model"
    run(*words, "--learners", "linear,bayes,ridge", "--out", out, "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["best"] in {"linear", "bayes"}
    assert told["left_out"] == {"ridge": "does not predict classes"}
    assert out.exists()
    run(*words, "--learners", "bayes")
    assert "Learners of bought" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no learner 'tree'"):
        run(*words, "--learners", "tree")
    with pytest.raises(ConfigError, match="--held"):
        run(*words, "--held", "0")


def test_rows_are_clustered_and_made_narrower(table, tmp_path, capsys):
    out = tmp_path / "c.csv"
    run("table", "cluster", table, "--clusters", 3, "--leave-out", "id,z", "--out", out, "--json")
    told = json.loads(capsys.readouterr().out)
    assert sum(told["sizes"]) == 800
    assert pl.read_csv(out)["cluster"].value_counts(sort=True)["count"].to_list() == told["sizes"]
    kept = ("--model", tmp_path / "c.model")
    run("table", "cluster", table, "--method", "density", "--out", out, *kept)
    assert "rows in no cluster" in capsys.readouterr().out
    run("table", "predict", tmp_path / "c.model", table, "--out", tmp_path / "again.csv", "--json")
    assert json.loads(capsys.readouterr().out) == {"rows": 800, "missing_columns": []}
    assert (tmp_path / "again.csv").read_bytes() == out.read_bytes()
    with pytest.raises(DataError, match=r"t\.csv is no model"):
        run("table", "predict", table, table, "--out", out)
    with pytest.raises(ConfigError, match="there is no"):
        run("table", "predict", tmp_path / "none", table, "--out", out)
    run("table", "reduce", table, "--to", "pca:2", "--out", tmp_path / "r.parquet", "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["columns"]) == (800, 2)
    assert 0 < told["explained"] < 1
    with pytest.raises(ConfigError, match="reduce is 'pca'"):
        run("table", "reduce", table, "--to", "pca", "--out", tmp_path / "r.parquet")
    assert not list(tmp_path.glob("*.work"))


def test_odd_rows_are_told(table, tmp_path, capsys):
    out = tmp_path / "odd.parquet"
    words = ("table", "detect", table, "--leave-out", "id", "--method", "distance")
    run(*words, "--out", out, "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["oddest"][0]["row"] == 55
    assert told["oddest"][0]["columns"][0]["column"] == "z"
    written = pl.read_parquet(out)
    assert written.columns == ["score", "odd", "why"]
    assert written["why"][55].startswith("z = 30")
    run(*words, "--share", "0.5")
    assert "Odd rows" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="odd rows"):
        run(*words, "--share", "2")
