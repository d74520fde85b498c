"""Which combinations of a law's parameters the points leave nearly free."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array

__all__ = ["FlatDirection", "condition_number", "flat_directions"]

_FREE_SD = 0.5
"""A factor 1.6 of a coefficient, or .5 of an exponent: no quoted value survives that."""
_NAMED_SHARE = 0.2
"""Parameters with less of a direction than this are not named with it."""


@dataclass(frozen=True, slots=True)
class FlatDirection:
    """A direction in which the parameters move while the predictions hardly change.

    Attributes:
        components: unit vector in fitted coordinates, by parameter; small ones are left out.
        sd: how far the points let the parameters move along it, standard deviation in fitted
            coordinates.
    """

    components: dict[str, float]
    sd: float

    def __str__(self) -> str:
        """Name the parameters and their signs, such as "B +0.99, beta +0.12"."""
        parts = ", ".join(f"{name} {value:+.2f}" for name, value in self.components.items())
        return f"{parts} (moves by {self.sd:.2g})"


def _spectrum(
    law: Law, theta: Array, inputs: Mapping[str, Array], weights: Array
) -> tuple[Array, Array]:
    """Return eigenvalues [P], rising, and eigenvectors [P, P] of the weighted squared gradient."""
    gradient = law.evaluate(theta[None], inputs)[1][0]
    values, vectors = np.linalg.eigh((gradient * weights) @ gradient.T)
    return np.maximum(values, 0.0), vectors


def condition_number(law: Law, theta: Array, inputs: Mapping[str, Array], weights: Array) -> float:
    """Return the condition number of the fit's gradient.

    Args:
        law: law with P parameters.
        theta: optimum in fitted coordinates, [P].
        inputs: inputs of the points, [n] each.
        weights: weights of the points, [n].

    Returns:
        Root of the ratio of the largest to the smallest eigenvalue; infinite when the smallest is
        0, NaN without points.
    """
    if not len(weights):
        return float("nan")
    values, _ = _spectrum(law, theta, inputs, weights)
    return float(np.sqrt(values[-1] / values[0])) if values[0] > 0 else float("inf")


def flat_directions(
    law: Law, theta: Array, inputs: Mapping[str, Array], weights: Array, noise: float
) -> tuple[FlatDirection, ...]:
    """Find directions along which noise of this size moves the parameters far.

    Args:
        law: law with P parameters.
        theta: optimum in fitted coordinates, [P].
        inputs: inputs of the points, [n] each.
        weights: weights of the points, [n].
        noise: standard deviation of the log residuals, positive.

    Returns:
        Directions with a standard deviation above 0.5 (a factor 1.6 of a coefficient), flattest
        first; empty without points.
    """
    if not len(weights):
        return ()
    values, vectors = _spectrum(law, theta, inputs, weights)
    found = []
    for value, vector in zip(values, vectors.T, strict=True):
        sd = noise / np.sqrt(value) if value > 0 else float("inf")
        if sd > _FREE_SD:
            # An eigenvector has no sign of its own; the largest component is shown as positive.
            vector = vector * np.sign(vector[np.abs(vector).argmax()])
            least = _NAMED_SHARE * np.abs(vector).max()
            strong = {
                name: float(part)
                for name, part in zip(law.names, vector, strict=True)
                if abs(part) >= least
            }
            found.append(FlatDirection(strong, float(sd)))
    return tuple(found)
