"""Profile intervals: the best fit with one parameter held, over the whole range of that parameter.

The curve shows what a bootstrap around one optimum cannot: a second valley, or one without an end.
"""

import itertools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import FitError
from steelyard.laws.fitting.estimate import NOT_DETERMINED, is_determined
from steelyard.laws.fitting.minimizer import Problem, minimize
from steelyard.laws.fitting.study import Study
from steelyard.laws.fitting.terms import Array

__all__ = ["Profile", "profile"]

_FLAT_RATIO = 5.0
"""Ratio of the ends of an interval from which on a positive parameter is called undetermined."""
_PINS_SD = (0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 18, 27, 40, 60.0)
"""Standard deviations on either side that are searched. The steps grow because the standard
deviation is that of a parabola, and valleys of laws are longer than their bottom suggests."""
_DRAWN = 33


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """The objective over one parameter, all others at their best.

    Attributes:
        name: name of the parameter.
        value: its value at the optimum, natural units.
        low: lower end of the interval, natural units; the bound itself (0 or minus infinity for no
            bound) when the valley does not end.
        high: upper end; infinite when the valley does not end below the parameter's bound.
        level: probability inside the interval.
        values: values at which the parameter was held, rising, natural units, [m].
        excess: objective above its minimum there, in units of the threshold: 1 is the interval's
            end, [m].
        parameters: parameters of the best fit there, natural units, [m, P].
        is_flat: whether the points leave the parameter nearly free: an end is missing, or for a
            positive parameter the ends are more than a factor 5 apart.
    """

    name: str
    value: float
    low: float
    high: float
    level: float
    values: Array
    excess: Array
    parameters: Array
    is_flat: bool

    @property
    def is_determined(self) -> bool:
        """Whether the interval can be quoted; one end alone is a limit when it is near."""
        if not self.is_flat:
            return True
        is_size = self.values[0] > 0
        below = np.isfinite(self.low) and not (is_size and self.low <= 0)
        above = bool(np.isfinite(self.high))
        if below and above:
            return is_determined(self.low, self.high)
        return (below and is_determined(self.low, self.value)) or (
            above and is_determined(self.value, self.high)
        )

    def __str__(self) -> str:
        """Say the interval, and that the valley is flat when it is."""
        if not self.is_determined:
            return f"{self.name}: {NOT_DETERMINED}, its valley is flat"
        ends = f"{self.name}: {100 * self.level:.0f} % interval {self.low:.4g} to {self.high:.4g}"
        return f"{ends}; flat: the points do not determine it" if self.is_flat else ends


def profile(
    study: Study, theta: Array, objective: float, noise: float, name: str, level: float
) -> Profile:
    """Minimize over all other parameters with one held at many values, all values as one batch.

    Args:
        study: the points.
        theta: optimum in fitted coordinates, [P].
        objective: objective at the optimum.
        noise: standard deviation of the log residuals.
        name: name of the parameter.
        level: probability inside, 0..1.

    Returns:
        The profile with its interval.

    Raises:
        FitError: no such parameter, a level outside 0..1, or a law with a single parameter.

    Source: likelihood ratio statistic scaled for M-estimators: twice the excess times E[psi'] /
        E[psi^2] (Heritier and Ronchetti 1994), compared with the F distribution.
    """
    if name not in study.law.names or not 0 < level < 1:
        raise FitError(
            f"no profile of {name!r} at level {level}",
            hint=f"parameters: {', '.join(study.law.names)}; levels lie in 0..1",
        )
    index = study.law.names.index(name)
    threshold = _threshold(study, theta, noise, level)
    found = _search(study, theta, objective, noise, index, threshold)
    pins, excess, thetas = _drawn(study, theta, objective, found, index, threshold)
    low = _crossing(pins, excess, np.flatnonzero(pins <= theta[index])[::-1], -np.inf)
    high = _crossing(pins, excess, np.flatnonzero(pins >= theta[index]), np.inf)
    is_log = study.law.parameters[index].transform == "log"
    natural = (lambda value: float(np.exp(value))) if is_log else float
    ends = (natural(low), natural(high))
    return Profile(
        name=name,
        value=natural(theta[index]),
        low=ends[0],
        high=ends[1],
        level=level,
        values=np.exp(pins) if is_log else pins,
        excess=excess,
        parameters=study.law.values(thetas),
        is_flat=bool(np.isinf([low, high]).any() or (is_log and ends[1] > _FLAT_RATIO * ends[0])),
    )


def _threshold(study: Study, theta: Array, noise: float, level: float) -> float:
    """Return the excess of the objective that ends the interval."""
    from scipy.special import erf, fdtri

    # Outliers count with at most delta, so where delta cuts them off the scale must be robust too.
    # Below come E[psi'] (the share of residuals inside delta) and E[psi^2] of normal noise.
    sd = noise if study.delta > 3 * noise else min(noise, max(study.robust_sd(theta), 1e-9))
    z = min(study.delta / max(sd, 1e-12), 40.0)
    inside = float(erf(z / np.sqrt(2)))
    quadratic = sd**2 * (inside - np.sqrt(2 / np.pi) * z * np.exp(-z * z / 2))
    square = quadratic + (z * sd) ** 2 * (1 - inside)
    weight = float(study.data.weights[study.data.weights > 0].mean())
    return 0.5 * weight * square / inside * float(fdtri(1, study.freedom, level))


def _pinned(study: Study, index: int, pins: Array, starts: Array) -> tuple[Array, Array]:
    """Minimize with the parameter held at each of m pins.

    Args:
        study: the points.
        index: column of the parameter.
        pins: values it is held at, [m].
        starts: starts of each pin, [K, m, P].

    Returns:
        Best objective [m] and theta [m, P].
    """
    problem = study.problem()
    low, high = problem.bounds
    rounds, count = starts.shape[:2]
    held = np.tile(pins, rounds)
    flat = starts.reshape(-1, starts.shape[2]).copy()
    flat[:, index] = held
    lows = np.tile(low, (len(held), 1))
    highs = np.tile(high, (len(held), 1))
    lows[:, index] = highs[:, index] = held
    pinned: Problem = replace(problem, low=lows, high=highs)
    found = minimize(pinned, flat, far=False, max_iterations=200)
    objective = found.objective.reshape(rounds, count)
    best = objective.argmin(axis=0)
    return objective.min(axis=0), found.theta.reshape(rounds, count, -1)[best, np.arange(count)]


def _search(
    study: Study, theta: Array, objective: float, noise: float, index: int, threshold: float
) -> tuple[Array, Array, Array]:
    """Pin the parameter in growing steps on both sides; return pins, excess and thetas."""
    gradient = study.law.evaluate(theta[None], study.data.inputs)[1][0]
    matrix = (gradient * study.data.weights) @ gradient.T + np.diag(study.problem().precision)
    matrix += 1e-12 * np.trace(matrix) * np.eye(len(theta))
    inverse = np.linalg.inv(matrix)
    low, high = (bound[index] for bound in study.problem().bounds)
    sd = min(max(noise * float(np.sqrt(inverse[index, index])), 1e-6), (high - low) / 20)
    steps = sd * np.array(_PINS_SD)
    center = theta[index]
    pins = np.concatenate([center - steps, [center], center + steps, [low, high]])
    pins = np.unique(np.clip(pins, low, high))
    # Along a straight valley the other parameters follow in proportion to their covariance.
    path = theta + (pins - center)[:, None] * (inverse[index] / inverse[index, index])
    starts = np.stack([np.tile(theta, (len(pins), 1)), np.clip(path, *study.problem().bounds)])
    found, thetas = _pinned(study, index, pins, starts)
    # Along a bent one a neighbor's result is the better start.
    starts = np.stack([thetas, np.roll(thetas, 1, axis=0), np.roll(thetas, -1, axis=0)])
    found, thetas = _pinned(study, index, pins, starts)
    return pins, (found - objective) / threshold, thetas


def _drawn(
    study: Study,
    theta: Array,
    objective: float,
    found: tuple[Array, Array, Array],
    index: int,
    threshold: float,
) -> tuple[Array, Array, Array]:
    """Refine between the ends, so that the interval is exact and a curve can be drawn."""
    pins, excess, thetas = found
    inside = np.flatnonzero(excess < 1.0)
    first = max(inside[0] - 1, 0)
    last = min(inside[-1] + 1, len(pins) - 1)
    finer = np.linspace(pins[first], pins[last], _DRAWN)
    near = np.abs(finer[:, None] - pins).argmin(axis=1)
    starts = np.stack(
        [thetas[near], thetas[np.clip(near + 1, 0, len(pins) - 1)], np.tile(theta, (len(finer), 1))]
    )
    best, own = _pinned(study, index, finer, starts)
    pins, order = np.unique(np.concatenate([pins[first : last + 1], finer]), return_index=True)
    excess = np.concatenate([excess[first : last + 1], (best - objective) / threshold])[order]
    return pins, excess, np.concatenate([thetas[first : last + 1], own])[order]


def _crossing(pins: Array, excess: Array, order: NDArray[np.int64], endless: float) -> float:
    """Walk outward from the optimum to where the excess crosses 1; `endless` when it does not."""
    for inner, outer in itertools.pairwise(order.tolist()):
        if excess[inner] < 1.0 <= excess[outer]:
            share = (1.0 - excess[inner]) / (excess[outer] - excess[inner])
            return float(pins[inner] + share * (pins[outer] - pins[inner]))
    return endless
