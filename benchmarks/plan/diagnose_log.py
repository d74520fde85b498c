"""Faults planted in simulated training jobs, and the causes that `plan explain` names.

Healthy jobs differ from their forecast by factors of each part, and from step to step by noise. A
fault lengthens the step by 5 % or more. The rules were made on jobs of other seeds; the jobs here
were drawn once they stood. The rule beside takes the term whose mean grew most.
"""

from collections import Counter
from typing import Literal

import numpy as np
from benchmarks.common import Check
from benchmarks.plan._faulty_jobs import FAULTS, FaultyJob, draw_job

from steelyard.plan.explain import diagnose

PAPER: list[str] = []

_FIRST_SEED = 90_000
_GROWN = {
    "compute_s": "kernels",
    "tensor_s": "tensor traffic",
    "bubble_s": "bubble",
    "data_s": "all-reduce",
    "load_s": "data wait",
    "update_s": "memory traffic",
}
_SEVERITIES = (1.05, 1.15, 1.4, np.inf)


def run(quick: bool) -> list[Check]:
    """Plant each fault in some jobs, and name it with and without an earlier log."""
    count, healthy = (3, 6) if quick else (16, 64)
    told: Counter[str] = Counter()
    by_size: Counter[tuple[int, bool]] = Counter()
    for place, fault in enumerate(FAULTS):
        right: Counter[str] = Counter()
        for number in range(count):
            job = draw_job(fault, _FIRST_SEED + 1000 * place + number)
            answers = _answers(job)
            right.update(answers)
            size = int(np.searchsorted(_SEVERITIES, job.severity, side="right")) - 1
            by_size[size, "before right" in answers] += 1
        print(
            f"{fault:15s} of {count}: {right['before right']} named with an earlier log, "
            f"{right['alone right']} by the forecast alone ({right['alone wrong']} misnamed), "
            f"{right['grown right']} by the term that grew most"
        )
        told.update(right)
    for size in range(len(_SEVERITIES) - 1):
        hit, missed = by_size[size, True], by_size[size, False]
        print(f"steps longer by a factor from {_SEVERITIES[size]}: {hit} of {hit + missed} named")
    alarms: Counter[str] = Counter()
    for number in range(healthy):
        alarms.update(_answers(draw_job("", _FIRST_SEED + 50_000 + number)))
    return _checks(told, alarms, count * len(FAULTS), healthy)


def _answers(job: FaultyJob) -> list[str]:
    """Say which ways named the fault, and which named another one."""
    found = []
    for way, before in (("before", job.before), ("alone", None)):
        named = diagnose(job.log, job.step, baseline=before).findings
        first = named[0] if named else None
        is_right = first is not None and first.cause == job.fault
        if is_right and job.rank >= 0:
            is_right = first.ranks == (job.rank,)  # pyright: ignore[reportOptionalMemberAccess]
        if first is not None:
            found.append(f"{way} {'right' if is_right else 'wrong'}")
    means = {
        name: float(job.log.terms[name].mean() - job.before.terms[name].mean()) for name in _GROWN
    }
    grown = _GROWN[max(means, key=lambda name: means[name])]
    return [*found, f"grown {'right' if grown == job.fault else 'wrong'}"]


def _checks(told: Counter[str], alarms: Counter[str], count: int, healthy: int) -> list[Check]:
    """Hold the shares against their bars."""

    def check(name: str, value: float, bar: float, better: Literal["higher", "lower"]) -> Check:
        return Check(name, value, bar, better)

    named = told["alone right"] + told["alone wrong"]
    over = told["before right"] / max(told["grown right"], 1)
    return [
        check("1 named right with an earlier log", told["before right"] / count, 0.9, "higher"),
        check("1 false alarms with it", alarms["before wrong"] / healthy, 0.1, "lower"),
        check("1 named over the term that grew most", over, 1.2, "higher"),
        check("2 named right by the forecast alone", told["alone right"] / count, 0.9, "higher"),
        check("2 right of those that it names", told["alone right"] / max(named, 1), 0.9, "higher"),
        check("2 false alarms by it", alarms["alone wrong"] / healthy, 0.1, "lower"),
    ]
