"""`steelyard data pack`: what it prints, and what it refuses."""

import json

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
from pyarrow import csv  # noqa: E402

from steelyard.cli.data.pack import app  # noqa: E402
from steelyard.data.formats import Steelpack  # noqa: E402
from steelyard.data.formats.advice import FormatCosts  # noqa: E402
from steelyard.data.formats.options import OPTIONS  # noqa: E402
from steelyard.errors import ConfigError, DataError  # noqa: E402


def run(*words) -> None:
    app([str(word) for word in words], result_action="return_value", exit_on_error=False)


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table({"id": np.arange(3000), "shop": rng.choice(["north", "south"], 3000)})
    csv.write_csv(table, tmp_path / "sales.csv")
    return tmp_path / "sales.csv"


def test_files_are_converted_and_shown(source, tmp_path, capsys):
    out = tmp_path / "sales.steelpack"
    run("convert", source, "--out", out, "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["set_aside"]) == (3000, 0)
    assert told["bytes"] < 0.3 * told["bytes_before"]
    assert Steelpack.open(out).numpy(["id"])["id"].sum() == 2999 * 1500
    run("show", out, "--check", "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["checked"] and [item["name"] for item in told["columns"]] == ["id", "shop"]
    run("show", out)
    assert "dictionary" in capsys.readouterr().out
    raw = bytearray(out.read_bytes())
    raw[100] ^= 1
    out.write_bytes(raw)
    with pytest.raises(DataError, match="damaged in 0/id; no row group is whole"):
        run("show", out, "--check")


def test_formats_are_advised_and_measured(source, tmp_path, monkeypatch, capsys):
    known = FormatCosts({item.name: (1e-4,) * 8 for item in OPTIONS})
    monkeypatch.setattr("steelyard.data.formats.advice.known_costs", lambda: known)
    run("advise", source, "--storage", "s3-standard", "--verify", "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == 3000 and len(told["options"]) == len(OPTIONS)
    for item in told["options"]:
        assert item["num_bytes"] == pytest.approx(item["num_bytes_measured"], rel=0.05, abs=500)
        assert item["load_s"] > item["scan_s"] and item["usd_per_month"] > 0
    run("bench", "--preset", "log", "--rows", 500, "--json")
    assert len(json.loads(capsys.readouterr().out)["options"]) == len(OPTIONS)


def test_what_is_missing_is_told(tmp_path):
    with pytest.raises(ConfigError, match="data pack advise needs files"):
        run("advise")
    with pytest.raises(ConfigError, match="needs files or --preset"):
        run("bench")
    with pytest.raises(ConfigError, match="no workload 'x'"):
        run("bench", "--preset", "x")
    with pytest.raises(DataError, match="cannot read"):
        run("show", tmp_path / "none.steelpack")
