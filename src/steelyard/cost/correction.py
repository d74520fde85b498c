"""Correct predictions by small measured runs, and carry their scatter into the interval."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError
from steelyard.quantity import Forecast

__all__ = ["Correction", "fit_correction"]

SPREAD_FLOOR = 0.03
"""Least relative scatter that is assumed: a few pairs may agree by luck."""

_PRIOR_SPREAD = 0.7
"""Factors of a prediction's parts are expected within this relative distance of their common
factor."""

_EXPECTED_WEIGHT = 4
"""Pairs that an expected scatter counts as; a few pairs alone may agree, or disagree, by luck."""

_WIDEST = 7.0
"""Logarithm of the widest interval: beyond a factor of a thousand it says nothing more."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Correction:
    """Factors on the parts of a prediction, with the scatter left.

    Attributes:
        factors: factor of each part, none negative.
        relative_spread: standard deviation of measured over corrected, with a floor.
        count: pairs it was fitted on.
        freedom: degrees of freedom of the scatter, those of what was expected counted.
        covariance: covariance of the factors at unit scatter, [parts, parts].
    """

    factors: tuple[float, ...]
    relative_spread: float
    count: int
    freedom: int
    covariance: tuple[tuple[float, ...], ...]

    def apply(self, predicted: ArrayLike) -> float:
        """Return the corrected prediction of parts [parts], or of one number."""
        return float(np.dot(self.factors, np.atleast_1d(np.asarray(predicted, dtype=float))))

    def forecast(self, quantity: str, predicted: ArrayLike, source: str) -> Forecast:
        """Make a forecast from a prediction.

        Its 80 % interval is Student's t over the scatter, widened for the fitted factors.

        Args:
            quantity: name of the quantity.
            predicted: uncorrected prediction, positive, or its parts [parts].
            source: model that was corrected, and the runs it was corrected on.

        Returns:
            A forecast with provenance "fitted".
        """
        from scipy.stats import t

        value = self.apply(predicted)
        parts = np.atleast_1d(np.asarray(predicted, dtype=float)) / value
        leverage = float(parts @ np.array(self.covariance) @ parts)
        quantile = float(t.ppf(0.9, max(self.freedom, 1)))
        width = math.expm1(min(quantile * self.relative_spread * math.sqrt(1 + leverage), _WIDEST))
        return Forecast.about(quantity, value, relative=width, provenance="fitted", source=source)


def fit_correction(
    predicted: ArrayLike, measured: ArrayLike, *, expected_spread: float = 0.0
) -> Correction:
    """Fit one factor per part of the predictions, by least squares on relative errors.

    Parts get factors of their own as far as the runs tell them apart; a weak prior keeps them near
    the common factor.

    Args:
        predicted: positive, [n], or their parts, non-negative, [n, parts].
        measured: measurements of the same n >= 1 runs, positive.
        expected_spread: relative scatter that such runs had elsewhere; it counts as much as four
            pairs. With 0 the pairs alone decide.

    Returns:
        The correction; fewer pairs than parts leave a spread of three floors unless one is
        expected.

    Raises:
        FitError: no pairs, unequal lengths, or values that are not positive and finite.
    """
    before = np.asarray(predicted, dtype=float)
    before = before.reshape(-1, 1) if before.ndim < 2 else before
    after = np.atleast_1d(np.asarray(measured, dtype=float))
    good = np.isfinite(before).all() and np.isfinite(after).all() and (before >= 0).all()
    good = good and (before.sum(axis=1) > 0).all() and (after > 0).all()
    if not (good and len(before) == len(after) > 0):
        raise FitError(
            f"a correction needs equally many positive predictions and measurements, got "
            f"{len(before)} and {after.size}",
            hint="pass one prediction for each finished run",
        )
    return _fit(before, after, expected_spread)


def _fit(before: Array, after: Array, expected_spread: float) -> Correction:
    """Solve for the factors and measure what scatter they leave."""
    from scipy.optimize import nnls

    count, parts = before.shape
    common = math.exp(float(np.log(after / before.sum(axis=1)).mean()))
    prior = (
        SPREAD_FLOOR / _PRIOR_SPREAD / common * np.eye(parts) if parts > 1 else np.empty((0, parts))
    )
    # Dividing by the measurement makes least squares count relative errors; the prior is one more
    # row per part, so that parts the runs cannot tell apart share the common factor.
    rows = np.vstack([before / after[:, None], prior])
    goals = np.concatenate([np.ones(count), prior.sum(axis=1) * common])
    factors = nnls(rows, goals)[0]
    known = _EXPECTED_WEIGHT if expected_spread else 0
    free = max(count - parts, 0) + known
    # With no degree of freedom left the residuals are 0 whatever the truth: assume a wide spread.
    errors = np.log(before @ factors / after)
    squares = float((errors**2).sum()) + known * expected_spread**2
    spread = math.sqrt(squares / free) if free > 0 else 3 * SPREAD_FLOOR
    covariance = np.linalg.inv(rows.T @ rows)
    return Correction(
        tuple(map(float, factors)),
        max(spread, SPREAD_FLOOR),
        count,
        free,
        tuple(map(tuple, covariance.tolist())),
    )
