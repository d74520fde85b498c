"""Random-feature students trained for real, the truth that the theory is held to."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.laws.fitting.terms import Array
from steelyard.laws.theory.mean_field.losses import Dynamics

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
    student = _Student(dynamics, generator)
    held = None if np.isinf(dynamics.samples) else student.draw(int(dynamics.samples), generator)
    if held and dynamics.label_noise:
        held[1][:] += student.label_sd * generator.standard_normal(len(held[1]))
    weights = np.zeros(len(student.correlation))
    moved = np.zeros_like(weights)
    test, train = np.empty(steps + 1), np.empty(steps + 1)
    for step in range(steps + 1):
        test[step] = student.loss(weights)
        # Of fresh examples none is seen twice: train and test loss differ by the labels' noise.
        train[step] = test[step] + dynamics.label_noise
        if held:
            seen, labels = held
            residual = labels - seen @ weights
            train[step] = residual @ residual / len(residual)
            rows = (
                slice(None)
                if (batch is None)
                else generator.choice(len(labels), batch, replace=False)
            )
            gradient = seen[rows].T @ residual[rows] / len(residual[rows])
        elif batch is None:
            gradient = student.gradient(weights)
        else:
            seen, labels = student.draw(batch, generator)
            labels += student.label_sd * generator.standard_normal(batch)
            gradient = seen.T @ (labels - seen @ weights) / batch
        moved = dynamics.momentum * moved + gradient
        weights += dynamics.learning_rate * moved
    return test, train


class _Student:
    """A student's features, and its population loss as a quadratic form of its weights.

    The test loss is that of the population, not of a test set, whose noise would hide the few
    percent that the theory may be off.
    """

    def __init__(self, dynamics: Dynamics, generator: np.random.Generator) -> None:
        """Draw the features, if they are few, and make their covariance once."""
        variance, power = dynamics.spectrum.expanded()
        self.label_sd = np.sqrt(dynamics.label_noise)
        self.sd = np.sqrt(variance)
        self.target = np.sqrt(power / variance)
        self.features = None
        self.start = float(variance @ self.target**2)
        self.correlation, self.covariance = variance * self.target, variance
        if np.isfinite(dynamics.width):
            features = generator.standard_normal((int(dynamics.width), len(variance)))
            features /= np.sqrt(dynamics.width)  # so that curvature does not grow with the width
            self.correlation = features @ self.correlation
            self.covariance = (features * variance) @ features.T
            self.features = features

    def draw(self, count: int, generator: np.random.Generator) -> tuple[Array, Array]:
        """Draw examples: their features [count, N] and labels without noise [count]."""
        inputs = generator.standard_normal((count, len(self.sd))) * self.sd
        seen = inputs if self.features is None else inputs @ self.features.T
        return seen, inputs @ self.target

    def gradient(self, weights: Array) -> Array:
        """Return minus half the slope, [N]."""
        turned = (
            self.covariance * weights if self.covariance.ndim == 1 else self.covariance @ weights
        )
        return self.correlation - turned

    def loss(self, weights: Array) -> float:
        """Return the population loss."""
        return self.start - float(weights @ (self.correlation + self.gradient(weights)))
