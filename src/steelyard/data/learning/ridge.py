"""Ridge regression from sums of products, in one pass over the rows."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.store import blocks_of
from steelyard.data.learning.learners import FitJob, Needs
from steelyard.data.learning.linear import LinearModel
from steelyard.data.learning.losses import start_scores
from steelyard.data.sketch import Covariance
from steelyard.errors import ConfigError, require

__all__ = ["RidgeConfig", "ridge_of"]

_PENALTIES = np.logspace(-8, 4, 49)


@dataclass(frozen=True, kw_only=True, slots=True)
class RidgeConfig:
    """How ridge regression is fitted.

    Attributes:
        penalty: weight of the squared weights in the summed squared error; None for that of least
            generalized cross-validation.
    """

    needs: ClassVar[Needs] = "features"
    penalty: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        require(self, penalty=(self.penalty is None or self.penalty >= 0, "at least 0"))

    def fit(self, job: FitJob) -> LinearModel:
        """Fit a linear model of a number.

        Args:
            job: features of rows, and the number that is predicted.

        Returns:
            The weights.

        Raises:
            ConfigError: classes are to be predicted.
            DataError: no rows are left to learn from.
        """
        if job.target.task != "regress":
            raise ConfigError(
                f"ridge predicts numbers, {job.target.name} has classes",
                hint="take the learner linear",
            )
        start_scores(job.store.targets, job.store.is_held, job.target)
        spread, first = Covariance(job.features.shape[1] + 1), 0
        for block in blocks_of(job.features):
            part = slice(first, first + len(block))
            is_used = ~np.asarray(job.store.is_held[part])
            rows = np.column_stack([block, job.store.targets[part]])
            spread.update(rows[is_used])
            first += len(block)
        return ridge_of(spread, self.penalty)


def ridge_of(spread: Covariance, penalty: float | None = None) -> LinearModel:
    """Return the weights that a covariance tells.

    Args:
        spread: covariance of features and, last, what is predicted; those of parts may have been
            merged.
        penalty: weight of the squared weights in the summed squared error; None chooses it.

    Returns:
        The weights.

    Source: Hoerl and Kennard 1970; Golub, Heath and Wahba 1979 (generalized cross-validation).
    """
    count = spread.count
    if count < 2:
        width = spread.width - 1
        return LinearModel(coefficients=np.append(np.zeros(width), spread.mean[-1])[None])
    products = spread.matrix * (count - 1)
    inner, outer, own = products[:-1, :-1], products[:-1, -1], float(products[-1, -1])
    values, vectors = np.linalg.eigh(inner)
    values = np.maximum(values, 0.0)
    along = vectors.T @ outer
    if penalty is None:
        grid = _PENALTIES * max(float(values.mean()), 1e-300)
        penalty = float(grid[np.argmin([_gcv(values, along, own, count, at) for at in grid])])
    # Directions without variance would divide by nothing where nothing is punished.
    least = values.max(initial=0.0) * 1e-13 + 1e-300
    weights = vectors @ np.where(
        values + penalty > least, along / np.maximum(values + penalty, least), 0
    )
    constant = spread.mean[-1] - weights @ spread.mean[:-1]
    return LinearModel(coefficients=np.append(weights, constant)[None])


def _gcv(
    values: NDArray[np.float64],
    along: NDArray[np.float64],
    own: float,
    count: int,
    penalty: float,
) -> float:
    """Return the generalized cross-validation of a penalty."""
    shrunk = 1 / np.maximum(values + penalty, 1e-300)
    error = own - float((along**2 * shrunk * (2 - values * shrunk)).sum())
    freedom = float((values * shrunk).sum()) + 1
    if freedom >= count:
        return float("inf")
    return max(error, 0.0) / (count - freedom) ** 2
