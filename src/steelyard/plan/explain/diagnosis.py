"""Which term of a running job departs: its causes told from those who merely wait for them.

A slow rank lengthens the waits of all others, and so does a slow link of one stage. So the step is
simulated with the work as it was measured, rank by rank: waits that follow from it are effects, and
what remains is the waits' own. What a cause costs is how much shorter the simulated step is without
it. Ranks stand beside one another as in the heat map of arXiv 2402.15627, section 5.2.
"""

from dataclasses import dataclass

from steelyard.plan.advice import PUBLISHED_BELIEFS
from steelyard.plan.beliefs import Beliefs
from steelyard.plan.explain.case import Case
from steelyard.plan.explain.causes import Finding, causes_of
from steelyard.plan.explain.log import StepLog
from steelyard.plan.explain.terms import TERMS
from steelyard.sim.step.training import TrainingStep

__all__ = ["JobDiagnosis", "diagnose"]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDiagnosis:
    """What a log shows.

    Attributes:
        findings: causes by what they cost, the dearest first; empty where nothing departs.
        step_s: usual seconds of a step, the median.
        expected_s: seconds that were forecast, or those of the log it is compared with.
        low_s: low end of their 80 % interval.
        high_s: high end.
        measured: usual seconds of each term, the mean over all ranks, those that were logged.
        expected: the same as expected.
        notes: what the log lacks, or looks odd.
    """

    findings: tuple[Finding, ...]
    step_s: float
    expected_s: float
    low_s: float
    high_s: float
    measured: dict[str, float]
    expected: dict[str, float]
    notes: tuple[str, ...]


def diagnose(
    log: StepLog,
    step: TrainingStep,
    *,
    baseline: StepLog | None = None,
    beliefs: Beliefs = PUBLISHED_BELIEFS,
) -> JobDiagnosis:
    """Say which terms of a job's step depart from what is expected.

    Args:
        log: the job's measured steps.
        step: model, machine and layout that it runs.
        baseline: an earlier log of the same job, to compare with in place of the forecast.
        beliefs: spreads of the forecast's errors; a term departs beyond their 80 % interval.

    Returns:
        The causes, by what they cost.

    Raises:
        DataError: the log's ranks are not the layout's.
    """
    case = Case(log, step, baseline, beliefs)
    return JobDiagnosis(
        findings=tuple(causes_of(case)),
        step_s=case.seen.step_s,
        expected_s=case.expected.step_s,
        low_s=case.expected.step_s**2 / case.high_s,
        high_s=case.high_s,
        measured=case.seen.means(),
        expected=case.expected.means(),
        notes=(*log.notes, *_lacks(log)),
    )


def _lacks(log: StepLog) -> list[str]:
    """Say what more the log could hold."""
    missing = [name for name in TERMS if name not in log.terms]
    notes = [f"terms that are not in the log: {', '.join(missing)}"] if missing else []
    if not len(log.ranks):
        notes.append("the log has no column rank, so that a slow rank cannot be told from the rest")
    return notes
