import json

import numpy as np
import pytest

from steelyard.cli import laws as command
from steelyard.errors import CatalogError, ConfigError, DataError, FitError


@pytest.fixture
def table(tmp_path):
    sizes, tokens = np.repeat([1e5, 3e5, 6e5, 1.2e6], 4), np.tile([5e5, 1e6, 2e6, 4e6], 4)
    loss = 1.2 + 30 / sizes**0.25 + 400 / tokens**0.4
    path = tmp_path / "runs.csv"
    rows = [f"{n:.0f},{d:.0f},{value!r},x" for n, d, value in zip(sizes, tokens, loss.tolist(), strict=True)]
    path.write_text("n,d,loss,word\n" + "\n".join(rows) + "\n")
    return path


def test_fit_then_allocate(table, tmp_path, capsys):
    out = tmp_path / "fit.json"
    command.fit(table, loss="loss", parameters="n", tokens="d", bootstraps=20, out=out)
    printed = capsys.readouterr().out
    assert "alpha" in printed and "16 points" in printed
    command.allocate(flops="1e14FLOP", fit=out, json=True)
    best = json.loads(capsys.readouterr().out)
    assert best["provenance"] == "fitted"
    assert 6 * best["parameters"]["value"] * best["tokens"]["value"] == pytest.approx(1e14, rel=1e-9)
    command.allocate(flops="1e14", fit=out)
    assert "tokens per parameter" in capsys.readouterr().out
    command.fit(table, loss="loss", parameters="n", tokens="d", bootstraps=20, json=True)
    assert capsys.readouterr().out == out.read_text() + "\n"


def test_published_are_listed(capsys):
    command.published()
    assert "besiroglu2024" in capsys.readouterr().out
    command.published(json=True)
    assert {item["name"] for item in json.loads(capsys.readouterr().out)} >= {"hoffmann2022", "kaplan2020"}
    command.allocate(flops="1e22FLOP", published="besiroglu2024")
    assert "have no width" in capsys.readouterr().out


def test_bad_input_is_refused(table, tmp_path):
    with pytest.raises(DataError, match="no column loss2"):
        command.fit(table, loss="loss2", parameters="n", tokens="d")
    with pytest.raises(DataError, match="holds text"):
        command.fit(table, loss="word", parameters="n", tokens="d")
    with pytest.raises(DataError, match="no such file"):
        command.fit(tmp_path / "absent.csv", loss="loss")
    binary = tmp_path / "binary.parquet"
    binary.write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match="cannot be read"):
        command.fit(binary, loss="loss")
    with pytest.raises(FitError, match="unknown law"):
        command.fit(table, loss="loss", law="newton")
    with pytest.raises(ConfigError, match="either"):
        command.allocate(flops="1e22")
    with pytest.raises(CatalogError, match="hofmann"):
        command.allocate(flops="1e22", published="hofmann")
    with pytest.raises(ConfigError, match="--flops"):
        command.allocate(flops="much", published="kaplan2020")
    with pytest.raises(FitError, match="not a stored fit"):
        command.allocate(flops="1e22", fit=table)
