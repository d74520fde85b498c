"""A value with the interval that holds it."""

from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.terms import Array

__all__ = ["Estimate", "tails"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with the interval that holds it.

    The ends equal the value when no uncertainty is known.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, samples: Array, level: float) -> "Estimate":
        """Take percentiles of bootstrap samples.

        Args:
            value: the estimate.
            samples: bootstrap of the value, [B]; none mean an interval without width, samples that
                are not a number are left out.
            level: probability inside, 0..1.

        Returns:
            The estimate; its interval always holds the value.
        """
        known = samples[~np.isnan(samples)]
        if not len(known):
            return cls(float(value), float(value), float(value))
        low, high = np.quantile(known, tails(level))
        return cls(float(value), min(float(low), float(value)), max(float(high), float(value)))


def tails(level: float) -> tuple[float, float]:
    """Turn a level into its two tail probabilities.

    Args:
        level: probability inside, 0..1.

    Returns:
        The probabilities below the interval and below its upper end.

    Raises:
        FitError: the level is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise FitError(f"level {level} must lie between 0 and 1", hint="0.8 is an 80 % interval")
    return 0.5 - level / 2, 0.5 + level / 2
