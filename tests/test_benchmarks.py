"""The benchmark runner: its JSON line, its exit codes, its names."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_benchmark_loads_and_names_known_papers():
    from benchmarks.discover import find, load

    from steelyard import papers

    keys = {paper.key for paper in papers.load()}
    for name in find():
        benchmark = load(name)
        assert benchmark.about
        assert set(benchmark.papers) <= keys


def test_an_unknown_name_exits_with_2_and_near_names():
    from benchmarks.discover import find

    name = next(iter(find()), "")
    answer = run(name + "x" if name else "nothing")
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert "no benchmark named" in answer.stderr
    assert name in answer.stderr
    assert run("--bogus").returncode == 2
    assert run("peers", "install", "nobody").returncode == 2


def test_a_check_meets_its_bar_or_not():
    from benchmarks.common import Check

    assert Check("a", 2.0, 2.0, "higher").ok
    assert Check("a", 2.0, 2.0, "lower").ok
    assert not Check("a", 1.9, 2.0, "higher").ok
    assert not Check("a", float("nan"), 2.0, "higher").ok
    assert not Check("a", float("nan"), 2.0, "lower").ok


def test_ratios_are_taken_round_by_round():
    from benchmarks.common import ratio

    found = ratio([2.0, 30.0, 4.0], [1.0, 10.0, 1.0])
    assert (found.median, found.low, found.high) == (3.0, 2.0, 4.0)


@pytest.mark.parametrize(("value", "code"), [(1.0, 0), (3.0, 1)])
def test_a_run_prints_json_last_and_stores_full_runs_only(
    monkeypatch, tmp_path, capsys, value, code
):
    import benchmarks.__main__ as runner
    from benchmarks.common import Check
    from benchmarks.discover import Benchmark

    def work(quick):
        print("noise")
        return [Check("1 [a]", value, 2.0, "lower")]

    monkeypatch.setattr(
        runner.discover,
        "load",
        lambda name: Benchmark(name, "cost", "About.", ["24-ai-memory-wall"], work),
    )
    monkeypatch.setattr(runner, "_RESULTS", tmp_path)
    assert runner.run("x", quick=True, json=True) == code
    [line] = capsys.readouterr().out.splitlines()
    record = json.loads(line)
    assert record["checks"] == [
        {"name": "1 [a]", "value": value, "bar": 2.0, "better": "lower", "ok": code == 0}
    ]
    assert not list(tmp_path.iterdir())
    assert runner.run("x") == code
    output = capsys.readouterr().out
    assert "1 [a]" in output
    assert json.loads(output.splitlines()[-1])["paper"] == ["24-ai-memory-wall"]
    stored = json.loads((tmp_path / "x.json").read_text())
    assert stored["versions"]["steelyard"]
    assert stored["date"][:2] == "20"
