"""Seconds of each unit of work, fitted to measurements of searches or builds."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["fit_rates"]

_FEWEST_RELATIVE = 0.05
"""Least half-width: two runs of one search are no closer."""
_LEVEL = 0.8
_REFITS, _HUBER = 8, 2.0


def fit_rates(
    work: Sequence[dict[str, float]], took_s: Sequence[float], groups: Sequence[str]
) -> tuple[dict[str, float], float]:
    """Fit seconds per unit, with the smallest relative errors; what none needs takes none.

    Args:
        work: units by part of each measurement.
        took_s: seconds of each.
        groups: measurements of one index share a name.

    Returns:
        Seconds per unit, and the half-width of the interval: each index is forecast from the
        others.
    """
    parts = list(work[0])
    units = np.array([[item[part] for part in parts] for item in work])
    seconds = np.asarray(took_s)
    found = _solved(units, seconds)
    names = np.array(groups)
    ratios = []
    for name in dict.fromkeys(groups):
        is_left_out = names == name
        if len(set(groups)) < 3:
            break
        other = _solved(units[~is_left_out], seconds[~is_left_out])
        ratios += (units[is_left_out] @ other / seconds[is_left_out]).tolist()
    apart = np.abs(np.log(np.maximum(ratios, 1e-3))) if ratios else np.array([0.5])
    relative = float(np.expm1(np.quantile(apart, _LEVEL)))
    return dict(zip(parts, found.tolist(), strict=True)), max(relative, _FEWEST_RELATIVE)


def _solved(units: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the seconds per unit; measurements far from the others count less."""
    from scipy.optimize import nnls

    scales = np.maximum(units.max(axis=0), 1e-300)
    rows, weights = units / scales / seconds[:, None], np.ones(len(seconds))
    found = np.zeros(units.shape[1])
    for _ in range(_REFITS):
        found, _ = nnls(rows * weights[:, None], weights)
        apart = np.abs(rows @ found - 1)
        # Huber's weights: squares count within the usual errors, distances beyond them.
        usual = max(_HUBER * float(np.median(apart)), 1e-6)
        weights = np.sqrt(np.minimum(1.0, usual / np.maximum(apart, 1e-12)))
    return found / scales
