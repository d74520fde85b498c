"""One batched minimizer: every start and every bootstrap advances together in float64.

The objective of problem s is sum_i w_si Huber_delta(log prediction_si - log target_si) plus half a
precision times the squared distance to a prior. The sum, not the mean, is minimized: means are so
small that optimizers stop where they start.

Each step solves a Newton system whose weights are those of the quadratic zone, damped towards the
weights of iteratively reweighted least squares (which alone descend safely but slowly). Without a
linear zone (least squares) these are the same, and the diagonal is damped instead
(Levenberg-Marquardt). Bounds are kept by projection.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array

__all__ = ["Minima", "Problem", "huber", "minimize"]

_CHUNK_NUMBERS = 100_000
"""Derivatives that advance together: few enough to stay in the cache, many enough that numpy's
calls cost little."""
_CONTINUATION = 30.0
"""Delta of the first stage over the wanted one. With delta 1e-3 nearly every residual of a far
start lies in the linear zone, where the objective has no curvature to follow; at 3 % it has."""
_LARGEST_DAMPING = 1e9
"""Damping at which a step is too short to count; a problem that gets there has nowhere to go."""
_TINY = 1e-300
"""Added where a difference may be exactly zero, as at the optimum of points without noise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """S fits that share law and inputs.

    Attributes:
        law: law with P parameters.
        inputs: per input its values in natural units, [n].
        target: log targets, [n] when all problems share them or [S, n].
        weights: not negative, [n] or [S, n]; bootstrap counts and held-out zeros go here.
        delta: where the Huber loss turns from quadratic to linear, in log units.
        center: prior centers in fitted coordinates, [P] or [S, P].
        precision: precision of the prior in units of the objective, [P]; zeros for none.
        low: lower bounds in fitted coordinates, [P] or [S, P]; None for the law's own.
        high: upper bounds; a parameter whose bounds are equal is pinned.
    """

    law: Law
    inputs: Mapping[str, Array]
    target: Array
    weights: Array
    delta: float
    center: Array
    precision: Array
    low: Array | None = None
    high: Array | None = None

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds, [P] or [S, P] each."""
        low, high = self.law.bounds
        return low if self.low is None else self.low, high if self.high is None else self.high

    def take(self, rows: slice | NDArray[np.int64]) -> "Problem":
        """Keep some of the S problems."""
        own = {name: getattr(self, name) for name in ("target", "weights", "center", "low", "high")}
        own = {name: value for name, value in own.items() if value is not None and value.ndim == 2}
        return replace(self, **{name: value[rows] for name, value in own.items()})


@dataclass(frozen=True, slots=True)
class Minima:
    """Where the S problems ended.

    Attributes:
        theta: fitted coordinates, [S, P].
        objective: [S].
        converged: whether the last step promised less than a relative 1e-10 of the objective, [S].
        iterations: steps tried, [S].
    """

    theta: Array
    objective: Array
    converged: NDArray[np.bool_]
    iterations: NDArray[np.int64]


def huber(residuals: Array, delta: float) -> Array:
    """Return residual^2 / 2 within `delta` and delta (|residual| - delta / 2) beyond it."""
    size = np.abs(residuals)
    inside = np.minimum(size, delta)
    return inside * (size - 0.5 * inside)


def minimize(
    problem: Problem, starts: Array, *, far: bool = True, max_iterations: int = 100
) -> Minima:
    """Minimize S problems, each from its own start.

    Far starts first descend with a wider delta, close to least squares, so that they reach the
    valley in few steps.

    Args:
        problem: S problems, or one shared by all starts.
        starts: fitted coordinates, [S, P]; clipped into the bounds.
        far: whether the wider stage comes first; leave it out for warm starts.
        max_iterations: ceiling of steps per problem and stage.

    Returns:
        The S minima; without the wider stage never worse than the objective at their starts.
    """
    parts = []
    numbers = max(problem.target.shape[-1] * starts.shape[1], 1)
    chunk = int(np.clip(_CHUNK_NUMBERS // numbers, 16, 512))
    for begin in range(0, len(starts), chunk):
        rows = slice(begin, begin + chunk)
        part = problem.take(rows)
        theta = np.clip(starts[rows], *part.bounds)
        if far and np.isfinite(part.delta):
            # The first stage only has to find the valley, so it stops a million times earlier.
            wide = replace(part, delta=part.delta * _CONTINUATION)
            theta = _descend(wide, theta, max_iterations, tolerance=1e-3).theta
        parts.append(_descend(part, theta, max_iterations, tolerance=1e-10))
    return Minima(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in Minima.__slots__)
    )


@dataclass(slots=True)
class _Iterate:
    """Where a batch stands: objective, gradient and what the Newton matrix is made of.

    Attributes:
        theta: fitted coordinates, [S, P].
        objective: [S].
        gradient: gradient of the objective, [S, P].
        slopes: derivatives of the log predictions, [S, P, n].
        inside: weights of points in the quadratic zone, 0 elsewhere, [S, n].
        reweighted: weights of iteratively reweighted least squares, [S, n].
    """

    theta: Array
    objective: Array
    gradient: Array
    slopes: Array
    inside: Array
    reweighted: Array

    @classmethod
    def at(cls, problem: Problem, theta: Array) -> "_Iterate":
        """Evaluate a batch at `theta`, [S, P]."""
        log, slopes = problem.law.evaluate(theta, problem.inputs)
        residuals = log - problem.target
        size = np.abs(residuals)
        clipped = np.minimum(size, problem.delta)
        offset = theta - problem.center
        weights = np.broadcast_to(problem.weights, size.shape)
        objective = np.einsum("sn,sn->s", clipped * (size - 0.5 * clipped), weights)
        objective += 0.5 * (offset * offset) @ problem.precision
        influence = np.copysign(clipped, residuals) * problem.weights
        gradient = np.matmul(slopes, influence[:, :, None])[:, :, 0] + offset * problem.precision
        reweighted = problem.weights * (clipped / np.maximum(size, _TINY))
        inside = np.where(size <= problem.delta, problem.weights, 0.0)
        return cls(theta, objective, gradient, slopes, inside, reweighted)

    def put(self, rows: NDArray[np.bool_], other: "_Iterate") -> None:
        """Copy the chosen rows of another state of the same size."""
        for name in _Iterate.__slots__:
            getattr(self, name)[rows] = getattr(other, name)[rows]

    def keep(self, rows: NDArray[np.bool_]) -> "_Iterate":
        """Keep the chosen rows only."""
        return _Iterate(*(getattr(self, name)[rows] for name in _Iterate.__slots__))


def _step(problem: Problem, state: _Iterate, damping: Array) -> tuple[Array, Array]:
    """Return projected steps of damped Newton systems [S, P] and the decreases they promise [S]."""
    low, high = problem.bounds
    is_square = np.isinf(problem.delta)
    # Points in the linear zone have no curvature, so the quadratic zone alone may leave the matrix
    # singular. Reweighting brings them in, the more of it the higher the damping.
    weights = state.inside if is_square else state.inside + damping[:, None] * state.reweighted
    matrix = np.matmul(state.slopes * weights[:, None, :], state.slopes.transpose(0, 2, 1))
    diagonal = np.arange(matrix.shape[1])
    matrix[:, diagonal, diagonal] += problem.precision
    matrix[:, diagonal, diagonal] *= 1 + (damping[:, None] if is_square else 1e-9)
    # A parameter that no weighted point feels has an empty row; this keeps the system solvable.
    matrix[:, diagonal, diagonal] += 1e-14
    # A parameter at its bound that wants to go beyond it is taken out of the system (row and column
    # of the identity); clipping its step alone would bend the steps of all others.
    blocked = ((state.theta <= low) & (state.gradient > 0)) | (
        (state.theta >= high) & (state.gradient < 0)
    )
    free = ~blocked
    matrix *= free[:, :, None] & free[:, None, :]
    matrix[:, diagonal, diagonal] += blocked
    gradient = state.gradient * free
    step = np.linalg.solve(matrix, -gradient[:, :, None])[:, :, 0]
    step = np.clip(state.theta + step, low, high) - state.theta
    curved = np.einsum("sp,spq,sq->s", step, matrix, step)
    return step, -np.einsum("sp,sp->s", gradient, step) - 0.5 * curved


def _descend(problem: Problem, theta: Array, max_iterations: int, *, tolerance: float) -> Minima:
    """Advance a batch until each promised decrease is below `tolerance` of its objective."""
    count = len(theta)
    result = Minima(
        theta.copy(), np.zeros(count), np.zeros(count, dtype=bool), np.zeros(count, dtype=np.int64)
    )
    rows = np.arange(count)
    state = _Iterate.at(problem, theta.copy())
    damping = np.ones(count)
    for _ in range(max_iterations):
        step, promised = _step(problem, state, damping)
        trial = _Iterate.at(problem, state.theta + step)
        gained = state.objective - trial.objective
        # A heavily damped step promises little wherever it stands, so a small promise counts as
        # convergence only without damping, or when damping has reached its end.
        done = (np.abs(promised) <= tolerance * state.objective + _TINY) & (
            (damping <= 1.0) | (damping > _LARGEST_DAMPING / 10)
        )
        state.put(gained > 0, trial)
        # The trust-region rule: damp less where the quadratic model foretold the gain, more where
        # it did not.
        ratio = gained / np.maximum(promised, _TINY)
        damping = np.select([ratio > 0.5, ratio > 0.1], [damping / 5, damping], damping * 4)
        damping = damping.clip(1e-6, _LARGEST_DAMPING)
        result.iterations[rows] += 1
        result.converged[rows] = done
        if done.any():
            # Finished problems leave the batch, or the slowest one would set the cost of all.
            result.theta[rows] = state.theta
            result.objective[rows] = state.objective
            rows = rows[~done]
            damping = damping[~done]
            state = state.keep(~done)
            problem = problem.take(np.flatnonzero(~done))
        if not len(rows):
            break
    result.theta[rows] = state.theta
    result.objective[rows] = state.objective
    return result
