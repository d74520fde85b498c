"""A student as the mean-field theory sees it: what moves it, and how sharp its loss is."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.laws.theory.spectrum import Spectrum

__all__ = ["Complex", "Dynamics", "largest_curvature", "learning_rate_limit"]

Complex = NDArray[np.complex128]

_SHARES = np.concatenate([np.geomspace(1e-6, 0.5, 200), 1 - np.geomspace(0.5, 1e-9, 200)])
"""Places on the way from 0 to the first pole of h, dense at both ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dynamics:
    """Who learns, from how much, and how.

    Attributes:
        spectrum: spectrum of the task.
        width: features of the student N, positive; inf for the features themselves.
        samples: different examples P, positive; inf for fresh ones in every step.
        learning_rate: eta.
        momentum: beta, 0 for none.
        label_noise: variance of the noise on the training labels.
    """

    spectrum: Spectrum
    width: float
    samples: float
    learning_rate: float
    momentum: float = 0.0
    label_noise: float = 0.0

    def drive(self, gap: Complex) -> Complex:
        """Return s(z), how far past unit gradients have moved the weights, from the gap 1 - z."""
        return self.learning_rate * (1 - gap) / (gap * (1 - self.momentum * (1 - gap)))

    def follow(self, drives: Complex) -> Complex:
        """Solve the scalar equation along paths of s, [paths, nodes]."""
        from steelyard.laws.theory.mean_field.resolvent import follow

        if np.isinf(self.width) and np.isinf(self.samples):
            return drives
        return follow(
            drives, self.spectrum.variance, self.spectrum.count, 1 / self.samples, 1 / self.width
        )


def learning_rate_limit(dynamics: Dynamics) -> float:
    """Return the learning rate from which on gradient descent diverges.

    It is 2 (1 + momentum) / largest curvature. The curvature of a finite student on finite data
    reaches above lambda_1: its edge is where 1 / s turns back as x goes down the negative axis.

    Args:
        dynamics: the student.

    Returns:
        The limit of eta.
    """
    return 2 * (1 + dynamics.momentum) / largest_curvature(dynamics)


def largest_curvature(dynamics: Dynamics) -> float:
    """Return the upper edge of the spectrum of gradient descent's matrix.

    Args:
        dynamics: the student.

    Returns:
        The edge; lambda_1 of an endless student on endless data.
    """
    variance = dynamics.spectrum.variance
    count = dynamics.spectrum.count
    x = -_SHARES / variance.max()
    h = (count * variance * x[:, None] / (1 + variance * x[:, None])).sum(axis=1)
    return float((-(1 - h / dynamics.samples) * (1 - h / dynamics.width) / x).min())
