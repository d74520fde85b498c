"""How wide an interval is: what the entrants disagree on, and how wrong their mean was before."""

from dataclasses import dataclass

import numpy as np

from steelyard.laws.decisions.forecasting.stacking import Stacked
from steelyard.laws.fitting.terms import Array

__all__ = ["ASSUMED_ERROR", "LEARNED", "WidthScale", "doubt"]

ASSUMED_ERROR = 0.02
"""Root mean square of the log errors on larger runs where a table has none to show."""
_LEAST_DOUBT = 1e-3
_LEAST_REACH = 0.7
"""Runs nearer than a factor of two, or inside, are forecast as if they were that far."""


@dataclass(frozen=True, slots=True)
class WidthScale:
    """Half width in log units = widening * doubt^by_doubt * reach^by_reach * (-ln(1 - level)).

    The last factor is the quantile of Laplace errors, as heavy-tailed as those of forecasts are.

    Attributes:
        widening: the factor.
        by_doubt: exponent of the doubt.
        by_reach: exponent of the reach in factors of e.
    """

    widening: float
    by_doubt: float
    by_reach: float

    def half_width(self, doubt: Array, reach: Array, level: float) -> Array:
        """Return the half width of an interval.

        Args:
            doubt: see `doubt`, [m].
            reach: factors of e from the largest run to the target, [m].
            level: probability inside, 0..1.

        Returns:
            Half widths in log units, [m].
        """
        far = np.maximum(reach, _LEAST_REACH) ** self.by_reach
        return self.widening * doubt**self.by_doubt * far * -np.log1p(-level)


LEARNED = WidthScale(0.343, 0.867, 0.689)
"""Learned on published tables of runs, each table once, families of many tables by the root of
their number: benchmark `forecast_tournament`, which learns it anew without the family it scores."""


def doubt(stacked: Stacked, said: Array, reach: Array) -> tuple[Array, Array]:
    """Join disagreement and record into one number per target and side.

    Args:
        stacked: weights, and errors on the table's own larger runs.
        said: log predictions of the entrants, [F, m].
        reach: factors of e from the largest run to the targets, [m].

    Returns:
        Doubt about the value being lower and higher, log units, [m] each. Errors of one sign count
        on the side they warn of.
    """
    weights = stacked.weights[:, None]
    middle = (weights * np.nan_to_num(said)).sum(axis=0)
    apart = (weights * np.nan_to_num(said - middle) ** 2).sum(axis=0)
    past = np.full(len(reach), ASSUMED_ERROR)
    lean = np.zeros(len(reach))
    if len(stacked.errors):
        # Errors made at a reach like the one asked for count most.
        far = np.log((stacked.reaches[:, None] + 0.1) / (reach + 0.1))
        near = stacked.recency[:, None] * np.exp(-0.5 * far**2) + 1e-12
        near = near / near.sum(axis=0)
        past = np.sqrt(stacked.errors**2 @ near)
        lean = stacked.errors @ near
    whole = np.sqrt(apart + past**2)
    lower, higher = (
        np.sqrt(whole**2 + np.maximum(side * lean, 0.0) ** 2) + _LEAST_DOUBT for side in (1, -1)
    )
    return lower, higher
