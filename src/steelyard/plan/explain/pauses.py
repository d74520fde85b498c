"""Steps that last longer than usual now and then: how much they cost, and whether they recur."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Pauses", "find_pauses"]

Array = NDArray[np.float64]

_OUT_OF_LINE = 6.0
"""Standard deviations above the median from which a step is a pause."""
_LEAST_EXCESS = 0.10
_LEAST_COUNT = 3
_REGULAR = 0.8
"""Share of the pauses that lie on a period, for it to be one."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Steps of unusual length.

    Attributes:
        count: how many.
        lost_s: seconds that they cost per step of the log, on average.
        period: steps from one to the next; 0 where they come irregularly.
    """

    count: int
    lost_s: float
    period: int


def find_pauses(steps: NDArray[np.int64], step_s: Array) -> Pauses:
    """Find steps that last much longer than the usual one.

    Args:
        steps: [S] numbers of the steps.
        step_s: [S] seconds of each.

    Returns:
        Steps beyond six robust standard deviations and a tenth of the median; all zeros where there
        are fewer than three.
    """
    usual = float(np.median(step_s))
    spread = 1.4826 * float(np.median(np.abs(step_s - usual)))
    found = step_s > usual + max(_OUT_OF_LINE * spread, _LEAST_EXCESS * usual)
    if found.sum() < _LEAST_COUNT:
        return Pauses(0, 0.0, 0)
    lost_s = float((step_s[found] - usual).sum() / len(step_s))
    return Pauses(int(found.sum()), lost_s, _period(steps[found], int(steps[-1] - steps[0]) + 1))


def _period(at: NDArray[np.int64], span: int) -> int:
    """Return the period on which most pauses lie and which has few places without one, else 0."""
    for period in sorted({int(gap) for gap in np.diff(at)}, reverse=True):
        phase = np.bincount(at % period).argmax() if period > 1 else 0
        on = int((at % period == phase).sum())
        # Many periods fit pauses that lie anywhere: the places in between must be taken too.
        if on >= max(_LEAST_COUNT, _REGULAR * len(at)) and on >= _REGULAR * (span // period):
            return period
    return 0
