"""The list of papers is whole, and every object and benchmark it names exists."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from steelyard import papers
from steelyard.cli.papers import app
from steelyard.errors import ConfigError

BENCHMARKS = {path.stem for path in (Path(__file__).parents[1] / "benchmarks").glob("*/*.py")}
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
PAPERS = papers.load()


def test_there_are_88_papers_with_unique_keys():
    assert len(PAPERS) == 88
    assert [int(paper.key[:2]) for paper in PAPERS] == list(range(1, 89))
    assert len({paper.title for paper in PAPERS}) == 88


def test_arxiv_identifiers_are_well_formed_and_unique():
    assert all(re.fullmatch(r"\d{4}\.\d{4,5}", paper.arxiv) for paper in PAPERS)
    assert len({paper.arxiv for paper in PAPERS}) == 88


@pytest.mark.parametrize(
    "paper", [paper for paper in PAPERS if paper.object], ids=lambda paper: paper.key
)
def test_objects_are_importable(paper):
    parts = paper.object.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            found = getattr(found, name)
        return
    pytest.fail(f"{paper.object} does not exist")


@pytest.mark.parametrize(
    "paper", [paper for paper in PAPERS if paper.benchmark], ids=lambda paper: paper.key
)
def test_benchmarks_exist_and_name_the_paper(paper):
    assert paper.benchmark in BENCHMARKS
    sys.path.insert(0, str(Path(__file__).parents[1]))
    try:
        from benchmarks.discover import load

        assert paper.key in load(paper.benchmark).papers
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize(
    "paper", [paper for paper in PAPERS if paper.state == "works"], ids=lambda paper: paper.key
)
def test_a_working_paper_misses_no_bar(paper):
    stored = json.loads((RESULTS / f"{paper.benchmark}.json").read_text())
    assert [check["name"] for check in stored["checks"] if not check["ok"]] == []


def test_a_working_paper_needs_a_benchmark_and_a_begun_one_an_object():
    fields = {"key": "1-x", "title": "X", "arxiv": "2001.00001", "venue": "", "room": "laws"}
    with pytest.raises(ConfigError, match="needs a benchmark"):
        papers.Paper(**fields, object="steelyard.laws.fit", state="works")
    with pytest.raises(ConfigError, match="needs an object"):
        papers.Paper(**fields, state="partly")


def test_select_filters_and_refuses_unknown_values():
    assert {paper.room for paper in papers.select(room="serve")} == {"serve"}
    assert (
        len(papers.select(state="works"))
        + len(papers.select(state="partly"))
        + len(papers.select(state="planned"))
        == 88
    )
    with pytest.raises(ConfigError, match="--room 'kitchen'"):
        papers.select(room="kitchen")
    with pytest.raises(ConfigError, match="--state 'done'"):
        papers.select(state="done")


def test_command_prints_json_and_a_table(capsys):
    app(["--room", "cost", "--json"], result_action="return_value")
    rows = json.loads(capsys.readouterr().out)
    assert {row["room"] for row in rows} == {"cost"}
    app(["--room", "cost"], result_action="return_value")
    assert "24-ai-memory-wall" in capsys.readouterr().out
