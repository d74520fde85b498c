"""Leaving the largest points out: how wrong a law is beyond the points it was fitted on."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.laws.fitting.fitted import outside
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.minimizer import Problem, minimize
from steelyard.laws.fitting.terms import Array

__all__ = ["ASSUMED_DRIFT", "can_fit", "largest", "measure_drift"]

ASSUMED_DRIFT = 0.02
"""Standard deviation of the log error per factor e beyond the points where it is not measured."""
_FRACTIONS = (0.15, 0.3, 0.45, 0.6)
"""Parts of the range of log sizes that are left out. Deep cuts show errors far beyond the points,
shallow ones leave enough of them to fit; the drift is an average over all."""
_ITERATIONS = 400
"""More than a bootstrap takes, because a fit of small points only lies in a flatter valley."""
_LEAST_SPREAD = 0.1
"""Standard deviation of log sizes along every direction below which exponents are not separable."""


def measure_drift(
    problem: Problem, starts: Array, noise: float
) -> tuple[float, Literal["holdout", "assumed"]]:
    """Measure how fast the log error grows beyond the points, by leaving out the largest ones.

    All reduced fits advance as one batch; a held point has weight 0. The assumed 2 % counts like
    one held point a factor e away, so that a lucky holdout of few points does not promise
    certainty.

    Args:
        problem: one fit's points, weights [n].
        starts: good optima of the whole, [K, P]; the reduced fits start from all of them.
        noise: standard deviation of the log residuals inside the points.

    Returns:
        Standard deviation per factor e of distance, and whether it was measured or had to be
        assumed (2 % per factor e).
    """
    cuts = _cuts(problem)
    if not cuts:
        return ASSUMED_DRIFT, "assumed"
    weights = np.stack([np.where(held, 0.0, problem.weights) for held in cuts])
    reduced = replace(problem, weights=np.repeat(weights, len(starts), axis=0))
    found = minimize(
        reduced, np.tile(starts, (len(cuts), 1)), far=False, max_iterations=_ITERATIONS
    )
    squares = distances = 0.0
    for index, held in enumerate(cuts):
        rows = slice(index * len(starts), (index + 1) * len(starts))
        theta = found.theta[rows][found.objective[rows].argmin()]
        error = (problem.law.predict(theta[None], problem.inputs)[0] - problem.target)[held]
        axes = {name: problem.inputs[name] for name in problem.law.axes}
        known = {name: column[~held] for name, column in axes.items()}
        distance = outside(known, {name: column[held] for name, column in axes.items()})
        beyond = distance > 0
        squares += float((error[beyond] ** 2 - noise**2).sum())
        distances += float((distance[beyond] ** 2).sum())
    if distances <= 0:
        return ASSUMED_DRIFT, "assumed"
    return float(np.sqrt((max(squares, 0.0) + ASSUMED_DRIFT**2) / (distances + 1.0))), "holdout"


def largest(size: Array, fraction: float) -> NDArray[np.bool_]:
    """Mark points in the upper `fraction` of the range of log sizes, [n]."""
    return size > size.max() - fraction * np.ptp(size) - 1e-9  # a grid's own steps fall inside


def _cuts(problem: Problem) -> list[NDArray[np.bool_]]:
    """List distinct ways to leave large points out that leave enough to fit, [n] each."""
    logs = [np.log(problem.inputs[name]) for name in problem.law.axes]
    if not logs:
        return []
    sizes = logs if len(logs) == 1 else [*logs, np.sum(logs, axis=0)]
    used = problem.weights > 0
    cuts: dict[bytes, NDArray[np.bool_]] = {}
    for size in sizes:
        for fraction in _FRACTIONS:
            held = largest(size, fraction) & used
            if held.any() and can_fit(problem.law, problem.inputs, used & ~held):
                cuts[held.tobytes()] = held | ~used
    return list(cuts.values())


def can_fit(law: Law, inputs: Mapping[str, Array], kept: NDArray[np.bool_]) -> bool:
    """Say whether some of the points can be fitted: enough, and spread along every axis.

    Args:
        law: law that is to be fitted.
        inputs: inputs of all points, [n] each.
        kept: the points that take part, [n].

    Returns:
        False for fewer than two points beyond the parameters, or points near a line or plane.
    """
    if kept.sum() < len(law.parameters) + 2:
        return False
    logs = np.stack([np.log(inputs[name][kept]) for name in law.axes])
    # The smallest singular value is the spread across the line or plane the points nearly lie in.
    spread = np.linalg.svd(logs - logs.mean(axis=1, keepdims=True), compute_uv=False)[-1]
    return bool(spread / np.sqrt(kept.sum()) > _LEAST_SPREAD)
