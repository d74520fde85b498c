"""The one verb of the room: measured points in, a fitted law with honest intervals out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.holdout import measure_drift
from steelyard.laws.fitting.law import Law, Prior
from steelyard.laws.fitting.minimizer import Problem, minimize
from steelyard.laws.fitting.points import Points
from steelyard.laws.fitting.terms import Array

__all__ = ["fit"]

_FEW_POINTS_PER_PARAMETER = 4
_PAIRS_POINTS_PER_PARAMETER = 8
_POLISHED = 8
_ROUGH_ITERATIONS = 30

PriorChoice = Mapping[str, Prior] | Literal["auto"] | None
Resampling = Literal["auto", "pairs", "noise"]


def fit(
    law: Law,
    points: Mapping[str, ArrayLike],
    target: ArrayLike,
    *,
    starts: Array | Literal["auto"] = "auto",
    bootstraps: int = 300,
    seed: int = 0,
    delta: float = 1e-3,
    weights: ArrayLike | None = None,
    prior: PriorChoice = "auto",
    resampling: Resampling = "auto",
    source: str = "",
) -> Fit:
    """Fit a law to measured points.

    Minimizes the sum of Huber losses of the log residuals from many starts at once, then every bootstrap from the best optimum,
    then the fits that leave the largest points out, whose errors widen the prediction intervals beyond the points.

    Args:
        law: what to fit, such as `chinchilla()`.
        points: per input of the law its values in natural units, [n]; further columns are ignored.
        target: positive, [n], such as losses in nats per token.
        starts: fitted coordinates [S, P], or "auto" for the law's own grid.
        bootstraps: resampled fits for the intervals; 0 for none.
        seed: of the resampling.
        delta: where the Huber loss turns linear, in log units.
        weights: not negative, [n]; none for equal ones.
        prior: weak beliefs by parameter in fitted coordinates; "auto" takes the law's own ones when there are fewer than four
            points per parameter and none otherwise; None for never.
        resampling: "pairs" draws points with replacement, "noise" adds normal noise of the residuals' size to the fit; "auto"
            takes pairs from eight points per parameter on, because few points drawn with replacement fall onto one axis.
        source: where the points come from, kept in the fit.

    Returns:
        The fit; same arguments, same numbers.

    Raises:
        FitError: points that do not allow the fit; rows and columns are named.

    Example:
        >>> fit(chinchilla(), {"parameters": n, "tokens": d}, loss).interval("alpha")  # doctest: +SKIP
        (0.341, 0.355)

    Source: Hoffmann et al. 2022 (arXiv 2203.15556), section 3.3, with the sum and the starts of Besiroglu et al. 2024
        (arXiv 2404.10102).
    """
    data = Points.checked(law, points, target, weights)
    grid = law.start_grid() if isinstance(starts, str) else np.atleast_2d(np.asarray(starts, dtype=np.float64))
    if grid.shape[1] != len(law.parameters) or not np.isfinite(grid).all() or not delta > 0 or bootstraps < 0:
        raise FitError(f"starts must be finite [S, {len(law.parameters)}], delta positive and bootstraps >= 0")
    beliefs = _beliefs(law, prior, int((data.weights > 0).sum()))
    study = _Study(law, data, delta, beliefs)
    theta, objective, others = study.optimum(grid)
    noise = study.noise(theta)
    drift, drift_source = measure_drift(study.problem(), others, noise)
    kind = study.resampling(resampling)
    samples = study.bootstrap(theta, noise, kind, bootstraps, np.random.default_rng(seed))
    return Fit(
        law=law, theta=theta, samples=samples, inputs=data.inputs, target=data.target, weights=data.weights, delta=delta,
        objective=objective, noise=noise, drift=drift, drift_source=drift_source, resampling=kind if bootstraps else "none",
        prior=beliefs, seed=seed, source=source,
    )  # fmt: skip


def _beliefs(law: Law, prior: PriorChoice, count: int) -> dict[str, Prior]:
    """Resolve which priors take part."""
    if prior is None:
        return {}
    if isinstance(prior, str):
        few = count < _FEW_POINTS_PER_PARAMETER * len(law.parameters)
        return {item.name: item.prior for item in law.parameters if item.prior is not None} if few else {}
    unknown = [name for name in prior if name not in law.names]
    if unknown:
        raise FitError(f"prior for unknown parameters {', '.join(unknown)}", hint=f"law {law.name} has {', '.join(law.names)}")
    return dict(prior)


@dataclass
class _Study:
    """The points of one fit and the scale of its prior."""

    law: Law
    data: Points
    delta: float
    beliefs: dict[str, Prior]
    scale: float = 0.0

    def problem(self) -> Problem:
        """State the problem all starts share."""
        center = np.array([self.beliefs[name].center if name in self.beliefs else 0.0 for name in self.law.names])
        precision = np.array([self.scale / self.beliefs[name].sd ** 2 if name in self.beliefs else 0.0 for name in self.law.names])
        return Problem(
            law=self.law, inputs=self.data.inputs, target=np.log(self.data.target), weights=self.data.weights, delta=self.delta,
            center=center, precision=precision,
        )  # fmt: skip

    def optimum(self, starts: Array) -> tuple[Array, float, Array]:
        """Give the best optimum, its objective, and the best few distinct ones, [K, P].

        The prior's weight follows from the noise a fit without it leaves: with Laplace noise of mean size b the objective is
        b * delta times the negative log likelihood.
        """
        theta, objective, others = self._best(starts)
        if self.beliefs:
            freedom = max(int((self.data.weights > 0).sum()) - len(self.law.parameters), 1)
            size = max(float((np.abs(self._residuals(theta)) * self.data.weights).sum() / self.data.weights.mean()) / freedom, 1e-6)
            self.scale = float(size * min(size, self.delta) * self.data.weights.mean())
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

    def _residuals(self, theta: Array) -> Array:
        return np.log(self.data.target) - self.law.predict(theta[None], self.data.inputs)[0]

    def noise(self, theta: Array) -> float:
        """Give the weighted standard deviation of the log residuals, corrected for the parameters."""
        weights = self.data.weights / self.data.weights[self.data.weights > 0].mean()
        freedom = max(int((weights > 0).sum()) - len(self.law.parameters), 1)
        return float(np.sqrt((weights * self._residuals(theta) ** 2).sum() / freedom))

    def resampling(self, wanted: Resampling) -> Literal["pairs", "noise"]:
        """Resolve "auto" by the number of points."""
        if wanted != "auto":
            return wanted
        enough = int((self.data.weights > 0).sum()) >= _PAIRS_POINTS_PER_PARAMETER * len(self.law.parameters)
        return "pairs" if enough else "noise"

    def bootstrap(self, theta: Array, noise: float, kind: str, count: int, generator: np.random.Generator) -> Array:
        """Fit `count` resampled problems from the optimum, [count, P]; priors are redrawn with the data."""
        if not count:
            return np.zeros((0, len(theta)))
        problem, size = self.problem(), len(self.data.target)
        if kind == "pairs":
            weights = generator.multinomial(size, np.full(size, 1 / size), count) * self.data.weights
            target = problem.target
        else:
            weights = problem.weights
            target = self.law.predict(theta[None], self.data.inputs)[0] + noise * generator.standard_normal((count, size))
        spread = np.array([self.beliefs[name].sd if name in self.beliefs else 0.0 for name in self.law.names])
        center = problem.center + spread * generator.standard_normal((count, len(spread)))
        resampled = Problem(
            law=self.law,
            inputs=problem.inputs,
            target=target,
            weights=weights,
            delta=self.delta,
            center=center,
            precision=problem.precision,
        )
        return minimize(resampled, np.tile(theta, (count, 1)), far=False).theta
