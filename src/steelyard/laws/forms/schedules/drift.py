"""How wrong a law of schedules is about schedules and sizes it was not fitted to.

Two schedules that had the same rates up to a step have the same loss there, so nothing is new about
the second. Where they part, the error grows with what the law says the difference is worth: the
drift is the error as a share of the predicted change from the nearest fitted curve.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.schedules.schedule_rates import LearningRates

__all__ = ["ASSUMED_SHARE", "Known", "pooled_drift"]

ASSUMED_SHARE = 0.15
"""Error as a share of the predicted change where curves are too few to leave any out."""
_LEAST = 0.3
"""A curve that was predicted by luck promises no better than this part of the assumed drift."""
_GRID = 160
_Predict = Callable[[LearningRates, Array], Array]


@dataclass(frozen=True, eq=False)
class Known:
    """The curves a law was fitted to, and the law.

    Attributes:
        predict: log losses of a schedule at some steps, [n].
        rates: schedules of the K curves.
        last: last measured step of each, [K].
        first: first measured step of all.
    """

    predict: _Predict
    rates: Sequence[LearningRates]
    last: Sequence[float]
    first: float

    def novelty(self, rates: LearningRates, steps: Array) -> Array:
        """Return how much of a predicted log loss no fitted curve went through.

        Args:
            rates: learning rates of a run.
            steps: steps within it, [n].

        Returns:
            Largest distance up to each step between this log loss and that of the nearest fitted
            curve at the same step, or at its end where it is shorter; 0 while a fitted curve had
            the same rates, [n].
        """
        # The largest distance so far, on a grid that does not depend on the steps asked for: two
        # curves that cross have no less in common before than behind the crossing.
        last = float(steps.max())
        grid = np.unique(
            np.concatenate([np.linspace(min(self.first, last), last, _GRID).round(), steps])
        )
        own = self.predict(rates, grid)
        apart = [
            np.abs(own - self.predict(known, np.minimum(grid, end)))
            for known, end in zip(self.rates, self.last, strict=True)
        ]
        furthest = np.maximum.accumulate(np.min(apart, axis=0))
        return furthest[np.searchsorted(grid, steps)]


def pooled_drift(
    errors: Sequence[Array], novelties: Sequence[Array], noise: float, assumed: float
) -> float:
    """Pool the errors of curves that were left out of the fit.

    Args:
        errors: log errors of each curve under the law of the others, [n] each.
        novelties: `Known.novelty` of the same points.
        noise: standard deviation of one point.
        assumed: drift without any curve left out.

    Returns:
        Geometric mean over the curves of error per novelty, the assumed one counting like one more
        curve: a schedule of a kind that no other has is one of few and errs several times more
        than the rest.
    """
    shares = [assumed]
    for error, novelty in zip(errors, novelties, strict=True):
        excess = max(float(np.mean(error**2)) - noise**2, 0.0)
        change = float(np.mean(novelty**2))
        # A curve that is nowhere new, such as a repeat of another, tells nothing.
        if change > 0:
            shares.append(max(float(np.sqrt(excess / change)), _LEAST * assumed))
    return float(np.exp(np.mean(np.log(shares))))
