"""A job that fails, restarts and saves: event by event, and many jobs at once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from steelyard.errors import ConfigError
from steelyard.sim.faults.processes import Array, FailureProcess
from steelyard.sim.loop import EventLoop

__all__ = ["CheckpointLevel", "JobOutcome", "run_job", "wall_times_s"]


@dataclass(frozen=True, slots=True)
class CheckpointLevel:
    """One place that checkpoints are written to.

    Attributes:
        every: saves of the first level per save of this one.
        save_s: seconds that a save blocks, added to those of the levels below.
        restart_s: seconds from a failure until work goes on from here.
    """

    every: int
    save_s: float
    restart_s: float


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of a job.

    Attributes:
        wall_s: seconds from its begin to its end.
        work_s: seconds of work that it needed.
        num_failures: failures it saw.
        lost_s: seconds of work that was done again.
        saving_s: seconds in saves, broken ones included.
        restarting_s: seconds in restarts, broken ones included.
    """

    wall_s: float
    work_s: float
    num_failures: int
    lost_s: float
    saving_s: float
    restarting_s: float

    @property
    def goodput(self) -> float:
        """Share of the wall time that was kept work."""
        return self.work_s / self.wall_s


def run_job(
    failures: Iterable[tuple[float, int]],
    *,
    work_s: float,
    interval_s: float,
    levels: tuple[CheckpointLevel, ...],
) -> JobOutcome:
    """Run a job on virtual time.

    Args:
        failures: seconds from one failure to the next, and the level that it leaves usable: 0 for
            any, 1 for the second and above, and so on; when they end, none come any more.
        work_s: seconds of work; the job ends with its last second, which is not saved.
        interval_s: work between saves of the first level.
        levels: where it saves, the most frequent first and the safest last.

    Returns:
        Where its time went.

    Raises:
        ConfigError: no work, no interval, or no level.
    """
    if work_s <= 0 or interval_s <= 0 or not levels:
        raise ConfigError("work_s and interval_s must be above 0, and levels at least one")
    job = _JobState(iter(failures), work_s, interval_s, levels)
    job.await_failure()
    job.work()
    while not job.is_done and job.loop.step():
        pass
    return JobOutcome(
        job.loop.now_s, work_s, job.num_failures, job.lost_s, job.saving_s, job.restarting_s
    )


class _JobState:
    """State of a job: work done, work saved at each level, and what it does now."""

    def __init__(
        self,
        failures: Iterator[tuple[float, int]],
        work_s: float,
        interval_s: float,
        levels: tuple[CheckpointLevel, ...],
    ) -> None:
        self.loop = EventLoop()
        self.failures = failures
        self.work_s, self.interval_s, self.levels = work_s, interval_s, levels
        self.segments = 0
        self.saved = [0] * len(levels)  # segments that each level can bring back
        self.is_done = False
        self.num_failures = 0
        self.lost_s = self.saving_s = self.restarting_s = 0.0
        self.phase, self.since_s, self.turn = "work", 0.0, 0
        self.level = 0

    def await_failure(self) -> None:
        """Schedule the next failure."""
        gap = next(self.failures, None)
        if gap is not None:
            self.loop.after(gap[0], lambda: self.fail(gap[1]), priority=-1)

    def enter(self, phase: str, lasts_s: float, then: str) -> None:
        """Begin a phase, which a failure may cut short."""
        self.phase, self.since_s = phase, self.loop.now_s
        self.turn += 1
        turn = self.turn
        self.loop.after(lasts_s, lambda: getattr(self, then)() if turn == self.turn else None)

    def work(self) -> None:
        """Work up to the next save, or to the end."""
        left_s = self.work_s - self.segments * self.interval_s
        is_last = left_s <= self.interval_s
        self.enter("work", min(left_s, self.interval_s), "end" if is_last else "save")

    def end(self) -> None:
        self.is_done = True

    def due(self) -> list[int]:
        """List the levels that are saved to after the segment under way."""
        number = self.segments + 1
        return [place for place, item in enumerate(self.levels) if not number % item.every]

    def save(self) -> None:
        """Save what has been worked."""
        self.enter("save", sum(self.levels[place].save_s for place in self.due()), "go_on")

    def go_on(self) -> None:
        """Count the segment as saved, and work on."""
        self.saving_s += self.loop.now_s - self.since_s
        due = self.due()
        self.segments += 1
        for place in due:
            self.saved[place] = self.segments
        self.work()

    def fail(self, level: int) -> None:
        """Lose what no usable level holds, and restart from the newest that one does."""
        self.num_failures += 1
        spent_s = self.loop.now_s - self.since_s
        # A restart that is hit again must not forget that the lower levels are gone.
        level = max(level, self.level) if self.phase == "restart" else level
        if self.phase == "work":
            self.lost_s += spent_s
        elif self.phase == "save":
            self.lost_s += self.interval_s
            self.saving_s += spent_s
        else:
            self.restarting_s += spent_s
        kept = max(self.saved[level:])
        self.lost_s += (self.segments - kept) * self.interval_s
        self.segments = kept
        # Levels below are filled again from the one that was read.
        self.saved = [
            min(item, kept) if place >= level else kept for place, item in enumerate(self.saved)
        ]
        self.level = level
        self.await_failure()
        self.enter("restart", self.levels[level].restart_s, "recover")

    def recover(self) -> None:
        """Work again after a restart."""
        self.restarting_s += self.loop.now_s - self.since_s
        self.work()


def wall_times_s(
    process: FailureProcess,
    rng: np.random.Generator,
    *,
    work_s: float,
    interval_s: float,
    save_s: float,
    restart_s: float,
    num_runs: int,
) -> tuple[Array, Array]:
    """Simulate many jobs of one checkpoint level at once.

    Args:
        process: times between failures; a job begins right after one.
        rng: source of the draws.
        work_s: seconds of work of each job.
        interval_s: work between saves.
        save_s: seconds that a save blocks.
        restart_s: seconds from a failure until work goes on.
        num_runs: jobs.

    Returns:
        Wall seconds and failures of each job, [runs]; as `run_job` finds with the same gaps. A job
        that has not ended after 1000 times its work is left there, with infinite seconds.
    """
    left_s = np.full(num_runs, work_s)
    wall_s, count = np.zeros(num_runs), np.zeros(num_runs)
    ended = np.zeros(num_runs, dtype=bool)
    delay_s = 0.0  # the first stretch begins without a restart
    while not ended.all():
        gap_s = process.gaps_s(rng, (num_runs,))
        saves = np.ceil(left_s / interval_s - 1e-12) - 1
        needed_s = delay_s + left_s + np.maximum(saves, 0) * save_s
        ends = ~ended & (needed_s <= gap_s)
        fails = ~ended & ~ends
        wall_s += np.where(ends, needed_s, np.where(fails, gap_s, 0.0))
        cycles = np.floor(np.maximum(gap_s - delay_s, 0) / (interval_s + save_s) + 1e-12)
        left_s = np.where(fails, left_s - np.minimum(cycles, saves) * interval_s, left_s)
        count += fails
        lost = ~ended & ~ends & (wall_s > 1000 * work_s)
        wall_s[lost] = np.inf
        ended |= ends | lost
        delay_s = restart_s
    return wall_s, count
