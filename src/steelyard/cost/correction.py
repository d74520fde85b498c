"""Scale a model's predictions by what small measured runs showed, and carry their scatter into the interval."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.quantity import Forecast

__all__ = ["Correction", "fit_correction"]

SPREAD_FLOOR = 0.03
"""Relative scatter assumed at least: few pairs agree by luck."""


@dataclass(frozen=True, slots=True)
class Correction:
    """A factor between measured and predicted, with its scatter.

    Attributes:
        factor: measured over predicted, geometric mean.
        relative_spread: standard deviation of log(measured / predicted), with a floor.
        count: pairs it was fitted on.
    """

    factor: float
    relative_spread: float
    count: int

    def apply(self, predicted: float) -> float:
        """Give the corrected prediction."""
        return self.factor * predicted

    def forecast(self, quantity: str, predicted: float, source: str) -> Forecast:
        """Make a forecast whose 80 % interval is Student's t over the scatter, widened for the fitted mean.

        Args:
            quantity: name of the quantity.
            predicted: uncorrected prediction, positive.
            source: which model was corrected on which runs.

        Returns:
            A forecast with provenance "fitted".
        """
        from scipy.stats import t

        quantile = float(t.ppf(0.9, max(self.count - 1, 1)))
        width = math.expm1(quantile * self.relative_spread * math.sqrt(1 + 1 / self.count))
        return Forecast.about(quantity, self.apply(predicted), relative=width, provenance="fitted", source=source)


def fit_correction(predicted: ArrayLike, measured: ArrayLike) -> Correction:
    """Fit one factor to pairs, as the geometric mean of measured over predicted.

    Args:
        predicted: positive, [n].
        measured: of the same n >= 1 runs, positive.

    Returns:
        The correction; one pair gives its ratio and a spread of three floors.

    Raises:
        FitError: no pairs, unequal lengths, or values that are not positive and finite.
    """
    before, after = (np.atleast_1d(np.asarray(item, dtype=float)) for item in (predicted, measured))
    usable = before.shape == after.shape and before.size and np.isfinite(before * after).all() and (before > 0).all() and (after > 0).all()
    if not usable:
        raise FitError(
            f"a correction needs equally many positive predictions and measurements, got {before.size} and {after.size}",
            hint="pass one prediction for each finished run",
        )
    ratio = np.log(after / before)
    spread = float(ratio.std(ddof=1)) if ratio.size > 1 else 3 * SPREAD_FLOOR
    return Correction(float(np.exp(ratio.mean())), max(spread, SPREAD_FLOOR), int(ratio.size))
