"""From embeddings and a few labels to the learning curve of a probe.

Eigenvalues of a sample's covariance are not those of the population, and neither is the target's
power along them. Both are found from functions that the theory relates exactly: ridge residuals of
the sample are h(x) and the loss as a function of the capacity x, free of the sample's size, and
non-negative least squares turns them into modes. The tail beyond the sample is extrapolated.
"""

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import DataError
from steelyard.laws.fitting.terms import Array
from steelyard.laws.theory.random_features import RandomFeatureModel
from steelyard.laws.theory.spectrum import Spectrum

__all__ = ["from_kernel"]

_FEWEST_ROWS = 32
_TRUSTED_RESIDUAL = 0.3
"""Ridge fits that leave less of a random target than this interpolate; the loss read from them is
too low on real features."""
_BINS = 80
_CAPACITIES = 60
_ROUND_OFF = 1e-10
"""Variances below this share of the largest one are round-off of the covariance."""
_LEAST_RESIDUAL = 0.02
"""Ridge fits that leave less than this say nothing of the dimension: 1 - dimension / rows is then a
difference of nearly equal numbers."""


def from_kernel(
    features: ArrayLike,
    targets: ArrayLike,
    unlabeled: ArrayLike | None = None,
    *,
    unlearnable: float = 0.5,
) -> RandomFeatureModel:
    """Estimate the model whose loss curves are those of a linear probe on given features.

    Forecast then with `loss(steps, samples=P).test + label_noise` for gradient descent and with
    `ridge_loss(ridge, samples=P)[0] + label_noise` for ridge regression, for P up to the number of
    rows in all. Features and targets are centered; a forecast is in the squared units of the
    targets, summed over their columns.

    Args:
        features: embeddings of the labeled examples, or any finite feature map of a kernel, [n, d],
            n at least 32.
        targets: numbers [n] or [n, c]; one-hot rows for c classes.
        unlabeled: embeddings of further examples, [m, d]; they sharpen the spectrum.
        unlearnable: share, 0..1, of the target's power beyond what n labels can resolve that is
            taken for noise; the rest follows the power law of the last decade. 0.5 knows nothing.

    Returns:
        The model, with `a` and `b` fitted to the tail, the noise in `label_noise`, and a learning
        rate of half the inverse of the largest variance.

    Raises:
        DataError: rows differ, values are not finite, there are too few rows, or features or
            targets are constant.

    Source: Bordelon, Canatar, Pehlevan 2020 (arXiv 2002.02561) for learning curves from kernel
        spectra; Bordelon, Atanasov, Pehlevan 2024 (arXiv 2402.01092) for the dynamics; Wei, Hu,
        Steinhardt 2022 (arXiv 2203.06176) for cross-validation as an estimate of the population
        loss.
    """
    labeled, goal, everything = _checked(features, targets, unlabeled)
    if not 0 <= unlearnable <= 1:
        raise DataError(f"unlearnable {unlearnable:g} is a share, it must lie between 0 and 1")
    values, _ = _principal(everything)
    variance, count = _modes(values, len(everything))
    capacity, loss = _loss_by_capacity(labeled, goal, variance, count)
    power, noise, slope = _power(capacity, loss, variance, unlearnable)
    b = _capacity_exponent(values)
    spectrum = _merged(variance, count, *power)
    return RandomFeatureModel(
        a=1 + slope * b,
        b=b,
        modes=round(spectrum.modes),
        learning_rate=0.5 / float(variance.max()),
        label_noise=noise,
        spectrum=spectrum,
    )


def _checked(
    features: ArrayLike, targets: ArrayLike, unlabeled: ArrayLike | None
) -> tuple[Array, Array, Array]:
    """Return centered labeled features, targets and all features."""
    labeled = np.asarray(features, dtype=np.float64)
    goal = np.asarray(targets, dtype=np.float64)
    goal = goal[:, None] if goal.ndim == 1 else goal
    if labeled.ndim != 2 or goal.ndim != 2 or len(labeled) != len(goal):
        raise DataError(
            f"features {labeled.shape} and targets {goal.shape} must be [n, d] and [n] or [n, c] "
            f"with the same rows"
        )
    extra = labeled[:0] if unlabeled is None else np.asarray(unlabeled, dtype=np.float64)
    if extra.ndim != 2 or extra.shape[1] != labeled.shape[1]:
        raise DataError(
            f"unlabeled features {extra.shape} must have the {labeled.shape[1]} columns of the "
            f"labeled ones"
        )
    for name, values in (("features", labeled), ("targets", goal), ("unlabeled", extra)):
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if len(bad):
            raise DataError(
                f"{name}: row {bad[0] + 1} holds values that are not finite (the first row is 1)",
                hint="drop such rows",
            )
    if len(labeled) < _FEWEST_ROWS:
        raise DataError(
            f"{len(labeled)} labeled rows are too few, at least {_FEWEST_ROWS} are needed",
            hint="label some more examples",
        )
    everything = np.concatenate([labeled, extra])
    center = everything.mean(axis=0)
    everything = everything - center
    labeled = labeled - center
    goal = goal - goal.mean(axis=0)
    if not (everything**2).sum() > 0 or not (goal**2).sum() > 0:
        raise DataError("features and targets must vary over the rows; one of them is constant")
    return labeled, goal, everything


def _principal(features: Array) -> tuple[Array, Array]:
    """Return a sample's variances, falling, and its own directions as columns.

    Directions are those of the features, [d, K], or with fewer rows than features those of the
    rows, [n, K].
    """
    rows, columns = features.shape
    square = features @ features.T if rows < columns else features.T @ features
    values, directions = np.linalg.eigh(square / rows)
    values, directions = values[::-1], directions[:, ::-1]
    kept = values > _ROUND_OFF * values[0]
    return values[kept], directions[:, kept]


def _modes(values: Array, rows: int) -> tuple[Array, Array]:
    """Estimate variance and count of the population's modes from a sample's variances, [K] each."""
    from scipy.optimize import nnls

    penalty = 1 / np.geomspace(0.01 / values[0], 1e3 / values[-1], 240)
    dimension = (values / (penalty[:, None] + values)).sum(axis=1)
    residual = 1 - dimension / rows
    known = residual > _LEAST_RESIDUAL
    capacity, dimension = (residual / penalty)[known], dimension[known]
    grid = np.geomspace(0.3 / capacity.max(), 1.3 * values[0], 90)
    share = grid * capacity[:, None] / (1 + grid * capacity[:, None])
    # Rows are divided by the dimension, so that large capacities do not outweigh small ones.
    count, _ = nnls(share / dimension[:, None], np.ones(len(dimension)))
    kept = count > 1e-9 * count.sum()
    return grid[kept], count[kept]


def _ridge_fits(features: Array, targets: Array, penalty: Array) -> tuple[Array, Array]:
    """Return what ridge fits leave of a random target, a share, and of the target itself, [r]."""
    rows = len(features)
    values, directions = _principal(features)
    seen = targets if rows < features.shape[1] else features.T @ targets
    scale = 1.0 if rows < features.shape[1] else np.sqrt(rows * values)[:, None]
    along = directions.T @ seen / scale
    aligned = (along**2).sum(axis=1)
    left = penalty[:, None] / (penalty[:, None] + values)
    rest = max(float((targets**2).sum() - aligned.sum()), 0.0)
    residual = (left.sum(axis=1) + rows - len(values)) / rows
    return residual, (left**2 @ aligned + rest) / rows


def _loss_by_capacity(
    features: Array, targets: Array, variance: Array, count: Array
) -> tuple[Array, Array]:
    """Read the loss of a student of capacity x on endless samples, noise included, [x] each."""
    rows = len(features)
    penalty = 1 / np.geomspace(0.03 / variance.max(), 1e3 / variance.min(), 200)
    residual, train = _ridge_fits(features, targets, penalty)
    x = residual / penalty
    shared = ((count * variance**2) / (1 + variance * x[:, None]) ** 2).sum(axis=1)
    # Train loss over squared residual is generalized cross-validation; the last factor turns the
    # loss after so many rows into that on endless ones. More capacity never loses more.
    loss = np.minimum.accumulate(train / residual**2 * (1 - x**2 * shared / rows))
    known = (residual > _TRUSTED_RESIDUAL) & (loss > 0)
    grid = np.geomspace(x[known][0], x[known][-1], _CAPACITIES)
    return grid, np.interp(np.log(grid), np.log(x[known]), loss[known])


def _power(
    capacity: Array, loss: Array, variance: Array, unlearnable: float
) -> tuple[tuple[Array, Array], float, float]:
    """Estimate the target's power.

    Args:
        capacity: x, rising, [x].
        loss: loss on endless samples, noise included, [x].
        variance: variances of the modes, [K].
        unlearnable: share of the power beyond the largest capacity that is taken for noise.

    Returns:
        Grid of variances and power per bin; the noise; the slope of the loss at the largest
        capacity.
    """
    from scipy.optimize import nnls

    late = capacity > capacity[-1] / 10
    slope = max(-float(np.polyfit(np.log(capacity[late]), np.log(loss[late]), 1)[0]), 1e-3)
    grid = np.geomspace(0.999 * variance.min(), variance.max(), _BINS)
    # Bins that even the largest capacity does not reach share one column: their power falls with
    # the slope seen last, and only its sum can be found.
    is_tail = grid < 1 / capacity[-1]
    left = 1 / (1 + grid * capacity[:, None]) ** 2
    tail = np.where(is_tail, grid**slope, 0.0)
    tail /= max(tail.sum(), np.finfo(np.float64).tiny)
    noise_share = unlearnable if is_tail.any() else 1.0
    columns = np.column_stack([left[:, ~is_tail], noise_share + (1 - noise_share) * (left @ tail)])
    weights, _ = nnls(columns / loss[:, None], np.ones(len(loss)))
    power = weights[-1] * (1 - noise_share) * tail
    power[~is_tail] = weights[:-1]
    return (grid, power), float(weights[-1] * noise_share), slope


def _merged(variance: Array, count: Array, grid: Array, power: Array) -> Spectrum:
    """Put modes and power together."""
    held = power > 0
    few = 1e-6  # bins of power hold next to no modes of their own, so that h stays what it was
    return Spectrum(
        np.concatenate([variance, grid[held]]),
        np.concatenate([np.zeros(len(variance)), power[held] / few]),
        np.concatenate([count, np.full(int(held.sum()), few)]),
    )


def _capacity_exponent(values: Array) -> float:
    """Fit b of variance ~ k^-b over the middle of the sample's spectrum."""
    # The first modes follow no law, and the last ones of a sample fall too fast.
    last = max(len(values) // 2, min(len(values), 4))
    rank = np.arange(1, last + 1)[min(last // 10, 10) :]
    if len(rank) < 2:
        return 1.0
    return max(-float(np.polyfit(np.log(rank), np.log(values[rank - 1]), 1)[0]), 0.05)
