"""Sketches of tables in files: they come back whole, know when they are stale, and tell drift."""

import json
import math
import os

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.data.table import DataTable, ProfileFold, sketch_file
from steelyard.data.table.drift import compare_tables, population_stability
from steelyard.data.table.sketch_file import TableSketch
from steelyard.errors import ConfigError, DataError

pa = pytest.importorskip("pyarrow")


def written(folder, *, seed, shift=0.0, missing=0.0, words="abcd", rows=6000, extra="old"):
    """Write a CSV table and return its path."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    price = rng.lognormal(3 + shift, 1, rows)
    gone = rng.random(rows) < missing
    with (folder / "rows.csv").open("w") as file:
        file.write(f"price,count,shop,{extra}\n")
        for place in range(rows):
            shown = "" if gone[place] else f"{price[place]:.4f}"
            word = words[rng.integers(len(words))]
            file.write(f"{shown},{rng.poisson(4)},{word},{place % 3}\n")
    return folder


def sketch_of(folder):
    table = DataTable.scan(folder)
    return TableSketch.of(table, table.fold(ProfileFold()))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("drift")
    return {
        "before": written(made / "before", seed=0),
        "same": written(made / "same", seed=1, rows=9000),
        "after": written(made / "after", seed=2, shift=0.7, missing=0.08, words="abx", extra="new"),
    }


@pytest.fixture(scope="module")
def sketches(folders):
    return {name: sketch_of(folder) for name, folder in folders.items()}


def values_of(folder, name):
    return DataTable.scan(folder).collect()[0][name].drop_null().to_numpy()


def test_tables_of_one_law_are_alike(sketches):
    found = compare_tables(sketches["before"], sketches["same"])
    assert found.findings() == []
    assert all(item.psi < 0.02 for item in found.columns)
    assert found.rows == (6000, 9000)


def test_what_changed_is_said(sketches):
    found = compare_tables(sketches["before"], sketches["after"])
    assert (found.lost, found.new) == (("old",), ("new",))
    told = "; ".join(found.findings())
    assert "price: values shifted far" in told
    assert "price: 0.0% of the values were missing, now 8" in told
    assert "shop: values shifted far" in told
    assert "count: " not in told


def test_figures_are_those_of_the_rows_within_the_bounds(sketches, folders):
    found = compare_tables(sketches["before"], sketches["after"]).columns[0]
    one, other = (values_of(folders[name], "price") for name in ("before", "after"))
    every = np.sort(np.concatenate([one, other]))
    shares = [
        np.searchsorted(np.sort(values), every, side="right") / len(values)
        for values in (one, other)
    ]
    ks = np.abs(shares[0] - shares[1]).max()
    assert abs(found.ks - ks) <= 2 * 0.0165
    assert found.ks_least <= ks
    edges = np.quantile(one, np.arange(1, 10) / 10)
    bins = [
        np.bincount(np.searchsorted(edges, values), minlength=10) / len(values)
        for values in (one, other)
    ]
    assert found.psi == pytest.approx(population_stability(*bins), rel=0.15)


def test_the_index_is_that_of_its_formula():
    one, other = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    expected = -0.25 * math.log(0.5) + 0.25 * math.log(1.5)
    assert population_stability(one, other) == pytest.approx(expected)
    assert population_stability(one, one) == 0
    assert population_stability(one, np.array([1.0, 0.0])) < 10


def test_a_sketch_comes_back_whole(sketches, tmp_path):
    path = tmp_path / "a.sketch"
    sketches["before"].write(path)
    again = TableSketch.open(path)
    assert repr(again.profile) == repr(sketches["before"].profile)
    assert (again.files, again.schema) == (sketches["before"].files, sketches["before"].schema)
    assert again.stale() == []


def test_sketches_are_compared_without_reading_a_table(sketches, tmp_path, monkeypatch, capsys):
    for name in ("before", "after"):
        sketches[name].write(tmp_path / f"{name}.sketch")
    opened = []
    monkeypatch.setattr(sketch_file, "open_source", lambda path, counts: opened.append(path))
    words = [str(tmp_path / f"{name}.sketch") for name in ("before", "after")]
    assert said(["data", "table", "drift", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["lost"] == ["old"]
    assert any("price: values shifted far" in text for text in found["findings"])
    assert opened == []


def said(words):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    return stopped.value.code


def test_the_verb_refuses_a_stale_sketch_by_name(tmp_path, capsys):
    folder = written(tmp_path / "rows", seed=5, rows=400)
    path = tmp_path / "rows.sketch"
    sketch_of(folder).write(path)
    (folder / "rows.csv").write_text((folder / "rows.csv").read_text() + "1,2,a,3\n")
    words = ["data", "table", "drift", str(path), str(folder)]
    assert said(words) == 2
    assert "rows.csv changed since it was made" in " ".join(capsys.readouterr().err.split())
    assert said([*words, "--stale"]) == 0
    assert "none" in capsys.readouterr().out
    (folder / "rows.csv").unlink()
    assert TableSketch.open(path).files[0].state() == "gone"


def test_a_footer_says_whether_a_file_whose_time_changed_is_the_same(tmp_path):
    from pyarrow import parquet

    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"a": [1, 2, 3]}), path)
    made = sketch_of(path)
    os.utime(path, ns=(1, 1))
    assert made.stale() == []
    parquet.write_table(pa.table({"a": [1, 2, 4]}), path)
    assert made.stale() == [str(path)]


def test_what_is_no_sketch_is_refused(tmp_path, sketches):
    from steelyard.data.pack import write_pack

    write_pack(tmp_path / "other.sketch", {"a": np.zeros(3)})
    with pytest.raises(DataError, match="no sketch of a table"):
        TableSketch.open(tmp_path / "other.sketch")
    sketches["before"].write(tmp_path / "cut.sketch")
    (tmp_path / "cut.sketch").write_bytes((tmp_path / "cut.sketch").read_bytes()[:-9])
    with pytest.raises(DataError, match="no pack, or is cut short"):
        TableSketch.open(tmp_path / "cut.sketch")
    frame = DataTable.scan(pa.table({"a": [1]}))
    with pytest.raises(ConfigError, match="not of a frame"):
        TableSketch.of(frame, frame.fold(ProfileFold()))


def test_the_verb_that_profiles_leaves_a_sketch(folders, tmp_path, capsys, monkeypatch):
    from steelyard.cli.data import scanning

    # What this machine reads a second is no matter here.
    monkeypatch.setattr(scanning, "forecast_pass", lambda *_given, **_named: ([], []))
    monkeypatch.setattr(scanning, "cost_sections", lambda *_given: [])
    monkeypatch.setattr(scanning, "keep_checks", lambda *_given: None)
    path = tmp_path / "kept.sketch"
    words = ["data", "table", "profile", str(folders["before"]), "--memory", "90MB"]
    assert said([*words, "--sketch", str(path)]) == 0
    assert TableSketch.open(path).profile.rows == 6000
    capsys.readouterr()
    assert said([*words[:-1], "1MB"]) == 2
    assert "do not hold one part of the table" in " ".join(capsys.readouterr().err.split())
