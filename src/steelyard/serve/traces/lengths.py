"""Lengths drawn from published statistics: a mean and a few quantiles."""

from dataclasses import dataclass

import numpy as np

__all__ = ["LengthStatistics"]

_LEVELS = np.array([0.0, 0.5, 0.7, 0.9, 0.95, 0.99, 1.0])
_GRID = (np.arange(400) + 0.5) / 400
_SHORTEST = np.log(0.1)


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """Statistics of a length in tokens.

    Attributes:
        mean: mean length of all requests.
        quantiles: lengths at 50, 90, 95 and 99 %, not falling.
    """

    mean: float
    quantiles: tuple[float, float, float, float]

    def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Draw lengths by the inverse of their distribution function.

        The function is log-linear between the quantiles. The lower end, then the point between
        median and 90 %, are chosen so that the mean comes out, as far as it can.

        Args:
            generator: source of randomness.
            count: lengths to draw.

        Returns:
            Whole numbers of at least 1, [count].
        """
        levels, logs = self._curve()
        return np.maximum(
            np.rint(np.exp(np.interp(generator.random(count), levels, logs))), 1
        ).astype(np.int64)

    def _curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Return levels and logarithms of lengths, the ends included."""
        known = np.log(np.maximum.accumulate(np.maximum(self.quantiles, 1.0)))
        # Nothing is known beyond the last quantile: the tail goes on as it came, at most doubling.
        top = known[3] + min(known[3] - known[2], np.log(2.0))
        low = 0.0
        high = 3.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if _mean(_bent(known, top, middle)) < self.mean else (low, middle)
            )
        return _LEVELS, _bent(known, top, low)


def _bent(known: np.ndarray, top: float, bend: float) -> np.ndarray:
    """Return the logarithms at `_LEVELS`; the mean rises with `bend` from 0 to 3.

    From 1 to 2 it lifts the lower end up to the median; below it lowers the point between the
    median and 90 %, above it lifts that.
    """
    bottom = _SHORTEST + (known[0] - _SHORTEST) * np.clip(bend - 1.0, 0.0, 1.0)
    weight = np.clip(bend, 0.0, 1.0) / 2 + np.clip(bend - 2.0, 0.0, 1.0) / 2
    return np.array([bottom, known[0], known[0] + weight * (known[1] - known[0]), *known[1:], top])


def _mean(logs: np.ndarray) -> float:
    """Return the mean of the drawn lengths, those below 1 counted as 1, on a fine grid."""
    return float(np.maximum(np.exp(np.interp(_GRID, _LEVELS, logs)), 1.0).mean())
