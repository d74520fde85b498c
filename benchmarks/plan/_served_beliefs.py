"""Spreads of the forecasts of serving, fitted on half of the published points."""

from collections import defaultdict

import numpy as np
from benchmarks.plan._served_points import ServedPoint
from numpy.typing import NDArray
from scipy.optimize import brentq, linprog

from steelyard.plan.beliefs import Beliefs, fit_beliefs
from steelyard.plan.serving_parts import SERVED_PARTS
from steelyard.quantity import Z80

__all__ = ["SERVED_ON", "beyond_groups", "fit_other_chip", "fit_queue", "fit_served"]

Array = NDArray[np.float64]

SERVED_ON = ("H100", "H200")
"""Accelerators whose points the spreads of parts are fitted on; the others' tell how much wider an
interval has to be there."""
_INSIDE = 0.8


def fit_served(points: list[ServedPoint]) -> Beliefs:
    """Fit the spreads of the parts of the time per token.

    Args:
        points: published points; those that are held out or of other chips are left out.

    Returns:
        Spreads by maximum likelihood, scaled so that 80 % of the fitted errors lie within 80 %
        intervals.
    """
    rows: dict[tuple[str, ...], list[ServedPoint]] = defaultdict(list)
    for item in points:
        if item.is_fitted and item.chip.startswith(SERVED_ON):
            rows[item.group].append(item)
    return _scaled(list(rows.values()))


def beyond_groups(points: list[ServedPoint]) -> list[tuple[ServedPoint, float]]:
    """Return for each point how wide its interval is by the spreads of all other groups.

    Args:
        points: published points; those of other chips are left out.

    Returns:
        Points with half-widths, as a user of another model or engine meets them.
    """
    rows: dict[tuple[str, ...], list[ServedPoint]] = defaultdict(list)
    for item in points:
        if item.chip.startswith(SERVED_ON):
            rows[item.group].append(item)
    found = []
    for name, own in rows.items():
        beliefs = _scaled([rows[other] for other in rows if other != name])
        spread = beliefs.doubt(_columns(own)[0]).spread
        found += [
            (item, float(np.expm1(Z80 * wide))) for item, wide in zip(own, spread, strict=True)
        ]
    return found


def _scaled(rows: list[list[ServedPoint]]) -> Beliefs:
    """Fit spreads to groups, and scale them to hold 80 % of their errors."""
    groups = [_columns(found) for found in rows]
    found = fit_beliefs(groups, SERVED_PARTS)
    scaled = [np.abs(errors) / found.doubt(shares).spread for shares, errors in groups]
    scale = float(np.quantile(np.concatenate(scaled), _INSIDE)) / Z80
    parts = tuple(scale * part for part in found.parts)
    return Beliefs(parts=parts, own=scale * found.own, names=SERVED_PARTS)


def fit_other_chip(points: list[ServedPoint], beliefs: Beliefs) -> float:
    """Return the spread that another chip adds.

    Args:
        points: published points; those that are held out or of the fitted chips are left out.
        beliefs: spreads of the parts.

    Returns:
        Spread with which 80 % of the errors lie within 80 % intervals; 0 where more do without.
    """
    own = [item for item in points if item.is_fitted and not item.chip.startswith(SERVED_ON)]
    shares, errors = _columns(own)
    spread = beliefs.doubt(shares).spread

    def missing(more: float) -> float:
        return float(np.quantile(np.abs(errors) / np.hypot(spread, more), _INSIDE)) - Z80

    if missing(0.0) <= 0:
        return 0.0
    return float(brentq(missing, 0.0, 10.0))  # pyright: ignore[reportArgumentType]


def fit_queue(points: list[ServedPoint]) -> tuple[float, float]:
    """Fit how far above its own prompt's time the first token comes in four points of five.

    Args:
        points: published points; those that are held out or of other chips are left out.

    Returns:
        Logarithm of the factor for one request, at least 0, and its growth with the logarithm of
        the requests that are served together: the quantile .8 by linear regression.
    """
    own = [item for item in points if item.is_fitted and np.isfinite(item.first_s)]
    logs = np.array([np.log(item.first_s / item.prompt_s) for item in own])
    columns = np.stack([np.ones(len(own)), np.log([item.batch for item in own])], axis=1)
    # Quantile regression as a linear program: what lies above costs .8, what lies below .2.
    count, each = len(own), np.eye(len(own))
    found = linprog(
        np.concatenate([np.zeros(2), np.full(count, _INSIDE), np.full(count, 1 - _INSIDE)]),
        A_eq=np.hstack([columns, each, -each]),
        b_eq=logs,
        bounds=[(0, None), (0, None), *[(0, None)] * (2 * count)],
    )
    first, growth = map(float, found.x[:2])
    return first, growth


def _columns(points: list[ServedPoint]) -> tuple[Array, Array]:
    """Return shares [points, parts] and errors [points]."""
    return np.stack([item.shares for item in points]), np.array([item.error for item in points])
