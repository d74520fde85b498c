"""Failures: laws against their records, closed forms against simulated jobs."""

from itertools import repeat
from pathlib import Path

import numpy as np
import pytest

from steelyard.errors import ConfigError, DataError, FitError
from steelyard.sim.faults import (
    CheckpointLevel,
    MemoryAndStorage,
    RecordedGaps,
    Weibull,
    best_interval,
    best_two_levels,
    daly_interval_s,
    exponential_interval_s,
    fit_weibull,
    read_failures,
    renewal_goodput,
    run_job,
    two_level_goodput,
    wall_times_s,
    young_interval_s,
)

FLAPS = Path(__file__).parents[3] / "shared" / "data" / "fire-flyer" / "ib-link-flaps-daily.csv"
COSTS = {"interval_s": 400.0, "save_s": 20.0, "restart_s": 60.0}
LAWS = [
    Weibull(3000.0),
    Weibull(3000.0, 0.6),
    Weibull(3000.0, 2.5),
    RecordedGaps(np.array([90.0, 500.0, 2500.0, 9000.0])),
]


@pytest.mark.parametrize("law", LAWS, ids=["constant", "bursty", "aging", "recorded"])
def test_the_renewal_goodput_is_that_of_long_simulated_jobs(law):
    work_s = 200 * law.mean_s
    wall_s, count = wall_times_s(
        law, np.random.default_rng(1), work_s=work_s, num_runs=200, **COSTS
    )
    simulated = work_s / wall_s
    error = simulated.std() / np.sqrt(len(simulated))
    assert abs(simulated.mean() - renewal_goodput(law, **COSTS)) < 4 * error + 0.002
    assert abs((wall_s / count).mean() / law.mean_s - 1) < 0.03


def test_with_a_constant_rate_the_renewal_is_dalys_equation_20():
    mtbf, interval, save, restart = 3000.0, 400.0, 20.0, 60.0
    wall = mtbf * np.exp(restart / mtbf) * np.expm1((interval + save) / mtbf) / interval
    found = renewal_goodput(Weibull(mtbf), interval_s=interval, save_s=save, restart_s=restart)
    assert found == pytest.approx(1 / wall, rel=1e-9)
    # The series as it is summed for other laws has the same value.
    nearly = Weibull(mtbf, 1 + 1e-12)
    assert renewal_goodput(
        nearly, interval_s=interval, save_s=save, restart_s=restart
    ) == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("law", LAWS, ids=["constant", "bursty", "aging", "recorded"])
def test_many_jobs_at_once_are_the_jobs_one_by_one(law):
    rng = np.random.default_rng(2)
    drawn = law.gaps_s(rng, (400, 8))

    class Played:
        mean_s = law.mean_s

        def __init__(self):
            self.rows = iter(drawn)

        def gaps_s(self, rng, shape):
            return next(self.rows)

        def survival(self, time_s):
            return law.survival(time_s)

    wall_s, count = wall_times_s(Played(), rng, work_s=7000.0, num_runs=8, **COSTS)
    level = (CheckpointLevel(1, COSTS["save_s"], COSTS["restart_s"]),)
    for run in range(8):
        gaps = zip(drawn[:, run], repeat(0), strict=False)
        job = run_job(gaps, work_s=7000.0, interval_s=400.0, levels=level)
        assert job.wall_s == pytest.approx(wall_s[run], abs=1e-6) and job.num_failures == count[run]
        parts = job.work_s + job.lost_s + job.saving_s + job.restarting_s
        assert parts == pytest.approx(job.wall_s, abs=1e-6)
        assert job.goodput == job.work_s / job.wall_s


def test_a_failure_costs_what_was_not_saved():
    level = (CheckpointLevel(1, 1.0, 5.0),)
    # Worked to 10, saved by 11, worked to 15 and failed; from 20 on the last 10 s, and done.
    job = run_job([(15.0, 0)], work_s=20.0, interval_s=10.0, levels=level)
    assert (job.wall_s, job.lost_s, job.saving_s, job.restarting_s) == (30.0, 4.0, 1.0, 5.0)
    none = run_job([], work_s=20.0, interval_s=10.0, levels=level)
    assert (none.wall_s, none.num_failures) == (21.0, 0)


def test_a_hard_failure_during_a_soft_restart_still_needs_the_safe_level():
    levels = (CheckpointLevel(1, 0.0, 2.0), CheckpointLevel(2, 0.0, 10.0))
    # At 35 a soft failure keeps 30 s of work; at 36 a hard one, which keeps 20.
    job = run_job([(35.0, 0), (1.0, 1)], work_s=50.0, interval_s=10.0, levels=levels)
    assert job.lost_s == 15.0 and job.restarting_s == 11.0 and job.wall_s == 76.0


@pytest.mark.parametrize("hard", [0.0, 0.3, 1.0])
def test_two_levels_are_the_mean_of_simulated_jobs(hard):
    levels = MemoryAndStorage(
        memory_save_s=5.0, memory_restart_s=20.0, save_s=40.0, restart_s=200.0, hard_fraction=hard
    )
    mtbf, interval, every = 1500.0, 150.0, 4
    rng = np.random.default_rng(3)
    saves = (CheckpointLevel(1, 5.0, 20.0), CheckpointLevel(every, 40.0, 200.0))
    found = []
    for _ in range(40):
        count = 1000
        kinds = rng.random(count) < hard
        drawn = zip(rng.exponential(mtbf, count), kinds.astype(int), strict=True)
        job = run_job(drawn, work_s=4e5, interval_s=interval, levels=saves)
        found.append(job.goodput)
    exact = two_level_goodput(mtbf, levels, interval_s=interval, every=every)
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - exact) < 4 * error + 1e-3
    if hard == 1.0:
        # No memory survives: the same as one level that saves both ways now and then.
        best = best_two_levels(mtbf, levels)
        assert best[1] == 1


def test_the_best_two_levels_beat_one_and_their_neighbours():
    levels = MemoryAndStorage(
        memory_save_s=1.0, memory_restart_s=30.0, save_s=60.0, restart_s=300.0, hard_fraction=0.1
    )
    interval_s, every, kept = best_two_levels(7200.0, levels)
    one = best_interval(Weibull(7200.0), save_s=60.0, restart_s=300.0)[1]
    assert kept > one + 0.03 and every > 1
    for near_s, number in ((0.8, every), (1.25, every), (1.0, every + 3), (1.0, every - 3)):
        near = two_level_goodput(7200.0, levels, interval_s=near_s * interval_s, every=number)
        assert near <= kept + 1e-9


@pytest.mark.parametrize("save_s", [1.0, 30.0, 600.0, 20000.0])
def test_the_exact_optimum_at_a_constant_rate_is_found_and_dalys_is_near(save_s):
    mtbf = 10800.0
    exact = exponential_interval_s(mtbf, save_s)
    found, kept = best_interval(Weibull(mtbf), save_s=save_s, restart_s=120.0)
    assert found == pytest.approx(exact, rel=2e-3)
    assert renewal_goodput(Weibull(mtbf), interval_s=exact, save_s=save_s, restart_s=120.0) <= (
        kept * (1 + 1e-6)
    )
    assert daly_interval_s(mtbf, save_s) == pytest.approx(exact, rel=0.01 if save_s < 1000 else 0.1)
    assert young_interval_s(mtbf, 1.0) == pytest.approx(np.sqrt(2 * mtbf))


def test_the_link_flaps_of_fire_flyer_lose_less_than_a_percent_with_saves_every_5_minutes():
    record = read_failures(FLAPS, count="flaps")
    assert len(record.times_s) == 213 and record.span_s == 348 * 86400
    law = fit_weibull(record.gaps_s, [record.quiet_s])
    assert 0.3 < law.shape < 0.9, "flaps come in bursts"
    # Each flap stops one job of the whole cluster. States of 13B parameters go out at 10 GiB/s
    # from each of 64 nodes; five minutes until work goes on.
    save_s = 12 * 13e9 / (64 * 10 * 2**30)
    for process in (law, RecordedGaps(record.gaps_s)):
        costs = {"save_s": save_s, "restart_s": 300.0}
        kept = renewal_goodput(process, interval_s=300.0, **costs)
        assert kept > 0.99
        most = best_interval(process, **costs)[1]
        daly_s = daly_interval_s(process.mean_s, save_s)
        assert renewal_goodput(process, interval_s=daly_s, **costs) > most - 1e-3
    # Gaps out of a table of days are lumps: the optimum of the law is compared, not theirs.
    assert best_interval(law, **costs)[0] == pytest.approx(
        daly_interval_s(law.mean_s, save_s), rel=0.2
    )


def test_a_weibull_law_is_found_again_with_gaps_cut_off():
    law = Weibull(500.0, 0.7)
    gaps = law.gaps_s(np.random.default_rng(5), (4000,))
    seen, unseen = gaps[gaps < 1500], np.full((gaps >= 1500).sum(), 1500.0)
    found = fit_weibull(seen, unseen)
    assert found.shape == pytest.approx(0.7, rel=0.04)
    assert found.mean_s == pytest.approx(500.0, rel=0.08)
    for gaps_s in ([], [5.0], [5.0, 5.0], [5.0, -1.0], [5.0, np.nan]):
        with pytest.raises(FitError):
            fit_weibull(gaps_s)


def write(path, text):
    path.write_text(text)
    return path


def test_records_are_read_in_three_forms(tmp_path):
    times = read_failures(write(tmp_path / "a.csv", "time_s,count\n10,1\n40,2\n100,0\n"))
    assert list(times.times_s) == [10.0, 40.0, 40.0] and list(times.gaps_s) == [10.0, 30.0]
    days = read_failures(write(tmp_path / "b.csv", "date,count\n2024-03-30,1\n2024-04-01,2\n"))
    assert list(days.times_s / 86400) == [0.5, 2.25, 2.75] and days.quiet_s == 0.25 * 86400
    drops = read_failures(write(tmp_path / "c.csv", "start_s,instances\n5,4\n9,3\n20,4\n30,2\n"))
    assert list(drops.times_s) == [4.0, 25.0] and drops.span_s == 25.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "columns are none"),
        ("a,b\n1,2\n", "columns are a, b"),
        ("time_s\nx\n", "row 2: time_s is 'x'"),
        ("time_s\n-1\n", "must be 0 or more"),
        ("date\nyesterday\n", "date is 'yesterday'"),
        ("time_s,count\n1,1e18\n", "more than"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path, text, words):
    with pytest.raises(DataError, match=words):
        read_failures(write(tmp_path / "wrong.csv", text))
    with pytest.raises(DataError, match=r"missing\.csv"):
        read_failures(tmp_path / "missing.csv")


def test_impossible_laws_and_jobs_are_refused():
    with pytest.raises(ConfigError, match=r"mean_s.*\n.*shape"):
        Weibull(-1.0, 40.0)
    with pytest.raises(ConfigError):
        RecordedGaps(np.array([]))
    with pytest.raises(ConfigError):
        run_job([], work_s=0.0, interval_s=1.0, levels=())
    with pytest.raises(ConfigError, match="hard_fraction"):
        MemoryAndStorage(
            memory_save_s=1, memory_restart_s=1, save_s=1, restart_s=1, hard_fraction=2
        )
