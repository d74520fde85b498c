"""The fit of the data law, for all return thresholds and resampled seeds in one batch."""

import itertools
import math
import warnings
from dataclasses import replace
from typing import Literal

import numpy as np

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.minimizer import Minima, Problem, minimize
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.updates.return_curves import DataNeeds
from steelyard.laws.forms.updates.updates_to_data import UpdatesLaw, updates_to_data

__all__ = ["fit_updates"]

_DELTA = 0.1


def fit_updates(
    needs: DataNeeds,
    *,
    batch_size: Fit,
    learning_rate: Fit,
    critic_parameters: float,
    loss: Literal["log", "linear"] = "log",
    flops_factor: float = 10.0,
    source: str = "",
) -> UpdatesLaw:
    """Fit the data law of every threshold, all thresholds and resamplings in one batch.

    Args:
        needs: data needed by UTD and threshold, see `data_needs`.
        batch_size: result of `fit_hyperparameters` for the batch size.
        learning_rate: result of `fit_hyperparameters` for the learning rate.
        critic_parameters: number of parameters of the critic, P, positive.
        loss: "log" for a Huber loss of log steps; "linear" weighs log residuals by the squared
            steps, which near the optimum is the paper's squared error of the steps themselves.
        flops_factor: FLOP per gradient step, sample and critic parameter.
        source: where the curves come from.

    Returns:
        The law; rises of the data with the UTD are warned of and kept in `rises`.

    Raises:
        FitError: fewer than three UTDs, steps that are not positive, or a threshold that most
            resamplings miss.

    Source: Rybkin et al. 2025 (arXiv 2502.04327), section 4.
    """
    _check(needs, critic_parameters)
    problem = _problem(needs, loss)
    optimum = _optimum(problem, _starts(needs))
    samples = _resampled(problem, needs, optimum.theta)
    parts = zip(
        optimum.theta, samples, needs.steps.T, problem.weights, optimum.objective, strict=True
    )
    fits = tuple(
        Fit(
            law=problem.law,
            theta=theta,
            samples=sample,
            inputs=dict(problem.inputs),
            target=target,
            weights=weight,
            clusters=np.arange(len(needs.utds)),
            delta=problem.delta,
            objective=float(objective),
            noise=_noise(np.log(target) - problem.law.predict(theta[None], problem.inputs)[0]),
            resampling="pairs" if len(sample) else "none",
            source=source,
        )
        for theta, sample, target, weight, objective in parts
    )
    return UpdatesLaw(
        utds=needs.utds,
        thresholds=needs.thresholds,
        fits=fits,
        batch_size=batch_size,
        learning_rate=learning_rate,
        critic_parameters=critic_parameters,
        flops_factor=flops_factor,
        rises=_rises(needs),
    )


def _problem(needs: DataNeeds, loss: Literal["log", "linear"]) -> Problem:
    """State the fit of every threshold."""
    steps = needs.steps.T
    # Near the optimum log residual x steps is the residual of the steps, so squared steps as
    # weights turn least squares of the logs into those of the steps, and the law stays log-linear.
    is_linear = loss == "linear"
    return Problem(
        law=updates_to_data(needs.unit),
        inputs={"utd": needs.utds},
        target=np.log(steps),
        weights=(steps / steps.max(axis=1, keepdims=True)) ** (2 if is_linear else 0),
        delta=math.inf if is_linear else _DELTA,
        center=np.zeros(3),
        precision=np.zeros(3),
    )


def _optimum(problem: Problem, starts: Array) -> Minima:
    """Minimize from every start, then once more from the best of each threshold, [J, 3]."""
    thresholds, count, _ = starts.shape
    rows = np.repeat(np.arange(thresholds), count)
    rough = _minimize(problem.take(rows), np.concatenate(starts))
    best = rough.objective.reshape(-1, count).argmin(axis=1) + count * np.arange(thresholds)
    return _minimize(problem, rough.theta[best])


def _minimize(problem: Problem, starts: Array) -> Minima:
    """Minimize from starts near the optimum."""
    return minimize(problem, starts, far=False, max_iterations=300)


def _noise(residuals: Array) -> float:
    """Return the standard deviation of log residuals, corrected for the three parameters."""
    return float(np.sqrt((residuals**2).sum() / max(len(residuals) - 3, 1)))


def _check(needs: DataNeeds, critic_parameters: float) -> None:
    """Refuse needs that do not determine three parameters."""
    if len(needs.utds) < 3:
        raise FitError(
            f"{len(needs.utds)} UTDs cannot fit the 3 parameters of the data law",
            hint="sweep at least three, such as 1, 2, 4 and 8",
        )
    if needs.steps.shape != (len(needs.utds), len(needs.thresholds)) or not critic_parameters > 0:
        raise FitError(
            f"needs {needs.steps.shape} must be [{len(needs.utds)}, {len(needs.thresholds)}], and "
            f"P positive"
        )
    bad = np.argwhere(~(np.isfinite(needs.steps) & (needs.steps > 0)))
    if len(bad):
        utd, level = needs.utds[bad[0][0]], needs.thresholds[bad[0][1]]
        raise FitError(
            f"the need at UTD {utd:g} for return {level:g} is not a positive number",
            hint="leave thresholds that are not reached out",
        )


def _starts(needs: DataNeeds) -> Array:
    """Put floors and exponents on a small grid and the excess through the lowest UTD, [J, 6, 3]."""
    # Floor and exponent trade off, so floors start at 20, 70 and 97 % of the least need; beta then
    # follows from the excess at the lowest UTD, which is measured best.
    least, most = needs.steps.min(axis=0), needs.steps.max(axis=0)
    share, alpha = np.array(list(itertools.product((0.2, 0.7, 0.97), (0.5, 1.2)))).T
    floor = share * least[:, None]
    excess = np.log(np.maximum(most[:, None] - floor, 1e-3 * most[:, None]) / needs.unit)
    beta = np.log(needs.utds[0]) + excess / alpha
    return np.stack(np.broadcast_arrays(np.log(floor), beta, alpha), axis=2)


def _resampled(problem: Problem, needs: DataNeeds, theta: Array) -> list[Array]:
    """Fit the resamplings that reach every threshold, [B, 3] per threshold."""
    # A resampling takes part in all thresholds or in none, so that row b is the same resampling
    # everywhere and can be interpolated between thresholds.
    samples = needs.samples
    reached = np.isfinite(samples).all(axis=(1, 2))
    if len(samples) and reached.mean() < 0.5:
        worst = int(np.isfinite(samples).all(axis=1).mean(axis=0).argmin())
        raise FitError(
            f"{1 - reached.mean():.0%} of the resampled seeds miss a return, most often "
            f"{needs.thresholds[worst]:g}",
            hint="leave the highest thresholds out, train longer or add seeds",
        )
    if not len(samples):
        return [np.zeros((0, 3))] * len(theta)
    kept = np.log(samples[reached].transpose(2, 0, 1))
    rows = np.repeat(np.arange(len(theta)), kept.shape[1])
    drawn = replace(problem.take(rows), target=kept.reshape(-1, len(needs.utds)))
    return list(_minimize(drawn, theta[rows]).theta.reshape(*kept.shape[:2], 3))


def _rises(needs: DataNeeds) -> tuple[tuple[float, float], ...]:
    """List and warn of thresholds for which a higher UTD needed more data."""
    level, above = np.nonzero((np.diff(needs.steps, axis=0) > 0).T)
    rises = tuple(
        (float(needs.thresholds[row]), float(needs.utds[at + 1]))
        for row, at in zip(level, above, strict=True)
    )
    if rises:
        shown = ", ".join(f"return {threshold:g} at UTD {utd:g}" for threshold, utd in rises[:5])
        warnings.warn(
            f"more updates needed more data: {shown}; noise, or too many updates",
            SteelyardWarning,
            stacklevel=3,
        )
    return rises
