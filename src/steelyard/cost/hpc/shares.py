"""Shares of a promised figure that machines reach, fitted on few of them, with honest intervals."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError

__all__ = ["ShareFit", "fit_shares"]

Array = NDArray[np.float64]

_STRENGTHS = (0.1, 1.0, 10.0, 100.0, math.inf)
"""Strengths of the ridge that are compared, the last of which leaves the mean alone."""


@dataclass(frozen=True, eq=False)
class ShareFit:
    """A share as a mean and slopes over standardized features.

    Attributes:
        mean: mean share of the machines that were fitted.
        slopes: change of the share per standard deviation of each feature, [features]; all 0 where
            the machines do not support any.
        center: means of the features, [features].
        scale: their standard deviations, [features].
        log_half_width: half-width of the 80 % interval of the logarithm, from leaving out each.
        num_machines: machines that were fitted.
    """

    mean: float
    slopes: Array
    center: Array
    scale: Array
    log_half_width: float
    num_machines: int

    def share(self, features: ArrayLike = ()) -> float:
        """Return the share of a machine with these features, [features]."""
        return _share(self.mean, self.slopes, (self.center, self.scale), features)

    @property
    def relative(self) -> float:
        """Half-width of the 80 % interval as a fraction of the share."""
        return math.expm1(self.log_half_width)


def fit_shares(shares: ArrayLike, features: ArrayLike | None = None) -> ShareFit:
    """Fit shares by ridge regression, as strong as few machines demand.

    The strength is the largest whose squared error, each machine left out in turn, lies within one
    standard error of the least (the one-standard-error rule): features that the machines do not
    support leave only the mean.

    Args:
        shares: share of each machine, [n], above 0, n at least 3.
        features: what a share may depend on, [n, features]; nothing when None.

    Returns:
        The fit. The half-width of its interval is the error of rank .8 (n + 1), each machine left
        out in turn; with at most 8 machines the largest.

    Raises:
        FitError: there are fewer than 3 machines.

    Source: Breiman et al. 1984 (one-standard-error rule); Vovk et al. 2005 (order statistic).
    """
    values = np.asarray(shares, dtype=float)
    columns = np.zeros((len(values), 0)) if features is None else np.asarray(features, dtype=float)
    if len(values) < 3:
        raise FitError(
            f"shares of {len(values)} machines are known, but a fit needs at least 3",
            hint="add records with the measured figure to the catalog",
        )
    errors = {strength: _left_out(values, columns, strength) for strength in _STRENGTHS}
    squares = {strength: (error / values) ** 2 for strength, error in errors.items()}
    # The strongest ridge within one standard error of the best: few machines make the least error
    # a matter of luck.
    best = min(squares.values(), key=np.mean)
    most = best.mean() + best.std(ddof=1) / math.sqrt(len(values))
    strength = max(item for item, square in squares.items() if square.mean() <= most)
    logs = np.sort(np.abs(np.log1p(errors[strength] / values)))
    rank = min(math.ceil(0.8 * (len(logs) + 1)), len(logs))
    center, scale = _standard(columns)
    return ShareFit(
        mean=float(values.mean()),
        slopes=_slopes(values, columns, strength),
        center=center,
        scale=scale,
        log_half_width=float(logs[rank - 1]),
        num_machines=len(values),
    )


def _left_out(values: Array, columns: Array, strength: float) -> Array:
    """Return forecast minus share of each machine, fitted on the others, [n]."""
    found = np.empty(len(values))
    for one in range(len(values)):
        others = np.arange(len(values)) != one
        slopes = _slopes(values[others], columns[others], strength)
        standard = _standard(columns[others])
        found[one] = _share(float(values[others].mean()), slopes, standard, columns[one])
    return found - values


def _share(mean: float, slopes: Array, standard: tuple[Array, Array], features: ArrayLike) -> float:
    """Return a share, which no slope drives to nothing."""
    center, scale = standard
    moved = (np.asarray(features, dtype=float).reshape(len(center)) - center) / scale
    return max(mean + float(slopes @ moved), 0.05 * mean)


def _standard(columns: Array) -> tuple[Array, Array]:
    """Return means and deviations of features; a constant one has deviation 1."""
    scale = columns.std(axis=0)
    return columns.mean(axis=0), np.where(scale > 0, scale, 1.0)


def _slopes(values: Array, columns: Array, strength: float) -> Array:
    """Return the ridge regression's slopes over standardized features."""
    count = columns.shape[1]
    if math.isinf(strength) or not count:
        return np.zeros(count)
    center, scale = _standard(columns)
    standard = (columns - center) / scale
    gram = standard.T @ standard + strength * np.eye(count)
    return np.linalg.solve(gram, standard.T @ (values - values.mean()))
