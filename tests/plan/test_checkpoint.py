"""`steelyard plan checkpoint`: intervals, what they keep, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.plan.checkpoint import FaultyJob, plan_checkpoint
from steelyard.sim.faults import Weibull, wall_times_s
from steelyard.sim.faults.records import FailureRecord

JOB = FaultyJob(failures=Weibull(10800.0), save_s=30.0, restart_s=600.0, work_s=30 * 86400.0)


def run(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(["plan", "checkpoint", *arguments])
    return int(caught.value.code or 0)


def test_the_interval_of_the_goodput_holds_four_of_five_jobs():
    made = plan_checkpoint(JOB)
    wall_s, _ = wall_times_s(
        JOB.failures,
        np.random.default_rng(99),
        work_s=JOB.work_s,
        interval_s=made.interval_s,
        save_s=30.0,
        restart_s=600.0,
        num_runs=2000,
    )
    kept = JOB.work_s / wall_s
    inside = (made.goodput.low <= kept) & (kept <= made.goodput.high)
    assert 0.75 < inside.mean() < 0.85
    # A job 16 times as long is a quarter as uncertain, also where it is scaled from a shorter one.
    longer = plan_checkpoint(replace(JOB, work_s=16 * JOB.work_s)).goodput
    width = (longer.high - longer.low) / (made.goodput.high - made.goodput.low)
    assert width == pytest.approx(0.25, rel=0.2)


def test_the_parts_add_up_and_what_costs_most_helps_most():
    made = plan_checkpoint(JOB)
    assert sum(made.shares.values()) == pytest.approx(1.0)
    assert made.choices[0].goodput >= max(item.goodput for item in made.choices) - 1e-9
    assert made.flat_s[0] < made.interval_s < made.flat_s[1] and not made.lacks
    assert max(made.gains, key=made.gains.get) == "half as many failures"
    slow = plan_checkpoint(replace(JOB, save_s=600.0, restart_s=1.0))
    assert slow.gains["saves twice as fast"] > 10 * slow.gains["restarts twice as fast"] > 0


def test_a_known_record_is_more_certain_the_longer_it_is():
    rng = np.random.default_rng(4)
    widths = []
    for count in (10, 1000):
        times = np.cumsum(rng.exponential(10800.0, count))
        record = FailureRecord(times, float(times[-1]) + 100.0)
        job = FaultyJob.of_record(record, save_s=30.0, restart_s=600.0, work_s=3e7)
        made = plan_checkpoint(job)
        widths.append(made.goodput.high - made.goodput.low)
        assert job.num_observed == count and made.goodput.provenance == "fitted"
    assert widths[1] < 0.5 * widths[0]
    # Twice the accelerators fail twice as often.
    twice = FaultyJob.of_record(record, scale=0.5, save_s=30.0, restart_s=600.0, work_s=3e7)
    assert twice.failures.mean_s == pytest.approx(job.failures.mean_s / 2)


def test_a_job_that_hardly_moves_says_how_far_it_is_off():
    made = plan_checkpoint(replace(JOB, failures=Weibull(600.0), save_s=300.0))
    assert made.goodput.value < 0.2 and "times fewer failures" in made.lacks
    factor = float(made.lacks.split(" with ")[1].split()[0])
    enough = plan_checkpoint(replace(JOB, failures=Weibull(600.0 * factor), save_s=300.0))
    assert enough.goodput.value == pytest.approx(0.5, abs=0.01)


def test_the_command_prints_a_plan(capsys, tmp_path):
    asked = ("--mtbf", "3 hours", "--save", "30 s", "--restart", "10 min", "--memory-save", "2 s")
    assert run(*asked) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Save every 13.1 min" in text and "Daly 2006" in text and "With saves to memory" in text
    assert run(*asked, "--observed", "16384", "--count", "32768", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["job"]["failures"]["mean_s"] == 5400 and made["two_levels"]["every"] > 1
    table = tmp_path / "failures.csv"
    table.write_text("time_s\n" + "\n".join(str(3600 * k * k) for k in range(1, 9)))
    storage = ("--model", "llama-3.1-8b", "--write-rate", "10 GB/s")
    assert run("--failures", str(table), *storage, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["job"]["save_s"] == pytest.approx(12 * 8.03e9 / 10e9, rel=0.01)
    assert run("--mtbf", "1 min", "--save", "10 min") == 1
    assert "Infeasible" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["2 things", "--mtbf or --failures", "--save, or --model"]),
        (("--mtbf", "3 hours", "--save", "0 s"), ["--save is '0 s'", "above 0 s"]),
        (("--mtbf", "3 hours", "--save", "3 GB"), ["--save"]),
        (("--mtbf", "3 hours", "--save", "1 s", "--count", "4"), ["--observed is 0", "--count"]),
        (("--mtbf", "3 hours", "--model", "gpt3-175b"), ["--write-rate"]),
        (("--failures", "missing.csv", "--save", "1 s"), ["missing.csv"]),
        (
            ("--mtbf", "1 hour", "--save", "1 s", "--memory-save", "1 s", "--hard-fraction", "2"),
            ["--hard-fraction is 2.0"],
        ),
    ],
)
def test_errors_speak_of_options(capsys, arguments, words):
    assert run(*arguments) == 2
    text = " ".join(capsys.readouterr().err.split())
    for word in words:
        assert word in text
