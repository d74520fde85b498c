"""Which points decide a fit, and which do not belong to it."""

from dataclasses import dataclass, replace

import numpy as np

from steelyard.laws.fitting.minimizer import minimize
from steelyard.laws.fitting.study import Study
from steelyard.laws.fitting.terms import Array

__all__ = ["Influence", "Outlier", "influence", "outliers"]


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

    Args:
        study: n points.
        theta: optimum in fitted coordinates, [P].
        samples: bootstrap in fitted coordinates, [B, P], which sets the scale.

    Returns:
        Parameters without each point and their shift.
    """
    count = len(study.data.target)
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
