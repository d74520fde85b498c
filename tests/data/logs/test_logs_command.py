"""`steelyard data logs`: what its verbs print and write."""

import json
from pathlib import Path

import pytest

from steelyard.cli.main import main

pq = pytest.importorskip("pyarrow.parquet")


def code_of(*words):
    with pytest.raises(SystemExit) as ended:
        main(["data", *map(str, words)])
    return ended.value.code or 0


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    path = tmp_path_factory.mktemp("jobs") / "jobs.log"
    assert code_of("logs", "generate", "--out", path, "--sessions", 250) == 0
    return path


def told(capsys, *words):
    capsys.readouterr()
    assert code_of("logs", *words) == 0
    return capsys.readouterr().out


def test_a_parsed_log_is_a_table(jobs, tmp_path, capsys):
    out, page, kept = (tmp_path / name for name in ("a.parquet", "a.html", "a.templates"))
    words = ("parse", jobs, "--out", out, "--report", page, "--templates", kept, "--json")
    found = json.loads(told(capsys, *words))
    rows = pq.read_table(out)
    assert len(rows) == found["lines"] == sum(item["lines"] for item in found["templates"])
    assert found["unmatched"] == 0
    assert rows["template"][0].as_py() == "job_<*> starts"
    assert rows["parameters"][0].as_py() == ["0"]
    assert rows["Level"].unique().to_pylist() == ["INFO"]
    assert "most frequent templates" in page.read_text()
    assert code_of("table", "profile", out, "--json") == 0
    grown = json.loads(told(capsys, *words[:2], "--templates", kept, "--json"))
    assert grown["templates"] == found["templates"]
    new = tmp_path / "new.log"
    new.write_text("17/06/09 20:10:40 INFO a.B: brand new\n" + jobs.read_text()[:2000])
    lines = told(
        capsys, "watch", new, "--templates", kept, "--from-start", "--once", "--format", "Spark"
    )
    assert lines.splitlines()[0].endswith("brand new")


def test_an_archive_is_searched_and_unpacked(jobs, tmp_path, capsys):
    archive, back = tmp_path / "a.pack", tmp_path / "b.log"
    told(capsys, "compress", jobs, "--out", archive)
    found = told(capsys, "grep", archive, "job_7 ", "--template", "starts")
    assert found.splitlines() == [
        line for line in jobs.read_text().splitlines() if "job_7 starts" in line
    ]
    counted = json.loads(told(capsys, "grep", archive, "--template", "starts", "--count", "--json"))
    assert counted["lines"] == 250
    assert counted["read_share"] < 0.5
    told(capsys, "decompress", archive, "--out", back)
    assert back.read_bytes() == jobs.read_bytes()


@pytest.mark.parametrize("kind", ["invariants", "pca", "ngram"])
def test_odd_sessions_are_shown_with_reasons(jobs, capsys, kind):
    words = ("detect", jobs, "--session", "job_[0-9]+", "--kind", kind, "--json", "--most", "100")
    found = json.loads(told(capsys, *words))
    path = jobs.with_name("jobs.log.faults.jsonl")
    faults = [json.loads(line) for line in path.read_text().splitlines()]
    strange = {fault["session"] for fault in faults if fault["fault"] in ("missing", "extra")}
    shown = {item["session"] for item in found["shown"]}
    assert found["sessions"] == 250
    if kind == "invariants":
        # A pair of events that two faults of sixty break is no rule.
        assert len(strange & shown) >= 0.6 * len(strange) > 1
        assert all(item["reasons"] for item in found["shown"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("parse",), "needs files"),
        (("parse", "nothing.log"), "no log at"),
        (("parse", "{log}", "--format", "<Time>"), "does not end in"),
        (("parse", "{log}", "--workers", "0"), "--workers"),
        (("detect", "{log}", "--session", "("), "--session"),
        (("detect", "{log}", "--window", "1"), "--window"),
        (("grep", "{log}"), "no pack"),
        (("watch", "{log}", "--templates", "{log}"), "no pack"),
        (("bench", "."), "formats.json"),
    ],
)
def test_bad_input_is_refused(jobs, capsys, words, message):
    given = [word.replace("{log}", str(jobs)) for word in words]
    assert code_of("logs", *given) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_recipe_says_how_logs_are_read_and_the_line_counts_before_it(jobs, tmp_path, capsys):
    shipped = Path(__file__).parents[3] / "recipes" / "data-logs.toml"
    usual = json.loads(told(capsys, "parse", jobs, "--json"))
    assert json.loads(told(capsys, "parse", jobs, "--recipe", shipped, "--json")) == usual
    recipe = tmp_path / "plain.toml"
    recipe.write_text('format = ""\nseeds = ["a template that <*> knows"]\n')
    plain = json.loads(told(capsys, "parse", jobs, "--recipe", recipe, "--json"))
    assert plain != usual
    recipe.write_text("workers = 0\n")
    assert code_of("logs", "parse", jobs, "--recipe", recipe) == 2
