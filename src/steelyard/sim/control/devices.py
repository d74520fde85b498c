"""Meters that show the truth late and with noise; actuators whose commands land after a while."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import require

__all__ = ["Actuator", "Latency", "Meter"]

_LEVELS = 199


@dataclass(frozen=True, slots=True)
class Latency:
    """A distribution of seconds, by its quantiles; straight lines join them.

    Attributes:
        probabilities: levels, strictly rising, from 0 to 1.
        seconds: quantiles at these levels, 0 or more, never falling.
    """

    probabilities: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        levels, values = np.asarray(self.probabilities), np.asarray(self.seconds)
        require(
            self,
            probabilities=(
                len(levels) >= 2
                and levels[0] == 0
                and levels[-1] == 1
                and bool((np.diff(levels) > 0).all()),
                "two or more rising levels, from 0 to 1",
            ),
            seconds=(
                len(values) == len(levels)
                and bool(np.isfinite(values).all())
                and values[0] >= 0
                and bool((np.diff(values) >= 0).all()),
                "as many finite seconds as levels, from 0 up, never falling",
            ),
        )

    @classmethod
    def always(cls, seconds: float) -> "Latency":
        """Return a latency that never varies."""
        return cls((0.0, 1.0), (seconds, seconds))

    @classmethod
    def lognormal(cls, median_s: float, sigma: float) -> "Latency":
        """Return a log-normal latency, cut at its quantiles .005 and .995.

        Args:
            median_s: median seconds, above 0.
            sigma: standard deviation of the logarithm, 0 or more.

        Returns:
            The latency, on a grid of levels.
        """
        from scipy.special import ndtri

        # Its tail has no end: of a million draws one would keep a replica starting for hours.
        inner = np.linspace(0.005, 0.995, _LEVELS)
        values = median_s * np.exp(sigma * ndtri(inner))
        return cls(
            (0.0, *map(float, inner), 1.0),
            (float(values[0]), *map(float, values), float(values[-1])),
        )

    def draw_s(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Draw seconds, an array of a length."""
        return np.interp(rng.random(count), self.probabilities, self.seconds)

    def quantile_s(self, level: float) -> float:
        """Return the seconds that a share of the draws do not exceed."""
        return float(np.interp(level, self.probabilities, self.seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """Shows a value of the plant from time to time.

    Attributes:
        name: name that the plant knows it by.
        period_s: seconds between samples.
        lag_s: seconds from a sample until a policy can see it.
        noise: standard deviation of a relative error; 0.02 is 2 % of the value.
        loss: probability that a sample never arrives.
    """

    name: str
    period_s: float
    lag_s: float = 0.0
    noise: float = 0.0
    loss: float = 0.0

    def __post_init__(self) -> None:
        require(
            self,
            period_s=(0 < self.period_s < math.inf, "finite seconds above 0"),
            lag_s=(0 <= self.lag_s < math.inf, "finite seconds of 0 or more"),
            noise=(0 <= self.noise < math.inf, "finite and 0 or more"),
            loss=(0 <= self.loss <= 1, "in [0, 1]"),
        )

    def shown(self, truth: float, rng: np.random.Generator) -> float | None:
        """Return what a sample shows; None where it is lost, or where the truth is NaN."""
        # A meter that loses nothing draws nothing: beside it others see the same noise as without.
        if math.isnan(truth) or (self.loss and rng.random() < self.loss):
            return None
        return truth * (1 + self.noise * rng.standard_normal()) if self.noise else truth


@dataclass(frozen=True, slots=True, kw_only=True)
class Actuator:
    """Carries out commands for one target.

    A later command supersedes one that has not landed. A command that asks for what is under way
    already changes nothing: else a policy that repeats itself faster than the latency would never
    see anything land.

    Attributes:
        target: name that commands carry.
        latency: seconds from sending a command until it takes effect.
        failure: probability that a command never lands; nobody is told.
    """

    target: str
    latency: Latency = Latency((0.0, 1.0), (0.0, 0.0))
    failure: float = 0.0

    def __post_init__(self) -> None:
        require(self, failure=(0 <= self.failure <= 1, "in [0, 1]"))
