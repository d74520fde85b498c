"""Tables of many points: a sample of rows finds the valley, one Newton step is a bootstrap.

Hundreds of fits of 100,000 points take minutes and gigabytes. What many fits are needed for, a
valley, the drift and the shape of a profile, a few thousand points tell as well. The resampled
optima of so many points lie so near the optimum that one Newton step from it reaches them.
"""

from collections.abc import Callable

import numpy as np

from steelyard.laws.fitting.minimizer import Problem
from steelyard.laws.fitting.points import Points
from steelyard.laws.fitting.terms import Array

__all__ = ["LARGE", "Resample", "is_large", "newton_bootstrap", "newton_without_each", "thinned"]

LARGE = 5000
"""Points from which on a table is large; smaller ones are fitted point by point, every time."""
_THINNED = 2000
_CHUNK_NUMBERS = 2_000_000
"""Resampled weights or targets held at once."""

Resample = Callable[[int], tuple[Array, Array]]
"""Draws so many problems: weights and targets, [S, n] or [n] each."""


def is_large(data: Points) -> bool:
    """Say whether fits of all points must be few."""
    return len(data.target) >= LARGE


def thinned(data: Points) -> Points:
    """Draw rows of a large table, always the same ones.

    Args:
        data: n points.

    Returns:
        2,000 of those with weight, in their order; all of them when the table is not large.
    """
    used = np.flatnonzero(data.weights > 0)
    if not is_large(data) or len(used) <= _THINNED:
        return data
    rows = np.sort(np.random.default_rng(0).choice(used, _THINNED, replace=False))
    return Points(
        {name: column[rows] for name, column in data.inputs.items()},
        data.target[rows],
        data.weights[rows],
        np.unique(data.clusters[rows], return_inverse=True)[1].astype(np.int64),
    )


def newton_bootstrap(problem: Problem, theta: Array, centers: Array, resample: Resample) -> Array:
    """Take one Newton step from the optimum in every resampled problem.

    Args:
        problem: the points with all their weight, [n].
        theta: its optimum, [P].
        centers: centers of the prior, [B, P].
        resample: draws the weights and targets of the next problems.

    Returns:
        Fitted coordinates within the bounds, [B, P].

    Source: one-step estimates of Bickel 1975 (Journal of the American Statistical Association 70).
    """
    log, slopes = problem.law.evaluate(theta[None], problem.inputs)
    gradient = slopes[0].T
    count, size = gradient.shape
    squares = (gradient[:, :, None] * gradient[:, None, :]).reshape(count, -1)
    width = _width(problem, log[0] - problem.target)
    steps: list[Array] = []
    chunk = max(_CHUNK_NUMBERS // count, 1)
    for begin in range(0, len(centers), chunk):
        part = centers[begin : begin + chunk]
        weights, target = resample(len(part))
        residuals = np.broadcast_to(log[0] - target, (len(part), count))
        weights = np.broadcast_to(weights, residuals.shape)
        score = (weights * np.clip(residuals, -problem.delta, problem.delta)) @ gradient
        score += problem.precision * (theta - part)
        curvature = (weights * _inside(residuals, problem.delta, width)) @ squares
        matrix = curvature.reshape(-1, size, size) + np.diag(problem.precision)
        steps.append(_solved(problem, theta, matrix, score))
    return np.clip(theta + np.concatenate(steps), *problem.law.bounds)


def newton_without_each(problem: Problem, theta: Array) -> Array:
    """Take one Newton step from the optimum without each point in turn.

    Args:
        problem: the points with all their weight, [n].
        theta: its optimum, [P].

    Returns:
        Fitted coordinates within the bounds, [n, P].
    """
    log, slopes = problem.law.evaluate(theta[None], problem.inputs)
    gradient = slopes[0] * problem.weights
    residuals = log[0] - problem.target
    inside = _inside(residuals, problem.delta, _width(problem, residuals))
    matrix = (gradient * inside) @ slopes[0].T + np.diag(problem.precision)
    # Without a point its share of the gradient is missing, which was zero with it.
    score = -gradient * np.clip(residuals, -problem.delta, problem.delta)
    step = _solved(problem, theta, np.broadcast_to(matrix, (1, *matrix.shape)), score.T)
    return np.clip(theta + step, *problem.law.bounds)


def _solved(problem: Problem, theta: Array, matrix: Array, score: Array) -> Array:
    """Solve the Newton systems [S, P, P]; a parameter at its bound stays there."""
    low, high = problem.law.bounds
    free = (theta > low) & (theta < high)
    matrix = matrix * (free[:, None] & free) + np.diag(~free)
    # A direction that no point feels would make the system singular.
    floor = 1e-12 * np.trace(matrix, axis1=1, axis2=2)
    matrix += floor[:, None, None] * np.eye(len(theta))
    steps = np.linalg.solve(matrix, -(score * free)[:, :, None])[:, :, 0]
    return np.asarray(steps, dtype=np.float64)


def _width(problem: Problem, residuals: Array) -> float:
    """Return the half width of the zone whose points give the curvature, log units."""
    # Where the loss turns linear far inside the noise, few points lie in the quadratic zone, and
    # their number says little about the density of the residuals. Powell's wider zone does.
    sd = 1.4826 * float(np.median(np.abs(residuals[problem.weights > 0])))
    return max(problem.delta, sd * len(residuals) ** -0.2)


def _inside(residuals: Array, delta: float, width: float) -> Array:
    """Return the mean second derivative of the loss by point, from a zone of this half width."""
    share = 1.0 if np.isinf(delta) else delta / width
    return np.where(np.abs(residuals) <= width, share, 0.0)
