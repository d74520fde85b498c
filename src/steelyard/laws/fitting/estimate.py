"""A value with the interval that holds it, and how far intervals of a level reach."""

from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.terms import Array

__all__ = ["NOT_DETERMINED", "Estimate", "is_determined", "normal", "student", "tails"]

NOT_DETERMINED = "not determined by these runs"
_MOST_FACTOR = 1e3
"""A size whose interval spans more than three orders of magnitude is not known."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with the interval that holds it.

    The ends equal the value when no uncertainty is known.
    """

    value: float
    low: float
    high: float

    @property
    def is_determined(self) -> bool:
        """Whether the interval of this size says anything; see `is_determined`."""
        return is_determined(self.low, self.high)

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

    @classmethod
    def over(cls, draws: Array, level: float) -> "Estimate":
        """Take the first of the draws as the value and the others as its bootstrap, [1 + B]."""
        return cls.of(float(draws[0]), draws[1:], level)


def is_determined(low: float, high: float) -> bool:
    """Say whether the interval of a size is narrow enough to be quoted.

    Args:
        low: lower end.
        high: upper end.

    Returns:
        False where the ends are more than three orders of magnitude apart, or one is missing; what
        can be negative has no orders of magnitude.
    """
    if not (np.isfinite(low) and np.isfinite(high)):
        return False
    return low < 0 or high <= _MOST_FACTOR * low


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


def normal(level: float) -> float:
    """Return how many standard deviations a normal interval reaches to each side.

    Args:
        level: probability inside, 0..1.

    Returns:
        1.28 for 80 %.

    Raises:
        FitError: the level is not between 0 and 1.
    """
    from scipy.special import ndtri

    return float(ndtri(tails(level)[1]))


def student(freedom: float, level: float) -> float:
    """Return how many standard errors an interval of Student's t reaches to each side.

    Args:
        freedom: degrees of freedom, positive.
        level: probability inside, 0..1.

    Returns:
        1.36 for 80 % and 11 degrees; `normal` of the level for very many.

    Raises:
        FitError: the level is not between 0 and 1.
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, tails(level)[1]))
