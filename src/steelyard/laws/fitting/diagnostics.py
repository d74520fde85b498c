"""What the points leave free in a fit, which of them decide it, and which do not belong."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from steelyard.laws.fitting.large import is_large, newton_without_each
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.minimizer import minimize
from steelyard.laws.fitting.study import Study
from steelyard.laws.fitting.terms import Array

__all__ = [
    "FlatDirection",
    "Influence",
    "Outlier",
    "condition_number",
    "flat_directions",
    "influence",
    "outliers",
]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Influence:
    """What leaving each point out does to the parameters.

    Attributes:
        names: names of the P parameters.
        parameters: parameters without each point, natural units, [n, P].
        shift: change of the fitted coordinates in standard deviations of the bootstrap, [n, P];
            plain differences without a bootstrap.
    """

    names: tuple[str, ...]
    parameters: Array
    shift: Array

    @property
    def size(self) -> Array:
        """Largest absolute shift of any parameter, [n]."""
        return np.abs(self.shift).max(axis=1)

    def strongest(self, count: int = 5) -> list[int]:
        """Return the rows with the largest shifts, first row 0, strongest first."""
        return np.argsort(-self.size, kind="stable")[:count].tolist()


@dataclass(frozen=True, slots=True)
class Outlier:
    """A point far from the law.

    Attributes:
        row: its number, the first row is 0.
        measured: target, natural units.
        predicted: prediction of the law, natural units.
        deviations: log residual in robust standard deviations; positive when the measured value is
            above the law.
    """

    row: int
    measured: float
    predicted: float
    deviations: float

    def __str__(self) -> str:
        """Name the row, counted from 1, and both values."""
        return (
            f"row {self.row + 1}: measured {self.measured:.4g}, law {self.predicted:.4g} "
            f"({self.deviations:+.1f} standard deviations)"
        )


def influence(study: Study, theta: Array, samples: Array) -> Influence:
    """Fit again without each point, all fits as one batch from the optimum.

    Of a large table each fit is one Newton step from the optimum.

    Args:
        study: n points.
        theta: optimum in fitted coordinates, [P].
        samples: bootstrap in fitted coordinates, [B, P], which sets the scale.

    Returns:
        Parameters without each point and their shift.
    """
    count = len(study.data.target)
    if is_large(study.data):
        found = newton_without_each(study.problem(), theta)
    else:
        weights = np.tile(study.data.weights, (count, 1))
        np.fill_diagonal(weights, 0.0)
        without = replace(study.problem(), weights=weights)
        found = minimize(without, np.tile(theta, (count, 1)), far=False).theta
    scale = np.maximum(samples.std(axis=0), 1e-12) if len(samples) > 1 else np.ones(len(theta))
    return Influence(
        names=study.law.names, parameters=study.law.values(found), shift=(found - theta) / scale
    )


def outliers(study: Study, theta: Array, threshold: float) -> tuple[Outlier, ...]:
    """List points whose log residual exceeds `threshold` robust standard deviations.

    Args:
        study: n points; those without weight are left out.
        theta: optimum in fitted coordinates, [P].
        threshold: robust standard deviations, positive.

    Returns:
        The outliers, worst first; none when the law passes through more than half of the points.
    """
    residuals = study.residuals(theta)
    used = study.data.weights > 0
    # A robust scale, because outliers would widen a plain one until they hide behind it.
    sd = max(study.robust_sd(theta), 1e-12)
    rows = np.flatnonzero(used & (np.abs(residuals) > threshold * sd))
    rows = rows[np.argsort(-np.abs(residuals[rows]), kind="stable")]
    measured = study.data.target[rows]
    columns = (rows, measured, measured * np.exp(-residuals[rows]), residuals[rows] / sd)
    return tuple(map(Outlier, *(column.tolist() for column in columns)))
