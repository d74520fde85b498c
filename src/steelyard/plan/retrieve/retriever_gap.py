"""What students lose to their teachers, fitted to measured pairs of both."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError
from steelyard.plan.retrieve.retriever import StudentGap

__all__ = ["fit_gap"]

_NORMAL_80 = 1.2816
_FEW = 3
_ASSUMED_FACTOR = 2.0
"""Factor of the interval where too few students tell how far they scatter."""


def fit_gap(
    columns: Mapping[str, NDArray[np.float64]], teacher: NDArray[np.float64]
) -> StudentGap | None:
    """Fit the gap of students by the ratio of sizes.

    Args:
        columns: "parameters" and "entropy" of all towers [R].
        teacher: parameters of what each was distilled from [R]; not a number for teachers.

    Returns:
        The gap; None without a student. One student gives a constant.

    Raises:
        DataError: a student's teacher is not among the towers.
    """
    sizes, nats = columns["parameters"], columns["entropy"]
    students = np.flatnonzero(np.isfinite(teacher))
    if not len(students):
        return None
    ratios, gaps = [], []
    for row in students.tolist():
        own = np.flatnonzero(~np.isfinite(teacher) & (sizes == teacher[row]))
        if not len(own):
            raise DataError(
                f"row {row}: no tower of {teacher[row]:,.0f} parameters was a teacher",
                hint="give the row of the teacher too",
            )
        ratios.append(sizes[own[0]] / sizes[row])
        # A student that lost nothing has no logarithm.
        gaps.append(max(float(nats[row] - nats[own].mean()), 1e-4))
    logs = np.log(ratios), np.log(gaps)
    if len(students) < _FEW or len(np.unique(ratios)) < 2:
        return StudentGap(scale=float(np.exp(logs[1].mean())), exponent=0.0, factor=_ASSUMED_FACTOR)
    slope, base = np.polyfit(*logs, 1)
    slope = max(float(slope), 0.0)
    base = float((logs[1] - slope * logs[0]).mean())
    spread = float(np.std(logs[1] - base - slope * logs[0], ddof=2))
    return StudentGap(
        scale=float(np.exp(base)), exponent=slope, factor=float(np.exp(_NORMAL_80 * spread))
    )
