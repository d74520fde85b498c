"""The benchmark runner: its JSON line, its exit codes, its names."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
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


def test_a_python_that_is_not_here_is_named_with_ways_to_get_it():
    from benchmarks.peers import _interpreter

    from steelyard.errors import BackendError

    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert _interpreter(ours) == sys.executable
    with pytest.raises(BackendError, match=r"needs Python 3\.99") as found:
        _interpreter("3.99")
    assert "pyenv install 3.99" in found.value.hint


def _worker(monkeypatch, tmp_path, program):
    """Put a program in the place of the peer's worker, run by our Python."""
    from benchmarks import peers
    from benchmarks.laws import _simple_scaling

    file = tmp_path / "worker.py"
    file.write_text(f"import json, sys, time\nfor line in sys.stdin:\n    {program}\n")
    monkeypatch.setattr(peers, "python", lambda name: Path(sys.executable))
    monkeypatch.setattr(_simple_scaling, "_WORKER", file)
    return _simple_scaling.forecasts


def test_a_peer_that_dies_at_a_case_answers_the_next(monkeypatch, tmp_path):
    program = "sys.exit('no such law') if 'bad' in line else print(line.strip(), flush=True)"
    forecasts = _worker(monkeypatch, tmp_path, program)
    first, second, third = forecasts([{"value": 1}, {"bad": 1}, {"value": 2}])
    assert (first, third) == ({"value": 1}, {"value": 2})
    assert "no such law" in second["error"]


def test_a_case_that_outlasts_its_limit_is_an_error(monkeypatch, tmp_path):
    forecasts = _worker(monkeypatch, tmp_path, "time.sleep(600)")
    assert forecasts([{}, {}], limit_s=0.1) == [{"error": "no answer in 0.1 s"}] * 2


def test_a_peer_that_is_not_installed_gives_none(monkeypatch, tmp_path, capsys):
    from benchmarks import peers
    from benchmarks.laws._simple_scaling import forecasts

    monkeypatch.setattr(peers, "_ROOT", tmp_path)
    assert forecasts([{}]) is None
    assert "peers install simple-scaling-laws" in capsys.readouterr().out


@pytest.mark.peers
@pytest.mark.parametrize("axes", [("parameters", "tokens"), ("samples",)])
def test_simple_scaling_laws_foretells_a_planted_law(axes):
    from benchmarks.laws._simple_scaling import forecasts

    generator = np.random.default_rng(0)
    sizes = np.repeat(np.geomspace(1e7, 3e8, 4), 3)
    columns = {"parameters": sizes, "tokens": sizes * np.tile([5.0, 20.0, 80.0], 4)}
    columns["samples"] = columns["tokens"]
    inputs = {name: columns[name] for name in axes}
    largest = {name: 10 * column.max() for name, column in inputs.items()}

    def law(at):
        return 1.8 + sum(2000 / value**0.35 for value in at.values())

    found = forecasts(
        [
            {
                "inputs": {name: column.tolist() for name, column in inputs.items()},
                "loss": (law(inputs) * np.exp(generator.normal(0, 0.003, 12))).tolist(),
                "runs": [f"run {row}" for row in range(12)],
                "at": {name: [value] for name, value in largest.items()},
                "level": 0.8,
            }
        ]
    )
    assert found
    answer = found[0]
    assert answer["low"][0] < answer["value"][0] < answer["high"][0]
    assert answer["value"][0] == pytest.approx(law(largest), rel=0.02)
