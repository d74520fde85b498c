"""Fits in which some runs were stopped before their target: they say "more than this"."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.holdout import measure_drift
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.minimizer import Problem, minimize
from steelyard.laws.fitting.points import Points, refuse_rows
from steelyard.laws.fitting.study import Study
from steelyard.laws.fitting.terms import Array

__all__ = ["fit_censored"]

_ROUNDS = 300
_STEPS = 4
"""Steps of least squares per round: the working targets move with the noise, so an exact optimum of
one round is of no use to the next."""
_TOLERANCE = 1e-6
_DRAW_TOLERANCE = 1e-3
"""Redrawn fits feed quantiles of a few hundred, which do not show the third digit of theta."""
_SMALLEST_NOISE = 1e-6


def fit_censored(
    law: Law,
    points: Mapping[str, ArrayLike],
    target: ArrayLike,
    caps: ArrayLike,
    *,
    bootstrap: Bootstrap = Bootstrap(),
    source: str = "",
) -> Fit:
    """Fit a law by maximum likelihood when targets above a cap were not observed.

    Log targets are normal around the law with one standard deviation. A run that reached its cap
    contributes the probability of lying above it. The likelihood is climbed by least squares with
    working targets and weights for the unseen ones, in turn with the noise.

    Args:
        law: what to fit.
        points: values by input in natural units, [n].
        target: positive, [n]; NaN or infinite where the cap was reached, and values at or above
            their cap count as such.
        caps: positive, [n] or a single number, infinite for runs without one.
        bootstrap: refits of targets redrawn from the fit and cut at the same caps, and their seed.
        source: where the points come from.

    Returns:
        The fit; `target` holds the expected values for censored rows.

    Raises:
        FitError: fewer observed targets than parameters, a censored row without a finite cap, or
            points that allow no fit.

    Source: Tobin 1958, doi 10.2307/1907382 (the likelihood).
    """
    generator = bootstrap.only_way("targets with caps are drawn again with noise")
    given = np.atleast_1d(np.asarray(target, dtype=np.float64))
    limit = np.array(np.broadcast_to(np.asarray(caps, dtype=np.float64), given.shape))
    censored = ~np.isfinite(given) | (given >= limit)
    _check(law, limit, censored)
    data = Points.checked(law, points, np.where(censored, limit, given), None)
    problem = Study(law, data, math.inf).problem()
    rough = minimize(replace(problem, weights=np.where(censored, 0.0, 1.0)), law.start_grid())
    start = rough.theta[rough.objective.argmin()]
    log_cap = np.log(np.where(np.isinf(limit), 1e300, limit))  # above any drawn target
    theta, noise = _climb(problem, start[None], problem.target[None], censored[None], _TOLERANCE)
    center = law.predict(theta, data.inputs)
    expected = center + noise[:, None] * _hazard(problem.target[None], center, noise)[1]
    filled = np.where(censored, expected, problem.target)[0]
    seen = int((~censored).sum())
    freedom = max(seen - len(law.parameters), 1)
    corrected = float(noise[0] * math.sqrt(seen / freedom))
    samples = _redraw(problem, theta[0], corrected, freedom, log_cap, bootstrap.count, generator)
    drift, drift_source = measure_drift(replace(problem, target=filled), theta, corrected)
    residual = filled - center[0]
    return Fit(
        law=law,
        theta=theta[0],
        samples=samples,
        inputs=data.inputs,
        target=np.exp(filled),
        weights=data.weights,
        clusters=data.clusters,
        delta=math.inf,
        objective=0.5 * float(residual @ residual),
        noise=corrected,
        drift=drift,
        drift_source=drift_source,
        resampling="noise" if bootstrap.count else "none",
        seed=bootstrap.seed,
        source=source,
    )


def _check(law: Law, limit: Array, censored: NDArray[np.bool_]) -> None:
    """Refuse caps that say nothing and tables with too few observed targets."""
    if np.isnan(limit).any() or (limit <= 0).any():
        raise FitError("caps must be positive", hint="give an infinite cap to runs that had none")
    refuse_rows(
        censored & np.isinf(limit),
        "caps of runs that did not reach their target must be finite",
        limit,
        "give the number of steps they were run for",
    )
    seen = int((~censored).sum())
    if seen < max(len(law.parameters), 2):
        raise FitError(
            f"{seen} of {len(censored)} runs reached their target; {law.name} has "
            f"{len(law.parameters)} parameters",
            hint="raise the cap, or choose a target that more runs reach",
        )


def _climb(
    problem: Problem, theta: Array, target: Array, censored: NDArray[np.bool_], tolerance: float
) -> tuple[Array, Array]:
    """Alternate between working targets and least squares for S problems at once.

    A censored row acts like a target above its cap with a weight below one, those of the
    likelihood's Newton step.

    Args:
        problem: law, inputs and bounds that all share.
        theta: start of each, [S, P].
        target: log targets, or log caps of censored rows, [S, n].
        censored: rows that say "more than this", [S, n].
        tolerance: change of theta and of the log noise in a round that counts as none.

    Returns:
        Theta [S, P] and noise [S].
    """
    theta = theta.copy()
    noise = np.full(len(theta), 0.1)
    rows = np.arange(len(theta))
    for _ in range(_ROUNDS):
        goal, cut, size = target[rows], censored[rows], noise[rows]
        center = problem.law.predict(theta[rows], problem.inputs)
        z, hazard = _hazard(goal, center, size)
        weight = np.where(cut, hazard * (hazard - z), 1.0)
        working = np.where(cut, center + size[:, None] / np.maximum(hazard - z, 1e-9), goal)
        after = minimize(
            replace(problem, target=working, weights=weight),
            theta[rows],
            far=False,
            max_iterations=_STEPS,
        ).theta
        residual = goal - problem.law.predict(after, problem.inputs)
        z, hazard = _hazard(goal, goal - residual, size)
        # The likelihood's own equation for the noise: squares of the seen rows over their number
        # less z times the hazard of the censored ones. Far from the optimum that may fall to zero
        # or below, so it stays above half the seen rows.
        seen = (~cut).sum(axis=1)
        count = np.maximum(seen - np.where(cut, z * hazard, 0.0).sum(axis=1), seen / 2)
        wide = np.maximum(
            np.sqrt(np.where(cut, 0.0, residual**2).sum(axis=1) / count), _SMALLEST_NOISE
        )
        moved = np.maximum(np.abs(after - theta[rows]).max(axis=1), np.abs(np.log(wide / size)))
        theta[rows] = after
        noise[rows] = wide
        rows = rows[moved > tolerance]
        if not len(rows):
            break
    return theta, noise


def _hazard(goal: Array, center: Array, noise: Array) -> tuple[Array, Array]:
    """Return distances of targets above the law in noises, and the normal hazard there, [S, n]."""
    from scipy.special import log_ndtr

    # Density over upper tail; both vanish far above the law, so their logs are subtracted.
    z = (goal - center) / noise[:, None]
    return z, np.exp(-0.5 * z**2 - 0.5 * math.log(2 * math.pi) - log_ndtr(-z))


def _redraw(
    problem: Problem,
    theta: Array,
    noise: float,
    freedom: int,
    log_cap: Array,
    count: int,
    generator: np.random.Generator,
) -> Array:
    """Fit targets drawn from the fit and cut at their caps, [count, P] or fewer.

    The size of the noise is redrawn too, as few points tell it only roughly. Draws with fewer seen
    targets than parameters are left out.
    """
    if not count:
        return np.zeros((0, len(theta)))
    size = noise * np.sqrt(freedom / generator.chisquare(freedom, count))
    drawn = problem.law.predict(theta[None], problem.inputs)[0] + size[
        :, None
    ] * generator.standard_normal((count, len(log_cap)))
    censored = drawn >= log_cap
    usable = (~censored).sum(axis=1) >= len(theta)
    drawn, censored = np.minimum(drawn, log_cap)[usable], censored[usable]
    return _climb(problem, np.tile(theta, (len(drawn), 1)), drawn, censored, _DRAW_TOLERANCE)[0]
