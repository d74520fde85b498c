"""Spreads of the forecasts' errors, fitted on half of the published runs and of the sweep."""

from collections import defaultdict

import numpy as np
from benchmarks.plan._layout_sweep import sweep_groups
from benchmarks.plan._published_runs import PublishedRun
from numpy.typing import NDArray

from steelyard.plan.beliefs import Beliefs, fit_beliefs

__all__ = ["fit_published", "sweep_coverage"]

Array = NDArray[np.float64]

_Z80 = 1.2815515594


def fit_published(runs: list[PublishedRun], factors: dict[str, float]) -> Beliefs:
    """Fit spreads of the parts of a step.

    Args:
        runs: published runs; those that may not be fitted on are left out.
        factors: factor on the forecast throughput of each chip.

    Returns:
        Spreads by maximum likelihood, scaled so that 80 % of the fitted errors lie within 80 %
        intervals: a few runs are so far off that normal errors alone would make all of them wide.
    """
    rows: dict[tuple[str, str, str], list[tuple[Array, float]]] = defaultdict(list)
    for item in runs:
        if item.is_fitted:
            error = float(np.log(item.forecast * factors[item.chip] / item.published))
            rows[item.source, item.chip, item.model].append((item.shares, error))
    groups = [
        (np.stack([shares for shares, _ in found]), np.array([error for _, error in found]))
        for found in rows.values()
    ]
    sweep = [group for group in sweep_groups() if group.is_fitted]
    factor = _sweep_factor()
    groups += [(group.shares, group.errors - factor) for group in sweep]
    found = fit_beliefs(groups)
    scaled = [np.abs(errors) / found.doubt(shares).spread for shares, errors in groups]
    scale = float(np.quantile(np.concatenate(scaled), 0.8)) / _Z80
    return Beliefs(parts=tuple(scale * part for part in found.parts), own=scale * found.own)


def _sweep_factor() -> float:
    """Return the logarithm of the factor of the sweep's machine, from the fitted groups."""
    fitted = [group.errors for group in sweep_groups() if group.is_fitted]
    return float(np.median(np.concatenate(fitted)))


def sweep_coverage(beliefs: Beliefs) -> float:
    """Return the share of the sweep's held-out layouts within 80 % intervals.

    Args:
        beliefs: spreads of the forecasts' errors.

    Returns:
        A fraction, after the factor of the sweep's machine.
    """
    factor = _sweep_factor()
    inside = [
        np.abs(group.errors - factor) <= _Z80 * beliefs.doubt(group.shares).spread
        for group in sweep_groups()
        if not group.is_fitted
    ]
    return float(np.mean(np.concatenate(inside)))
