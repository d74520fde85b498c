"""The points of one fit with all that is computed from them: optimum, noise, bootstraps."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from steelyard.laws.fitting.bootstrap import Resampling
from steelyard.laws.fitting.law import Law, Prior
from steelyard.laws.fitting.minimizer import Problem, minimize
from steelyard.laws.fitting.points import Points
from steelyard.laws.fitting.terms import Array

__all__ = ["Study"]

_PAIRS_POINTS_PER_PARAMETER = 8
"""From so many points on, pairs are drawn. Of fewer, many draws fall onto one axis, and their
exponents run to the bounds."""
_POLISHED = 8
_ROUGH_ITERATIONS = 30
"""Enough to rank starts by the valley they fell into; only the best `_POLISHED` are finished."""
_LEAST_NOISE = 1e-6
"""Noise in log units below which exact points are treated as having this much."""


@dataclass
class Study:
    """The points of one fit and the scale of its prior.

    Attributes:
        law: law with P free parameters.
        data: n points.
        delta: where the Huber loss turns linear, log units.
        beliefs: priors that take part, by parameter.
        scale: weight of the prior in units of the objective; set by `optimum`.
    """

    law: Law
    data: Points
    delta: float
    beliefs: Mapping[str, Prior] = field(default_factory=dict)
    scale: float = 0.0

    def problem(self) -> Problem:
        """State the problem that all starts share."""
        center, sd = self._prior
        return Problem(
            law=self.law,
            inputs=self.data.inputs,
            target=np.log(self.data.target),
            weights=self.data.weights,
            delta=self.delta,
            center=center,
            precision=self.scale / sd**2,
        )

    @property
    def _prior(self) -> Array:
        """Center and standard deviation by parameter, [2, P]; 0 and infinite without a belief."""
        pairs = {name: (belief.center, belief.sd) for name, belief in self.beliefs.items()}
        return np.array([pairs.get(name, (0.0, np.inf)) for name in self.law.names]).T

    @property
    def num_used(self) -> int:
        """Points with weight."""
        return int((self.data.weights > 0).sum())

    @property
    def freedom(self) -> int:
        """Points with weight beyond parameters, at least 1."""
        return max(self.num_used - len(self.law.parameters), 1)

    def optimum(self, starts: Array) -> tuple[Array, float, Array]:
        """Return the best optimum, its objective, and the best few distinct ones, [K, P].

        The prior's weight follows from the noise a fit without it leaves: with Laplace noise of
        mean size b the objective is b * delta times the negative log likelihood.

        Args:
            starts: fitted coordinates, [S, P].

        Returns:
            Optimum [P], objective, and up to eight minima [K, P].
        """
        theta, objective, others = self._best(starts)
        if self.beliefs:
            mean = self.data.weights.mean()
            total = float((np.abs(self.residuals(theta)) * self.data.weights).sum() / mean)
            size = max(total / self.freedom, _LEAST_NOISE)
            # Where the noise is smaller than delta, the loss is quadratic in it: size^2, not
            # size * delta, turns a log likelihood into units of the objective.
            self.scale = float(size * min(size, self.delta) * mean)
            # The belief may favor another valley than the points alone, so all starts run again.
            theta, objective, others = self._best(np.concatenate([others, starts]))
        return theta, objective, others

    def _best(self, starts: Array) -> tuple[Array, float, Array]:
        """Minimize from all starts, then finish the best few."""
        problem = self.problem()
        found = minimize(problem, starts, max_iterations=_ROUGH_ITERATIONS)
        order = np.argsort(found.objective, kind="stable")[:_POLISHED]
        polished = minimize(problem, found.theta[order], far=False, max_iterations=500)
        best = int(polished.objective.argmin())
        return polished.theta[best], float(polished.objective[best]), polished.theta

    def residuals(self, theta: Array) -> Array:
        """Return log target minus log prediction, [n]."""
        return np.log(self.data.target) - self.law.predict(theta[None], self.data.inputs)[0]

    def noise(self, theta: Array) -> float:
        """Return the weighted sd of the log residuals, corrected for the parameters."""
        weights = self.data.weights / self.data.weights[self.data.weights > 0].mean()
        return float(np.sqrt((weights * self.residuals(theta) ** 2).sum() / self.freedom))

    def robust_sd(self, theta: Array) -> float:
        """Return the standard deviation of the log residuals by their median absolute size."""
        # A law of P parameters can pass through P points, so the P smallest say nothing; 1.4826
        # turns a median into the standard deviation of normal noise.
        sizes = np.sort(np.abs(self.residuals(theta)[self.data.weights > 0]))
        return 1.4826 * float(np.median(sizes[min(len(theta), len(sizes) - 1) :]))

    def resampling(self, wanted: Resampling) -> Literal["pairs", "noise"]:
        """Resolve "auto" by the number of points."""
        if wanted != "auto":
            return wanted
        return (
            "pairs"
            if self.num_used >= _PAIRS_POINTS_PER_PARAMETER * len(self.law.parameters)
            else "noise"
        )

    def bootstrap(
        self, theta: Array, noise: float, kind: str, count: int, generator: np.random.Generator
    ) -> Array:
        """Fit resampled problems from the optimum; priors are redrawn with the data.

        Args:
            theta: the optimum, [P].
            noise: standard deviation of the log residuals.
            kind: "pairs" draws clusters of points with replacement, "noise" adds normal noise,
                shared within a cluster.
            count: number of resampled problems.
            generator: source of random numbers.

        Returns:
            Fitted coordinates, [count, P].
        """
        if not count:
            return np.zeros((0, len(theta)))
        problem = self.problem()
        clusters = self.data.clusters
        size = int(clusters.max()) + 1
        if kind == "pairs":
            weights = (
                generator.multinomial(size, np.full(size, 1 / size), count)[:, clusters]
                * self.data.weights
            )
            target = problem.target
        else:
            weights = problem.weights
            target = (
                self.law.predict(theta[None], self.data.inputs)[0]
                + noise * generator.standard_normal((count, size))[:, clusters]
            )
        # A belief is data too: held fixed, it would narrow the intervals of what it decides.
        sd = self._prior[1]
        shift = np.where(np.isinf(sd), 0.0, sd) * generator.standard_normal((count, len(sd)))
        center = problem.center + shift
        resampled = replace(problem, target=target, weights=weights, center=center)
        return minimize(resampled, np.tile(theta, (count, 1)), far=False).theta
