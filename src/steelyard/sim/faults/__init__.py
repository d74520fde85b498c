"""Failures of jobs: when they come, what they cost, and how often to save."""

from steelyard.sim.faults.goodput import (
    MemoryAndStorage,
    best_interval,
    best_two_levels,
    daly_interval_s,
    exponential_interval_s,
    renewal_goodput,
    two_level_goodput,
    young_interval_s,
)
from steelyard.sim.faults.job import CheckpointLevel, JobOutcome, run_job, wall_times_s
from steelyard.sim.faults.processes import FailureProcess, RecordedGaps, Weibull, fit_weibull
from steelyard.sim.faults.records import FailureRecord, read_failures

__all__ = [
    "CheckpointLevel",
    "FailureProcess",
    "FailureRecord",
    "JobOutcome",
    "MemoryAndStorage",
    "RecordedGaps",
    "Weibull",
    "best_interval",
    "best_two_levels",
    "daly_interval_s",
    "exponential_interval_s",
    "fit_weibull",
    "read_failures",
    "renewal_goodput",
    "run_job",
    "two_level_goodput",
    "wall_times_s",
    "young_interval_s",
]
