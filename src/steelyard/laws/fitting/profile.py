"""Profile intervals: the best fit with one parameter held, over the whole range of that parameter.

The curve shows what a bootstrap around one optimum cannot: a second valley, or one without an end.
Where an interval ends on the curve, the bootstrap says, so that uneven, heavy-tailed and shared
noise count as they are.
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
_ROUGH_ITERATIONS = 40
"""Enough for a start of the neighbors; the few far pins that need hundreds get them from there."""
_OWN_DRAWS = 200
_ONE_SD = 0.6827
"""Share of a normal distribution within one standard deviation."""
_LEAST_NOISE = 1e-9
"""Noise in log units below which exact points are treated as having this much."""


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


def profile(study: Study, theta: Array, samples: Array, name: str, level: float) -> Profile:
    """Minimize over all other parameters with one held at many values, all values as one batch.

    Args:
        study: the points.
        theta: optimum in fitted coordinates, [P].
        samples: bootstrap optima in fitted coordinates, [B, P]; with none 200 are drawn here.
        name: name of the parameter.
        level: probability inside, 0..1.

    Returns:
        The profile with its interval.

    Raises:
        FitError: no such parameter, a level outside 0..1, or a law with a single parameter.

    Source: likelihood ratio statistic scaled for noise that is not as the likelihood has it
        (Heritier and Ronchetti 1994, Journal of the American Statistical Association 89), the
        scale by the bootstrap; compared with the F distribution.
    """
    if name not in study.law.names or not 0 < level < 1:
        raise FitError(
            f"no profile of {name!r} at level {level}",
            hint=f"parameters: {', '.join(study.law.names)}; levels lie in 0..1",
        )
    index = study.law.names.index(name)
    if not len(samples):
        samples = _own_draws(study, theta)
    valley = _Valley.of(study, theta, index)
    shift = theta - valley.theta
    pins, excess, thetas = valley.search(max(study.noise(theta), _LEAST_NOISE))
    threshold = _threshold(study, level, pins, excess, samples[:, index] - shift[index])
    pins, excess, thetas = valley.refine(pins, excess / threshold, thetas, threshold)
    center = valley.theta[index]
    low, high = (
        _crossing(pins, excess, order, endless) + shift[index]
        for order, endless in (
            (np.flatnonzero(pins <= center)[::-1], -np.inf),
            (np.flatnonzero(pins >= center), np.inf),
        )
    )
    is_log = study.law.parameters[index].transform == "log"
    natural = (lambda value: float(np.exp(value))) if is_log else float
    ends = (natural(low), natural(high))
    pins = pins + shift[index]
    return Profile(
        name=name,
        value=natural(theta[index]),
        low=ends[0],
        high=ends[1],
        level=level,
        values=np.exp(pins) if is_log else pins,
        excess=excess,
        parameters=study.law.values(thetas + shift),
        is_flat=bool(np.isinf([low, high]).any() or (is_log and ends[1] > _FLAT_RATIO * ends[0])),
    )


def _own_draws(study: Study, theta: Array) -> Array:
    """Draw the bootstrap of a fit that has none, [200, P]."""
    kind = study.resampling("auto")
    generator = np.random.default_rng(0)
    return study.bootstrap(theta, study.noise(theta), kind, _OWN_DRAWS, generator)


def _threshold(study: Study, level: float, pins: Array, excess: Array, drawn: Array) -> float:
    """Return the excess of the objective that ends the interval.

    Args:
        study: the points.
        level: probability inside, 0..1.
        pins: values at which the parameter was held, rising, [m].
        excess: objective above its minimum there, [m].
        drawn: values of the parameter in the bootstrap, [B].

    Returns:
        The excess at one standard deviation, times the quantile of the squared deviation.
    """
    from scipy.special import fdtri

    # The root of the excess is straight where the excess is a parabola. The central draws set the
    # scale: outer ones fall where a flat valley has left its parabola, or onto one axis.
    height = np.interp(drawn, pins, np.sqrt(np.maximum(excess, 0.0))) ** 2
    least = 0.5 * _LEAST_NOISE**2 * float(study.data.weights.max())
    one_sd = max(float(np.quantile(height, _ONE_SD)), least)
    return one_sd * float(fdtri(1, study.independent, level))


@dataclass(frozen=True, slots=True)
class _Valley:
    """What is profiled: the points, or a sample of a large table with the weight of all.

    Attributes:
        problem: the points.
        theta: optimum in fitted coordinates, [P].
        objective: objective there.
        index: column of the parameter that is held.
    """

    problem: Problem
    theta: Array
    objective: float
    index: int

    @classmethod
    def of(cls, study: Study, theta: Array, index: int) -> "_Valley":
        """Take the points; of a large table a sample, which has an optimum of its own."""
        thin = study.thinned()
        problem = thin.problem()
        if thin is study:
            return cls(problem, theta, study.objective(theta), index)
        share = float(problem.weights.sum() / study.data.weights.sum())
        problem = replace(problem, weights=problem.weights / share)
        found = minimize(problem, theta[None], far=False, max_iterations=500)
        return cls(problem, found.theta[0], float(found.objective[0]), index)

    def pinned(self, pins: Array, starts: Array, max_iterations: int = 200) -> tuple[Array, Array]:
        """Minimize with the parameter held at each of m pins.

        Args:
            pins: values it is held at, [m].
            starts: starts of each pin, [K, m, P].
            max_iterations: ceiling of steps.

        Returns:
            Best objective above the optimum [m] and theta [m, P].
        """
        low, high = self.problem.bounds
        rounds, count = starts.shape[:2]
        held = np.tile(pins, rounds)
        flat = starts.reshape(-1, starts.shape[2]).copy()
        flat[:, self.index] = held
        lows = np.tile(low, (len(held), 1))
        highs = np.tile(high, (len(held), 1))
        lows[:, self.index] = highs[:, self.index] = held
        fixed = replace(self.problem, low=lows, high=highs)
        found = minimize(fixed, flat, far=False, max_iterations=max_iterations)
        objective = found.objective.reshape(rounds, count)
        best = objective.argmin(axis=0)
        thetas = found.theta.reshape(rounds, count, -1)[best, np.arange(count)]
        return objective.min(axis=0) - self.objective, thetas

    def search(self, noise: float) -> tuple[Array, Array, Array]:
        """Pin the parameter in growing steps on both sides; return pins, excess and thetas."""
        problem, theta, index = self.problem, self.theta, self.index
        gradient = problem.law.evaluate(theta[None], problem.inputs)[1][0]
        matrix = (gradient * problem.weights) @ gradient.T + np.diag(problem.precision)
        matrix += 1e-12 * np.trace(matrix) * np.eye(len(theta))
        inverse = np.linalg.inv(matrix)
        low, high = (bound[index] for bound in problem.bounds)
        sd = min(max(noise * float(np.sqrt(inverse[index, index])), 1e-6), (high - low) / 20)
        steps = sd * np.array(_PINS_SD)
        center = theta[index]
        pins = np.concatenate([center - steps, [center], center + steps, [low, high]])
        pins = np.unique(np.clip(pins, low, high))
        # Along a straight valley the other parameters follow in proportion to their covariance.
        path = theta + (pins - center)[:, None] * (inverse[index] / inverse[index, index])
        starts = np.stack([np.tile(theta, (len(pins), 1)), np.clip(path, *problem.bounds)])
        _, thetas = self.pinned(pins, starts, _ROUGH_ITERATIONS)
        # Along a bent one a neighbor's result is the better start.
        starts = np.stack([thetas, np.roll(thetas, 1, axis=0), np.roll(thetas, -1, axis=0)])
        return pins, *self.pinned(pins, starts)

    def refine(
        self, pins: Array, excess: Array, thetas: Array, threshold: float
    ) -> tuple[Array, Array, Array]:
        """Add pins between the ends, so that the interval is exact and a curve can be drawn.

        Args:
            pins: values at which the parameter was held, rising, [m].
            excess: objective above its minimum there, in units of the threshold, [m].
            thetas: best fits there, [m, P].
            threshold: excess that ends the interval.

        Returns:
            The same three from the pin before the interval to the one after it.
        """
        inside = np.flatnonzero(excess < 1.0)
        first = max(inside[0] - 1, 0)
        last = min(inside[-1] + 1, len(pins) - 1)
        finer = np.linspace(pins[first], pins[last], _DRAWN)
        near = np.abs(finer[:, None] - pins).argmin(axis=1)
        beside = thetas[np.clip(near + 1, 0, len(pins) - 1)]
        own = np.tile(self.theta, (len(finer), 1))
        best, found = self.pinned(finer, np.stack([thetas[near], beside, own]))
        pins, order = np.unique(np.concatenate([pins[first : last + 1], finer]), return_index=True)
        excess = np.concatenate([excess[first : last + 1], best / threshold])[order]
        return pins, excess, np.concatenate([thetas[first : last + 1], found])[order]


def _crossing(pins: Array, excess: Array, order: NDArray[np.int64], endless: float) -> float:
    """Walk outward from the optimum to where the excess crosses 1; `endless` when it does not."""
    for inner, outer in itertools.pairwise(order.tolist()):
        if excess[inner] < 1.0 <= excess[outer]:
            share = (1.0 - excess[inner]) / (excess[outer] - excess[inner])
            return float(pins[inner] + share * (pins[outer] - pins[inner]))
    return endless
