"""`steelyard data lake`: from a lake that is made to tables that are deleted and rebuilt."""

import json
import re

import pytest

from steelyard.cli.data.lake import app
from steelyard.errors import ConfigError, DataError

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from steelyard.data.lake.picture import arranged, containment_chart  # noqa: E402


def run(capsys, *words):
    app([str(word) for word in words], result_action="return_value")
    return capsys.readouterr().out


@pytest.fixture
def lake(tmp_path, capsys):
    words = ("generate", tmp_path / "lake", "--tables", 20, "--bases", 2, "--rows", 300)
    assert "next: steelyard data lake plan" in run(capsys, *words)
    return tmp_path / "lake"


def test_a_lake_is_planned_applied_and_rebuilt(lake, tmp_path, capsys):
    scanned = json.loads(run(capsys, "scan", lake, "--json"))
    assert len(scanned["tables"]) == 20 and scanned["unreadable"] == {}
    state = tmp_path / "graph.json"
    graph = json.loads(run(capsys, "graph", lake, "--state", state, "--json"))
    assert graph["rows_read"] > 0 and len(graph["edges"]) > 5
    recipe = tmp_path / "free.toml"
    recipe.write_text("[prices]\nread_usd_per_byte = 0.0\n")
    page, plan = tmp_path / "plan.html", tmp_path / "plan.json"
    words = ("plan", lake, "--recipe", recipe, "--state", state, "--out", plan, "--report", page)
    told = run(capsys, *words)
    assert "tables that can go" in told and "Nothing was changed" in told
    assert "<svg" in page.read_text()
    planned = json.loads(plan.read_text())
    gone = {item["table"] for item in planned["deletions"]}
    assert len(gone) >= 3 and planned["cost_usd_month"] < planned["keep_all_usd_month"]
    before = {name: parquet.read_table(lake / f"{name}.parquet") for name in gone}
    assert "nothing was changed without --yes" in run(capsys, "apply", plan)
    done = json.loads(run(capsys, "apply", plan, "--yes", "--json"))
    assert {item["table"] for item in done["deleted"]} == gone and done["recipe_bytes"] > 0
    assert not any((lake / f"{name}.parquet").exists() for name in gone)
    assert all(name in run(capsys, "rebuild", lake) for name in gone)
    one = min(gone)
    run(capsys, "rebuild", lake, one, "--out", tmp_path / "there")
    assert parquet.read_table(tmp_path / "there" / f"{one}.parquet").equals(before[one])
    run(capsys, "rebuild", lake, "--every")
    assert all(parquet.read_table(lake / f"{name}.parquet").equals(before[name]) for name in gone)
    assert "nothing was deleted" in run(capsys, "rebuild", lake)


def test_pages_show_what_is_left_out(lake, tmp_path, capsys):
    (lake / "broken.parquet").write_bytes(b"none")
    for verb in ("scan", "graph", "plan"):
        told = run(capsys, verb, lake)
        assert "Left out" in told and "broken.parquet" in told
    with pytest.raises(DataError, match="no table"):
        run(capsys, "scan", tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="--rows"):
        run(capsys, "generate", tmp_path / "new", "--rows", 0)
    cheap, dear = (
        json.loads(run(capsys, "plan", lake, "--tier", name, "--json"))["keep_all_usd_month"]
        for name in ("s3-glacier-instant", "s3-standard")
    )
    assert min(cheap, dear) > 0 and cheap != dear
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[checks]\nepsilon = 2.0\n")
    with pytest.raises(ConfigError, match="epsilon"):
        run(capsys, "plan", lake, "--recipe", wrong)


def test_the_picture_shows_each_table_once_and_no_line_that_follows():
    edges = [("b", "a"), ("c", "b"), ("c", "a"), ("d", "e"), ("e", "d"), ("f", "d"), ("f", "e")]
    found = arranged(edges)
    assert set(found.places) == set("abcdef") and found.left_out == 0
    assert ("c", "a") not in found.lines and {("b", "a"), ("c", "b")} <= set(found.lines)
    assert len([line for line in found.lines if set(line) == {"d", "e"}]) == 1
    assert len(set(found.places.values())) == 6
    many = [(f"x{place}", f"y{place}") for place in range(200)]
    spec, left_out = containment_chart(many, dict.fromkeys("x", 1.0) | _sizes(many), {})
    assert left_out == 2 * 200 - 120
    assert len(re.findall(r"'table'", str(spec["datasets"]))) == 120


def _sizes(edges):
    return {name: 1.0 for edge in edges for name in edge}
