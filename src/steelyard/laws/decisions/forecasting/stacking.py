"""Weights of entrants by how well they foresaw, and what their mean was wrong by."""

from dataclasses import dataclass

import numpy as np

from steelyard.laws.decisions.forecasting.rolling import Rolling
from steelyard.laws.fitting.terms import Array

__all__ = ["Stacked", "stack"]

_POWER = 1.5
"""Weights are this power of the inverse error. Higher ones follow the luck of few cuts, lower ones
keep forms that are known to be wrong."""
_LEAST_ERROR = 1e-3
"""Log error below which entrants count as equally good."""
_AGE = 1.0
"""Each earlier cut counts a factor of e less: how a form did at the largest runs says most."""
_WORST = 1.0
"""Log error of a fit that ran away, or of one that could not be made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stacked:
    """The weighted mean of the entrants and its record on the table's own larger runs.

    Attributes:
        weights: weight of each entrant in the forecast, [F], sum 1.
        entrant_errors: mean absolute log error of each beyond the cuts, recent ones first, [F].
        errors: errors of the mean beyond each cut with weights from earlier cuts alone, [J].
        reaches: how many factors of e beyond the cut they lie, [J].
        recency: weights of these errors, [J].
    """

    weights: Array
    entrant_errors: Array
    errors: Array
    reaches: Array
    recency: Array


def stack(rolling: Rolling) -> Stacked:
    """Weigh the entrants.

    Args:
        rolling: their fits below rising cuts.

    Returns:
        Weights by the errors on larger runs, and the errors that this way of weighing made at each
        cut, when it knew the runs below that cut only.
    """
    last = len(rolling.cuts) - 1
    weights, entrant_errors = _weights(rolling, last)
    errors, reaches, recency = [], [], []
    for cut in range(last):
        beyond = rolling.beyond(cut)
        if not (beyond.any() and np.isfinite(rolling.log_fitted[cut, :-1]).any()):
            continue
        own, _ = _weights(rolling, cut)
        said = np.nan_to_num(rolling.errors[cut][:, beyond])
        errors.append(own @ said)
        reaches.append(np.log(rolling.size[beyond] / rolling.cuts[cut]))
        recency.append(np.full(said.shape[1], np.exp(-_AGE * (last - 1 - cut)) / said.shape[1]))
    none = [np.zeros(0)]
    return Stacked(
        weights=weights,
        entrant_errors=entrant_errors,
        errors=np.concatenate(errors or none),
        reaches=np.concatenate(reaches or none),
        recency=np.concatenate(recency or none),
    )


def _weights(rolling: Rolling, cut: int) -> tuple[Array, Array]:
    """Weigh the fits of a cut by the errors of earlier cuts on the runs it has seen, [F] each."""
    seen = ~rolling.beyond(cut)
    total = np.zeros(len(rolling.entrants))
    share = 0.0
    for earlier in range(cut):
        rows = rolling.beyond(earlier) & seen
        if rows.any():
            size = np.abs(rolling.errors[earlier][:, rows])
            worst = np.where(np.isfinite(size), np.minimum(size, _WORST), _WORST)
            recent = np.exp(-_AGE * (cut - 1 - earlier))
            total += recent * worst.mean(axis=1)
            share += recent
    errors = total / share if share else np.zeros_like(total)
    fitted = np.isfinite(rolling.log_fitted[cut]).all(axis=1)
    weights = np.where(fitted, (errors + _LEAST_ERROR) ** -_POWER, 0.0)
    return weights / weights.sum(), errors
