"""Random-feature students trained for real, the truth that the theory is held to."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.laws.fitting.terms import Array
from steelyard.laws.theory.mean_field.dynamics import Dynamics

__all__ = ["SimulatedCurves", "simulate_run"]


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedCurves:
    """Losses of R simulated training runs, each with features and samples of its own.

    Attributes:
        steps: 0 .. T, [T + 1].
        test: [R, T + 1].
        train: [R, T + 1]; equal to `test` where every step sees fresh samples.
    """

    steps: NDArray[np.int64]
    test: Array
    train: Array

    @property
    def mean_test(self) -> Array:
        """Mean test loss over runs, [T + 1]."""
        return self.test.mean(axis=0)

    @property
    def standard_error(self) -> Array:
        """Standard error of the mean test loss, [T + 1]; NaN for a single run."""
        runs = len(self.test)
        return (
            self.test.std(axis=0, ddof=1) / np.sqrt(runs)
            if runs > 1
            else np.full(self.test.shape[1], np.nan)
        )


def simulate_run(
    dynamics: Dynamics, steps: int, batch: int | None, generator: np.random.Generator
) -> tuple[Array, Array]:
    """Train one student.

    A student of finite width is trained in its own weights, with the covariance of its features
    made once; a student of all features in theirs.

    Args:
        dynamics: the student; sizes are whole numbers or inf.
        steps: number of steps T.
        batch: examples per step, drawn without replacement from the samples, or fresh ones where
            samples are endless; None for all samples.
        generator: draws features, samples, noise and batches.

    Returns:
        Test and train loss after 0 .. T steps, [T + 1] each.

    Raises:
        ConfigError: too many modes, or sizes that are not whole.
    """
    for name in ("width", "samples"):
        size = getattr(dynamics, name)
        if np.isfinite(size) and size != int(size):
            raise ConfigError(f"a simulation needs a whole number of {name}, not {size:g}")
    variance, power = dynamics.spectrum.expanded()
    target = np.sqrt(power / variance)
    features = (
        None
        if np.isinf(dynamics.width)
        else generator.standard_normal((int(dynamics.width), len(variance)))
    )
    if features is not None:
        features /= np.sqrt(dynamics.width)  # so that curvature does not grow with the width
    if np.isinf(dynamics.samples):
        return _fresh_samples(dynamics, (variance, target, features), steps, batch, generator)
    inputs = generator.standard_normal((int(dynamics.samples), len(variance))) * np.sqrt(variance)
    labels = inputs @ target
    if dynamics.label_noise:
        labels += np.sqrt(dynamics.label_noise) * generator.standard_normal(len(labels))
    return _same_samples(
        dynamics, (variance, target, features), inputs, labels, steps, batch, generator
    )


_Task = tuple[Array, Array, Array | None]


def _same_samples(
    dynamics: Dynamics,
    task: _Task,
    inputs: Array,
    labels: Array,
    steps: int,
    batch: int | None,
    generator: np.random.Generator,
) -> tuple[Array, Array]:
    """Train on the same samples in every step."""
    seen = inputs if task[2] is None else inputs @ task[2].T
    weights = np.zeros(seen.shape[1])
    moved = np.zeros_like(weights)
    # The test loss is that of the population, not of a test set, whose noise would hide the few
    # percent that the theory may be off.
    test_loss = _TestLoss(task)
    test, train = np.empty(steps + 1), np.empty(steps + 1)
    for step in range(steps + 1):
        residual = labels - seen @ weights
        test[step] = test_loss(weights)
        train[step] = residual @ residual / len(residual)
        if batch is None:
            gradient = seen.T @ residual / len(residual)
        else:
            rows = generator.choice(len(residual), batch, replace=False)
            gradient = seen[rows].T @ residual[rows] / batch
        moved = dynamics.momentum * moved + gradient
        weights += dynamics.learning_rate * moved
    return test, train


def _fresh_samples(
    dynamics: Dynamics, task: _Task, steps: int, batch: int | None, generator: np.random.Generator
) -> tuple[Array, Array]:
    """Train on the population gradient, or on a fresh batch in every step.

    No example is seen twice, so train and test loss are the same but for the noise of the labels.
    """
    variance, target, features = task
    test_loss = _TestLoss(task)
    weights = np.zeros(len(variance) if features is None else len(features))
    moved = np.zeros_like(weights)
    test = np.empty(steps + 1)
    for step in range(steps + 1):
        test[step] = test_loss(weights)
        if batch is None:
            gradient = test_loss.gradient(weights)
        else:
            inputs = generator.standard_normal((batch, len(variance))) * np.sqrt(variance)
            noise = np.sqrt(dynamics.label_noise) * generator.standard_normal(batch)
            seen = inputs if features is None else inputs @ features.T
            gradient = seen.T @ (inputs @ target + noise - seen @ weights) / batch
        moved = dynamics.momentum * moved + gradient
        weights += dynamics.learning_rate * moved
    return test, test + dynamics.label_noise


class _TestLoss:
    """The population loss as a quadratic form of the student's weights."""

    def __init__(self, task: _Task) -> None:
        """Make the covariance of the student's features once."""
        variance, target, features = task
        self.start = float(variance @ target**2)
        self.correlation = variance * target
        self.covariance = variance
        if features is not None:
            self.correlation = features @ self.correlation
            self.covariance = (features * variance) @ features.T

    def gradient(self, weights: Array) -> Array:
        """Return minus half the slope, [N]."""
        turned = (
            self.covariance * weights if self.covariance.ndim == 1 else self.covariance @ weights
        )
        return self.correlation - turned

    def __call__(self, weights: Array) -> float:
        """Return the loss."""
        return self.start - float(weights @ (self.correlation + self.gradient(weights)))
