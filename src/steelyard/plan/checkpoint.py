"""How often a job should save: the best interval, what it keeps, and what would keep more."""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from steelyard.errors import require
from steelyard.quantity import Forecast
from steelyard.sim.faults import (
    FailureProcess,
    MemoryAndStorage,
    RecordedGaps,
    Weibull,
    best_interval,
    best_two_levels,
    daly_interval_s,
    exponential_interval_s,
    fit_weibull,
    renewal_goodput,
    wall_times_s,
    young_interval_s,
)
from steelyard.sim.faults.records import FailureRecord

__all__ = ["CheckpointPlan", "FaultyJob", "IntervalChoice", "TwoLevelChoice", "plan_checkpoint"]

_RUNS = 1600
_PROCESSES = 16
_MOST_FAILURES = 500
"""Failures per simulated run; longer runs are scaled from shorter ones."""
_LEAST_GOODPUT = 0.5
"""A job that keeps less than half of its time is called infeasible."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultyJob:
    """A job that fails, and what its saves cost.

    Attributes:
        failures: law of the times between failures of the whole job.
        save_s: seconds that a save holds the job up.
        restart_s: seconds from a failure until work goes on.
        work_s: seconds of work of the whole job.
        num_observed: failures that the law was learnt from; 0 where it is taken as given.
        memory: frequent saves to memory beside those to storage, None for none.
    """

    failures: Weibull
    save_s: float
    restart_s: float
    work_s: float
    num_observed: int = 0
    memory: MemoryAndStorage | None = None

    def __post_init__(self) -> None:
        require(
            self,
            save_s=(0 < self.save_s < math.inf, "finite seconds above 0"),
            restart_s=(0 <= self.restart_s < math.inf, "finite seconds of 0 or more"),
            work_s=(0 < self.work_s < math.inf, "finite seconds above 0"),
        )

    @classmethod
    def of_record(
        cls, record: FailureRecord, *, scale: float = 1.0, **costs: float | MemoryAndStorage | None
    ) -> "FaultyJob":
        """Learn the law of failures from a record.

        Args:
            record: failures of some machines.
            scale: accelerators that were watched over accelerators of the job: failures come that
                many times further apart.
            **costs: the other fields of the job.

        Returns:
            The job, with a Weibull law fitted to times between failures and the quiet time after
            the last one.

        Raises:
            FitError: fewer than two different times between failures.
        """
        gaps = record.gaps_s * scale
        law = fit_weibull(gaps, np.array([record.quiet_s * scale]))
        return cls(failures=law, num_observed=len(gaps), **costs)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True)
class IntervalChoice:
    """A way to choose the interval.

    Attributes:
        name: name of the way.
        interval_s: work between saves.
        goodput: share of time that it keeps under the job's law of failures.
    """

    name: str
    interval_s: float
    goodput: float


@dataclass(frozen=True, slots=True)
class TwoLevelChoice:
    """Saves to memory with every so many to storage.

    Attributes:
        interval_s: work between saves to memory.
        every: saves to memory per save to storage.
        goodput: share of time that is kept, with failures at a constant rate.
    """

    interval_s: float
    every: int
    goodput: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPlan:
    """How often to save, and what comes of it.

    Attributes:
        interval_s: work between saves that keeps most.
        flat_s: shortest and longest interval that keep within 0.1 % of as much.
        goodput: long-run share of time that is kept; its interval is that of one run of the job.
        choices: this interval beside those of formulas.
        shares: where all time goes: kept, saving, lost (done again, and broken saves), restarting.
        gains: share of time gained, after choosing the interval anew, by what would be better.
        two_levels: plan with saves to memory as well; None where none were asked for.
        lacks: what makes the job infeasible, and the nearest change that helps; empty if nothing.
    """

    interval_s: float
    flat_s: tuple[float, float]
    goodput: Forecast
    choices: tuple[IntervalChoice, ...]
    shares: dict[str, float]
    gains: dict[str, float] = field(default_factory=dict)
    two_levels: TwoLevelChoice | None = None
    lacks: str = ""


def plan_checkpoint(job: FaultyJob, *, seed: int = 0) -> CheckpointPlan:
    """Choose how often a job saves.

    Args:
        job: its failures and costs.
        seed: seed of the simulated runs that give the interval.

    Returns:
        The plan.
    """
    law, mtbf_s = job.failures, job.failures.mean_s
    best_s, kept = _best(job)
    ways = {
        "best for these failures": best_s,
        "best at a constant rate": exponential_interval_s(mtbf_s, job.save_s),
        "Daly 2006": daly_interval_s(mtbf_s, job.save_s),
        "Young 1974": young_interval_s(mtbf_s, job.save_s),
    }
    low, high = _interval(job, best_s, kept, np.random.default_rng(seed))
    memory = best_two_levels(mtbf_s, job.memory) if job.memory else None
    return CheckpointPlan(
        interval_s=best_s,
        flat_s=_flat_s(job, best_s, kept),
        goodput=Forecast(
            quantity="train.goodput",
            value=kept,
            low=low,
            high=high,
            provenance="fitted" if job.num_observed else "derived",
            source=_source(job),
        ),
        choices=tuple(
            IntervalChoice(name, item, _goodput(job, item)) for name, item in ways.items()
        ),
        shares=_shares(job, best_s, kept),
        gains={
            "saves twice as fast": _best(replace(job, save_s=job.save_s / 2))[1] - kept,
            "restarts twice as fast": _best(replace(job, restart_s=job.restart_s / 2))[1] - kept,
            "half as many failures": _best(replace(job, failures=_scaled(law, 2.0)))[1] - kept,
        },
        two_levels=TwoLevelChoice(*memory) if memory else None,
        lacks=_lacks(job, kept),
    )


def _best(job: FaultyJob) -> tuple[float, float]:
    return best_interval(job.failures, save_s=job.save_s, restart_s=job.restart_s)


def _goodput(job: FaultyJob, interval_s: float, process: FailureProcess | None = None) -> float:
    """Return the long-run share of time that an interval keeps."""
    return renewal_goodput(
        process or job.failures,
        interval_s=interval_s,
        save_s=job.save_s,
        restart_s=job.restart_s,
    )


def _scaled(law: Weibull, factor: float) -> Weibull:
    """Return a law with as many times longer between failures."""
    return Weibull(law.mean_s * factor, law.shape)


def _source(job: FaultyJob) -> str:
    """Say what the goodput rests on."""
    law = job.failures
    known = f"fitted to {job.num_observed} times" if job.num_observed else "as given"
    return f"renewal of Weibull failures of shape {law.shape:.2f}, {known} (Daly 2006, equation 20)"


def _flat_s(job: FaultyJob, best_s: float, kept: float) -> tuple[float, float]:
    """Find the intervals on both sides of the best one that keep almost as much."""
    # The goodput is flat around its maximum: steps of 5 % are close enough.
    factors = np.exp(np.linspace(0.0, 3.0, 61))

    def reach(side: int) -> float:
        last_s = best_s
        for factor in factors:
            if _goodput(job, best_s * factor**side) < 0.999 * kept:
                break
            last_s = best_s * factor**side
        return float(last_s)

    return reach(-1), reach(1)


def _shares(job: FaultyJob, interval_s: float, kept: float) -> dict[str, float]:
    """Say where all time goes."""
    # A restart lasts until its end or the next failure: the mean of the lesser is an integral.
    times = np.linspace(0.0, job.restart_s, 513)
    restarting = float(np.trapezoid(job.failures.survival(times), times)) / job.failures.mean_s
    saving = kept * job.save_s / interval_s
    return {
        "kept": kept,
        "saving": saving,
        "lost": max(1.0 - kept - saving - restarting, 0.0),
        "restarting": restarting,
    }


def _interval(
    job: FaultyJob, interval_s: float, kept: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the 80 % interval of one run's goodput: its luck, and how well failures are known."""
    law = job.failures
    laws = [law]
    if job.num_observed:
        # The mean of n times between failures is off by their spread over the root of n.
        spread = RecordedGaps(law.gaps_s(rng, (4096,))).recorded_s.std() / law.mean_s
        weight = job.num_observed / spread**2
        laws = [_scaled(law, item) for item in rng.gamma(weight, 1 / weight, _PROCESSES)]
    found = []
    for drawn in laws:
        mean = _goodput(job, interval_s, drawn)
        part_s = min(job.work_s, _MOST_FAILURES * drawn.mean_s * max(mean, 1e-3))
        wall_s, _ = wall_times_s(
            drawn,
            rng,
            work_s=part_s,
            interval_s=interval_s,
            save_s=job.save_s,
            restart_s=job.restart_s,
            num_runs=_RUNS // len(laws),
        )
        # Luck averages out with the root of the length.
        found.append(mean + (part_s / wall_s - mean) * math.sqrt(part_s / job.work_s))
    low, high = np.quantile(np.concatenate(found), (0.1, 0.9))
    return max(min(float(low), kept), 0.0), min(max(float(high), kept), 1.0)


def _lacks(job: FaultyJob, kept: float) -> str:
    """Say what keeps a job from moving on, empty where it keeps enough."""
    if kept >= _LEAST_GOODPUT:
        return ""
    low, high = 1.0, 2.0
    while _best(replace(job, failures=_scaled(job.failures, high)))[1] < _LEAST_GOODPUT:
        low, high = high, 2 * high
    for _ in range(12):
        middle = (low + high) / 2
        enough = _best(replace(job, failures=_scaled(job.failures, middle)))[1] >= _LEAST_GOODPUT
        low, high = (low, middle) if enough else (middle, high)
    return (
        f"only {kept:.1%} of the time is kept; half of it would be with {high:.1f} times fewer "
        f"failures, or with saves and restarts {high:.1f} times as fast"
    )
