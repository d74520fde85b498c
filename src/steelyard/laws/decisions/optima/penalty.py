"""The cost of a wrong setting, and the quantile of an uncertain optimum that keeps it least."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.terms import Array

__all__ = ["LEARNING_RATE_PENALTY", "Penalty", "fit_penalty"]

_NEAR, _FAR = math.log(1.6), math.log(2.6)
_FEWEST_A_SIDE = 2


@dataclass(frozen=True, slots=True)
class Penalty:
    """Relative rise of the loss beside the optimum.

    Below x ln(ratio)^2 for settings too low, above x ln(ratio)^2 for too high.

    Attributes:
        below: positive, relative loss per squared factor e.
        above: positive, relative loss per squared factor e.
    """

    below: float
    above: float

    def __post_init__(self) -> None:
        """Refuse sides that do not rise."""
        if not (0 < self.below < math.inf and 0 < self.above < math.inf):
            raise FitError(
                f"penalty: both sides must be positive and finite, given below {self.below:g} and "
                f"above {self.above:g}"
            )

    def at(self, ratio: ArrayLike) -> Array:
        """Return the relative rise of the loss at `ratio` times the optimum, [n]; 0 at ratio 1."""
        log = np.log(np.asarray(ratio, dtype=np.float64))
        return np.where(log < 0, self.below, self.above) * log**2

    @property
    def quantile(self) -> float:
        """Quantile of a log-normal belief about the optimum with the least expected penalty.

        It lies below .5 when the side above is steeper. It does not depend on how wide the belief
        is, because both sides are quadratic.
        """
        from scipy.special import ndtr

        return float(ndtr(self.shift))

    @property
    def shift(self) -> float:
        """Distance to keep from the middle of the belief, in its standard deviations."""
        from scipy.optimize import brentq

        return brentq(self._slope, -40.0, 40.0)  # pyright: ignore[reportReturnType]

    def expected(self, log_sd: float, shift: float | None = None) -> float:
        """Return the expected relative rise of the loss.

        Args:
            log_sd: standard deviation of the log of the optimum, not negative.
            shift: place of the setting, in standard deviations from the middle; None for the
                best place.

        Returns:
            A fraction of the loss; 0 when the optimum is known exactly.
        """
        place = self.shift if shift is None else shift
        low, high = _second_moments(place)
        return log_sd**2 * (self.below * low + self.above * high)

    def _slope(self, place: float) -> float:
        """Return half the derivative of the expected penalty by the place."""
        from scipy.special import ndtr

        density = math.exp(-0.5 * place**2) / math.sqrt(2 * math.pi)
        too_low, too_high = density - place * ndtr(-place), density + place * ndtr(place)
        return float(self.above * too_high - self.below * too_low)


def _second_moments(place: float) -> tuple[float, float]:
    """Return E[(X - place)^2; X > place] and E[(place - X)^2; X < place] of a standard normal X."""
    from scipy.special import ndtr

    density = math.exp(-0.5 * place**2) / math.sqrt(2 * math.pi)
    above = (1 + place**2) * float(ndtr(-place)) - place * density
    return above, 1 + place**2 - above


def fit_penalty(ratios: ArrayLike, rises: ArrayLike) -> Penalty:
    """Measure both sides of the penalty from runs beside known optima.

    Only runs between a factor 1.6 and 2.6 from the optimum take part: nearer ones show noise,
    farther ones rise faster than quadratically. The median keeps a diverging cell from deciding.

    Args:
        ratios: setting over the optimum of its cell, positive, [n].
        rises: relative rise of the loss over the least one of its cell, [n].

    Returns:
        The penalty: per side the median of rise / ln(ratio)^2.

    Raises:
        FitError: a side has fewer than two such runs, or does not rise.
    """
    log, rise = np.log(np.asarray(ratios, dtype=np.float64)), np.asarray(rises, dtype=np.float64)
    used = (np.abs(log) >= _NEAR) & (np.abs(log) <= _FAR) & np.isfinite(rise)
    sides = [used & (log < 0), used & (log > 0)]
    if min(side.sum() for side in sides) < _FEWEST_A_SIDE:
        raise FitError(
            f"a penalty needs runs on both sides of the optimum, given {sides[0].sum()} below and "
            f"{sides[1].sum()} above",
            hint="add runs at half and at twice the best setting",
        )
    return Penalty(*(float(np.median(rise[side] / log[side] ** 2)) for side in sides))


LEARNING_RATE_PENALTY = Penalty(below=0.0034 / math.log(2) ** 2, above=0.0080 / math.log(2) ** 2)
"""Half and twice the best run's learning rate: +.34 % and +.80 % loss, medians of 15 dense cells of
Li et al. 2025 (arXiv 2503.04715).  Beside the optimum of a local quadratic instead of the best run
the sides are nearer to each other, about +.4 % and +.6 %. """
