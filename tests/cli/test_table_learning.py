"""`steelyard data table fit` and `predict`, with wrong input too."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("pyarrow")

from steelyard.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    price, days = rng.gamma(2, 20, 1500).round(2), rng.integers(1, 30, 1500)
    share = 1 / (1 + np.exp(-(price / 20 - days / 8)))
    returned = np.where(rng.random(1500) < share, "yes", "no")
    data = pl.DataFrame({"id": range(1500), "price": price, "days": days, "returned": returned})
    data[:1200].write_csv(tmp_path / "orders.csv")
    data[1200:].drop("returned").write_csv(tmp_path / "new.csv")
    return tmp_path


def test_a_column_is_learned_and_predicted(orders: Path, capsys) -> None:
    model, out = orders / "returned.model", orders / "predicted.parquet"
    words = ("data", "table", "fit", orders / "orders.csv", "--target", "returned", "--out", model)
    more = ("--leave-out", "id", "--rounds", "30", "--threads", "1")
    code, said, _ = run(capsys, *words, *more, "--json", "--report", orders / "page.html")
    assert code == 0
    told = json.loads(said)
    assert told["scores"]["AUC"]["value"] > 0.7
    assert set(told["importances"]) == {"price", "days"}
    assert "AUC" in (orders / "page.html").read_text()
    code, said, _ = run(
        capsys, "data", "table", "predict", model, orders / "new.csv", "--out", out, "--json"
    )
    assert code == 0
    assert json.loads(said) == {"rows": 300, "missing_columns": []}
    assert pl.read_parquet(out).columns == ["prediction", "share of yes"]
    assert run(capsys, *words, *more)[0] == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--target", "nobody"), "no column 'nobody'"),
        (("--target", "returned", "--held", "2"), "--held is 2"),
        (("--target", "returned", "--task", "regress"), "not numbers"),
    ],
)
def test_wrong_input_is_refused(orders: Path, capsys, words: tuple[str, ...], told: str) -> None:
    code, _, err = run(
        capsys, "data", "table", "fit", orders / "orders.csv", "--out", orders / "m", *words
    )
    assert code == 2
    assert told in " ".join(err.split())
    assert not (orders / "m").exists()
