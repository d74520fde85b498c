"""When a job fails: times between failures by a law, or as they were recorded."""

from dataclasses import dataclass
from math import gamma
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError, FitError, require

__all__ = ["FailureProcess", "RecordedGaps", "Weibull", "fit_weibull"]

Array = NDArray[np.float64]


class FailureProcess(Protocol):
    """Times between the failures of a whole job; each is drawn anew."""

    @property
    def mean_s(self) -> float:
        """Mean seconds between failures."""
        ...

    def gaps_s(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Draw seconds between failures."""
        ...

    def survival(self, time_s: ArrayLike) -> Array:
        """Return the probability that no failure comes within a time after the last one."""
        ...


@dataclass(frozen=True, slots=True)
class Weibull:
    """Failures that come sooner after a failure (shape below 1), or at a constant rate (shape 1).

    Attributes:
        mean_s: mean seconds between failures.
        shape: 1 is the exponential law; below 1 failures are bursty, above 1 they come with age.
    """

    mean_s: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        require(
            self,
            mean_s=(0 < self.mean_s < np.inf, "finite seconds above 0"),
            shape=(0.1 <= self.shape <= 20, "in [0.1, 20]"),
        )

    @property
    def scale_s(self) -> float:
        """Seconds within which a share of 1 - 1/e of the failures come."""
        return self.mean_s / gamma(1 + 1 / self.shape)

    def gaps_s(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Draw seconds between failures, an array of a shape."""
        return self.scale_s * rng.weibull(self.shape, shape)

    def survival(self, time_s: ArrayLike) -> Array:
        """Return the probability that no failure comes within a time after the last one."""
        return np.exp(-((np.asarray(time_s, dtype=float) / self.scale_s) ** self.shape))


@dataclass(frozen=True, slots=True)
class RecordedGaps:
    """Times between failures as they were recorded, drawn with replacement.

    Attributes:
        recorded_s: [n] seconds between failures, positive.
    """

    recorded_s: Array

    def __post_init__(self) -> None:
        gaps = np.asarray(self.recorded_s, dtype=float)
        if gaps.ndim != 1 or not len(gaps) or not (np.isfinite(gaps) & (gaps > 0)).all():
            raise ConfigError(
                "recorded times between failures must be a list of finite seconds above 0",
                hint="drop failures of the same instant",
            )

    @property
    def mean_s(self) -> float:
        """Mean seconds between failures."""
        return float(np.mean(self.recorded_s))

    def gaps_s(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Draw seconds between failures, an array of a shape."""
        return rng.choice(self.recorded_s, shape)

    def survival(self, time_s: ArrayLike) -> Array:
        """Return the share of recorded times that are longer."""
        ordered = np.sort(self.recorded_s)
        longer = len(ordered) - np.searchsorted(ordered, np.asarray(time_s, float), side="right")
        return longer / len(ordered)


def fit_weibull(gaps_s: ArrayLike, censored_s: ArrayLike = ()) -> Weibull:
    """Fit a Weibull law by maximum likelihood.

    Args:
        gaps_s: seconds between failures, positive, at least 2 that differ.
        censored_s: seconds that passed without a failure, such as the time after the last one.

    Returns:
        The law, its shape within [0.1, 20].

    Raises:
        FitError: fewer than two different times, or times that are not positive.
    """
    from scipy.optimize import brentq

    gaps, censored = (np.asarray(item, dtype=float) for item in (gaps_s, censored_s))
    if len(np.unique(gaps)) < 2 or not (np.isfinite(gaps) & (gaps > 0)).all():
        raise FitError(
            f"{len(gaps)} times between failures do not determine a law: at least 2 different "
            "ones above 0 are needed",
            hint="give a longer record, or the mean time between failures",
        )
    # Times over their mean keep powers within range.
    unit = gaps.mean()
    times, rest = gaps / unit, censored[censored > 0] / unit
    every = np.concatenate([times, rest])

    def slope(shape: float) -> float:
        powers = every**shape
        return float(
            1 / shape + np.log(times).mean() - (powers * np.log(every)).sum() / powers.sum()
        )

    low, high = 0.1, 20.0
    if slope(low) <= 0 or slope(high) >= 0:
        shape = low if slope(low) <= 0 else high
    else:
        root: Any = brentq(slope, low, high)
        shape = float(root)
    scale = ((every**shape).sum() / len(times)) ** (1 / shape)
    return Weibull(float(scale * unit * gamma(1 + 1 / shape)), shape)
