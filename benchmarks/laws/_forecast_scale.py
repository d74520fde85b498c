"""How wide intervals must be, learned from the errors on many tables."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from benchmarks.laws._forecast_cases import Answer
from scipy.optimize import minimize

from steelyard.laws.decisions.forecasting.scale import WidthScale
from steelyard.laws.fitting.terms import Array

__all__ = ["learn_scale", "table_of"]

_LEVEL = 0.8
_INSIDE = 0.85
"""Share of the errors that the learned scale holds at that level: a family that was not learned
from errs more than those that were."""
_NO_REACH = 0.7


def table_of(answer: Answer) -> tuple[str, str]:
    """Name the family and table of an answer; the ladders of one text are one table."""
    table = answer.case.table
    name = table.name if table.targets.all() else table.name.rsplit(" ", 1)[0]
    return table.family, name


def learn_scale(answers: Sequence[Answer]) -> WidthScale:
    """Learn the scale of intervals.

    Laplace errors of scale widening * doubt^p * reach^q are made most likely, then the widening is
    set so that 85 % of the weight lies inside the 80 % intervals. Each table counts once, and
    families of many tables by the root of their number.

    Args:
        answers: errors to learn from; leave out the family that is scored.

    Returns:
        The scale.
    """
    weights = _weights(answers)
    size = np.abs(np.concatenate([item.error for item in answers]))
    log_doubt = np.log(np.concatenate([item.doubt for item in answers]))
    log_reach = np.log(np.concatenate([item.reach for item in answers]).clip(_NO_REACH))

    def unlikely(given: Array) -> float:
        log_scale = given[0] + given[1] * log_doubt + given[2] * log_reach
        return float(weights @ (log_scale + size / np.exp(log_scale)))

    base, by_doubt, by_reach = minimize(unlikely, [0.0, 1.0, 0.0], method="Nelder-Mead").x
    relative = size / np.exp(base + by_doubt * log_doubt + by_reach * log_reach)
    order = np.argsort(relative)
    inside = np.searchsorted(np.cumsum(weights[order]), _INSIDE * weights.sum())
    factor = float(relative[order][inside]) / -np.log1p(-_LEVEL)
    return WidthScale(float(np.exp(base)) * factor, float(by_doubt), float(by_reach))


def _weights(answers: Sequence[Answer]) -> Array:
    """Return the weight of every error: a table's sum to 1 over the root of its family's tables."""
    cuts = Counter(table_of(item) for item in answers)
    tables = Counter(family for family, _ in cuts)
    return np.concatenate(
        [
            np.full(
                len(item.error),
                1 / (len(item.error) * cuts[table_of(item)] * tables[table_of(item)[0]] ** 0.5),
            )
            for item in answers
        ]
    )
