"""`plan explain`: faults in simulated logs are named, and logs that are none are refused."""

import json

import numpy as np
import pytest
from benchmarks.plan._faulty_jobs import FAULTS, draw_job

from steelyard.cli.main import main
from steelyard.errors import DataError
from steelyard.plan.explain import TERMS, StepModel, WorkFactors, diagnose, read_step_log
from steelyard.plan.explain.pauses import find_pauses
from steelyard.runs.ledger import Ledger
from steelyard.runs.store import RunStore

LAYOUT = ("--model", "gpt3-6.7b", "--cluster", "Selene", "--data", "2", "--micro-batches", "4")


def rows(steps=12, ranks=2, step_s=2.0, **terms):
    return [
        {"step": step, "rank": rank, "step_time_s": step_s, **terms}
        for step in range(steps)
        for rank in range(ranks)
    ]


def written(path, found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def run(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(["plan", "explain", *map(str, arguments)])
    return int(caught.value.code or 0)


def test_terms_of_every_rank_add_up_and_a_slow_one_is_waited_for():
    step = draw_job("bubble", 5, num_steps=8).step
    model = StepModel(step)
    plain = model.simulate()
    compute = np.ones(model.shape)
    compute[0, -1] = 1.5
    slow = model.simulate(WorkFactors(compute=compute))
    for found in (plain, slow):
        whole = sum(found.terms[name] for name in TERMS)
        assert whole == pytest.approx(np.full(model.shape, found.time_s), rel=1e-9)
    assert slow.terms["compute_s"][0, -1] == pytest.approx(1.5 * plain.terms["compute_s"][0, -1])
    # The others work as long as before, and wait.
    assert slow.terms["compute_s"][0, 0] == pytest.approx(plain.terms["compute_s"][0, 0])
    assert slow.terms["bubble_s"][0, 0] > plain.terms["bubble_s"][0, 0]
    # There the rank's tensor-parallel traffic is slower as well.
    assert slow.time_s == pytest.approx(model.step.straggling_s(compute), rel=2e-2)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_beside_an_earlier_log(fault):
    job = draw_job(fault, 17, num_steps=48 if fault == "pauses" else 10)
    found = diagnose(job.log, job.step, baseline=job.before)
    assert found.findings[0].cause == fault
    assert found.findings[0].cost_s == pytest.approx((1 - 1 / job.severity) * found.step_s, rel=0.6)
    if job.rank >= 0:
        assert found.findings[0].ranks == (job.rank,)


def test_a_healthy_job_departs_in_nothing():
    job = draw_job("", 3, num_steps=10)
    assert not diagnose(job.log, job.step, baseline=job.before).findings


def test_pauses_have_their_period():
    steps = np.arange(40)
    step_s = np.where(steps % 8 == 3, 3.0, 1.0) + 0.001 * (steps % 3)
    found = find_pauses(steps, step_s)
    assert (found.count, found.period) == (5, 8)
    assert found.lost_s == pytest.approx(0.25, rel=0.01)
    assert find_pauses(steps, np.ones(40)).count == 0
    irregular = np.ones(40)
    irregular[[1, 2, 11, 30]] = 2.0
    assert find_pauses(steps, irregular).period == 0


def test_the_command_reads_lines_and_milliseconds_and_exits_with_1(capsys, tmp_path):
    healthy = {"compute_s": 1.8, "data_s": 0.1, "load_s": 0.0}
    before = written(tmp_path / "before.jsonl", rows(**healthy))
    late = rows(step_s=2.6, **(healthy | {"load_s": 0.6}), loss=2.5)
    log = written(tmp_path / "log.jsonl", late)
    assert run(log, *LAYOUT, "--baseline", before) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "wait for their data at each step" in text and "columns that are not used: loss" in text
    assert run(before, *LAYOUT, "--baseline", before, "--json") == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    table = "step,step_time_ms\n" + "".join(f"{step},2000\n" for step in range(9))
    (tmp_path / "log.csv").write_text(table)
    assert read_step_log(tmp_path / "log.csv").step_s.max() == 2.0
    assert run(tmp_path / "log.csv", *LAYOUT, "--json") in (0, 1)
    assert "no column rank" in " ".join(json.loads(capsys.readouterr().out)["notes"])


def test_a_kept_plan_is_checked_by_its_job(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path / "home"))
    asked = ("--budget", "1e21FLOP", "--cluster", "Selene", "--nodes", "1")
    with pytest.raises(SystemExit):
        main(["plan", "train", *asked, "--model", "gpt3-6.7b", "--keep", "--json"])
    made = json.loads(capsys.readouterr().out)
    said = next(item for item in made["forecasts"] if item["quantity"] == "train.step_time")
    log = written(tmp_path / "log.jsonl", rows(step_s=1.05 * said["value"]))
    assert run(log, *LAYOUT, "--plan", made["run"], "--json") in (0, 1)
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert check["measurement"]["value"] == pytest.approx(1.05 * said["value"])
    (row,) = Ledger(RunStore.existing()).summary()
    assert (row.forecaster, row.count, row.coverage) == ("plan.training", 1, 1.0)
    assert run(log, *LAYOUT, "--plan", "none") == 2


def test_starts_of_steps_are_enough_and_clocks_are_compared(tmp_path):
    started = [
        {"step": step, "rank": rank, "start_s": 2.0 * step + 30 * rank}
        for step in range(12)
        for rank in range(3)
    ]
    found = read_step_log(written(tmp_path / "log.jsonl", started))
    assert found.step_s == pytest.approx(np.full((11, 3), 2.0))
    assert "the clock of rank 2 is 30 s ahead" in " ".join(found.notes)
    twice = written(tmp_path / "twice.jsonl", [*rows(), *rows(steps=3, step_s=2.01)])
    assert "6 rows repeat a step" in read_step_log(twice).notes[0]
    uneven = written(tmp_path / "uneven.jsonl", [*rows(), {**rows()[0], "step": 12}])
    assert "1 steps are left out" in read_step_log(uneven).notes[0]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([{"step": 1, "loss": 2.0}], "no column step_time_s"),
        ([{"loss": 2.0}], "2 things are wrong"),
        (rows(steps=5), "5 of 5 steps are there for all ranks .*at least 8"),
        (rows()[1::2] + [{**rows()[0], "step": step} for step in (50, 51)], "rank 0 has 2"),
        ([*rows(), {**rows()[0], "step_time_s": None}], "1 of 25 values of step_time_s"),
        ([*rows(), {**rows()[0], "step_time_s": -1}], "seconds above 0"),
        ([*rows(), {**rows()[0], "rank": 0.5}], "whole number"),
        (rows(compute_s=1.5, data_s=1.0), "terms add up to 1.25 times their step"),
        (
            [{**row, "step_time_s": 2.0 + 0.4 * (row["rank"] == 2)} for row in rows(ranks=3)],
            "rank 2 last 1.200 times",
        ),
        (
            [{"step": step, "start_s": 5.0 * (step != 6)} for step in range(12)],
            "goes back from step 5 to step 6",
        ),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, found, words):
    with pytest.raises(DataError, match=words):
        read_step_log(written(tmp_path / "log.jsonl", found))


def test_ranks_must_be_those_of_the_layout(tmp_path, capsys):
    log = written(tmp_path / "log.jsonl", rows(ranks=5))
    assert run(log, *LAYOUT) == 2
    assert "the layout has 2 ranks" in capsys.readouterr().err
    one = written(tmp_path / "one.jsonl", rows(ranks=1, compute_s=1.0))
    assert run(one, *LAYOUT) == 2
    assert "no rank of replica 1, stage 0" in capsys.readouterr().err
    assert run(tmp_path / "none.csv", *LAYOUT) == 2
    assert "no such log" in capsys.readouterr().err


@pytest.mark.slow
def test_the_folder_of_a_run_holds_its_steps(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    from steelyard.train.checkpoint import CheckpointStore

    assert run(tmp_path, *LAYOUT) == 2
    assert "holds no checkpoint" in capsys.readouterr().err
    tensors = {
        "history.step_times_s": torch.full((20,), 0.5, dtype=torch.float64),
        "history.cold": torch.arange(20) < 3,
    }
    CheckpointStore(tmp_path).save(20, tensors, {})
    found = read_step_log(tmp_path)
    assert found.step_s.tolist() == [[0.5]] * 17
    assert "3 first steps" in found.notes[0]


def test_a_job_faster_than_its_forecast_is_another_job(tmp_path, capsys):
    log = tmp_path / "log.csv"
    log.write_text("step,step_time_s\n" + "".join(f"{step},0.01\n" for step in range(12)))
    assert run(log, *LAYOUT) == 0
    shown = capsys.readouterr().out
    assert "faster than the forecast allows" in shown and "Check model, layout" in shown
