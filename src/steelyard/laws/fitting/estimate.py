"""Values with the interval that holds them, and how far intervals of a level reach."""

import math
from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.terms import Array

__all__ = [
    "NOT_DETERMINED",
    "Estimate",
    "Prediction",
    "band",
    "is_determined",
    "normal",
    "student",
    "tails",
]

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


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted values with their interval, natural units, [n] each."""

    value: Array
    low: Array
    high: Array

    @property
    def first(self) -> Estimate:
        """The first value with its interval."""
        return Estimate(float(self.value[0]), float(self.low[0]), float(self.high[0]))


def band(
    logs: Array,
    level: float,
    *,
    noise: Array | float = 0.0,
    freedom: float = math.inf,
    drift: float = 0.0,
    distance: Array | float = 0.0,
) -> Prediction:
    """Widen the spread of parameters by the noise of one run and by drift, in log space.

    The three parts are independent, so their squares add: the spread by its percentiles on either
    side, the noise by Student's t because its size was estimated, the drift by the normal.

    Args:
        logs: log predictions of the optimum, first, and of the bootstraps, [1 + B, n].
        level: probability inside the interval, 0..1.
        noise: standard deviation of the log of a new value, [n] or a single number.
        freedom: degrees of freedom behind the noise; infinite where its size is known.
        drift: growth of the log error per factor e beyond the points, standard deviation.
        distance: how far the inputs lie beyond the points, in factors of e, [n] or a single number.

    Returns:
        Values with low and high in natural units, [n].

    Raises:
        FitError: the level is not between 0 and 1.
    """
    reach = student(freedom, level) if math.isfinite(freedom) else normal(level)
    spread = (reach * noise) ** 2 + (normal(level) * drift * distance) ** 2
    center = logs[0]
    low, high = np.quantile(logs[1:] if len(logs) > 1 else logs, tails(level), axis=0)
    below = np.sqrt(np.maximum(center - low, 0) ** 2 + spread)
    above = np.sqrt(np.maximum(high - center, 0) ** 2 + spread)
    return Prediction(np.exp(center), np.exp(center - below), np.exp(center + above))


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
