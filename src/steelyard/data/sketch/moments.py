"""Mean, variance, skewness, kurtosis and covariance of a stream, merged without cancellation."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError
from steelyard.jit import njit

__all__ = ["Covariance", "Moments"]

_COUNT, _MEAN, _SECOND, _THIRD, _FOURTH = range(5)
_BLOCK = 4096


@njit()
def _merge(into: np.ndarray, other: np.ndarray) -> None:
    """Add the powers of one part to another's, about their common mean."""
    n_a, n_b = into[_COUNT], other[_COUNT]
    if n_b == 0:
        return
    n = n_a + n_b
    delta = other[_MEAN] - into[_MEAN]
    step = delta / n
    second = delta * step * n_a * n_b
    fourth = into[_FOURTH] + other[_FOURTH]
    fourth += second * step * step * (n_a * n_a - n_a * n_b + n_b * n_b)
    fourth += 6 * step * step * (n_a * n_a * other[_SECOND] + n_b * n_b * into[_SECOND])
    fourth += 4 * step * (n_a * other[_THIRD] - n_b * into[_THIRD])
    third = into[_THIRD] + other[_THIRD] + second * step * (n_a - n_b)
    third += 3 * step * (n_a * other[_SECOND] - n_b * into[_SECOND])
    into[_SECOND] += other[_SECOND] + second
    into[_THIRD], into[_FOURTH] = third, fourth
    into[_MEAN] += step * n_b
    into[_COUNT] = n


@njit(fastmath={"reassoc"})
def _total(values: np.ndarray) -> float:
    """Return the sum of values."""
    total = 0.0
    for value in values:
        total += value
    return total


@njit(fastmath={"reassoc"})
def _powers(values: np.ndarray, mean: float) -> tuple[float, float, float, float]:
    """Return the sums of the first to fourth powers about a mean."""
    first = second = third = fourth = 0.0
    for value in values:
        apart = value - mean
        first += apart
        square = apart * apart
        second += square
        third += square * apart
        fourth += square * square
    return first, second, third, fourth


@njit(error_model="numpy")
def _add(state: np.ndarray, values: np.ndarray) -> None:
    """Add finite values, block by block."""
    part = np.zeros(5)
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        total = _total(block)
        # One value that is not finite makes the sum so; nearly all blocks have none.
        if not np.isfinite(total):
            block = block[np.isfinite(block)]
            total = _total(block)
        if len(block):
            mean = total / len(block)
            first, second, third, fourth = _powers(block, mean)
            # What is left about the mean is what rounding of the sum took from it.
            off = first / len(block)
            part[_COUNT], part[_MEAN] = len(block), mean + off
            part[_SECOND] = second - off * first
            part[_THIRD] = third - 3 * off * second
            part[_FOURTH] = fourth - 4 * off * third
            _merge(state, part)


class Moments:
    """Sums of powers about the mean of the finite values of a stream.

    Source: Pebay 2008, "Formulas for robust, one-pass parallel computation of covariances and
        arbitrary-order statistical moments".
    """

    def __init__(self) -> None:
        """Begin without values."""
        self._state = np.zeros(5)

    def update(self, values: ArrayLike) -> None:
        """Add values; those that are not finite are left out.

        Args:
            values: float64, [rows].
        """
        _add(self._state, np.ascontiguousarray(values, np.float64))

    def merge(self, other: "Moments") -> None:
        """Take in another sketch; it is left as it is."""
        _merge(self._state, other._state.copy())

    @property
    def count(self) -> int:
        """Finite values seen."""
        return int(self._state[_COUNT])

    @property
    def mean(self) -> float:
        """Their mean, NaN without any."""
        return float(self._state[_MEAN]) if self.count else math.nan

    @property
    def variance(self) -> float:
        """Their unbiased variance, NaN of fewer than two."""
        return float(self._state[_SECOND]) / (self.count - 1) if self.count > 1 else math.nan

    @property
    def std(self) -> float:
        """Square root of the variance."""
        return math.sqrt(self.variance) if self.count > 1 else math.nan

    @property
    def skewness(self) -> float:
        """Third standardized moment, NaN where all values are equal."""
        second = float(self._state[_SECOND])
        if second <= 0:
            return math.nan
        return math.sqrt(self.count) * float(self._state[_THIRD]) / second**1.5

    @property
    def kurtosis(self) -> float:
        """Fourth standardized moment less 3, NaN where all values are equal."""
        second = float(self._state[_SECOND])
        return self.count * float(self._state[_FOURTH]) / second**2 - 3 if second > 0 else math.nan

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays by name."""
        return {"powers": self._state.copy()}

    @classmethod
    def of(cls, sections: dict[str, NDArray[Any]]) -> "Moments":
        """Return the sketch of a state."""
        made = cls()
        made._state = np.array(sections["powers"], float)
        return made


class Covariance:
    """Means and products about them of several columns; rows with a gap are left out.

    Source: Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance".

    Attributes:
        width: columns.
        count: whole rows seen.
        mean: [columns].
    """

    def __init__(self, width: int) -> None:
        """Begin without rows.

        Args:
            width: columns, 1 or more.

        Raises:
            ConfigError: there are none.
        """
        if width < 1:
            raise ConfigError(f"{width} columns, but it must be 1 or more")
        self.width, self.count = width, 0
        self.mean = np.zeros(width)
        self._products = np.zeros((width, width))

    def update(self, rows: ArrayLike) -> None:
        """Add rows, [rows, columns].

        Args:
            rows: float64; a row with a value that is not finite is left out.
        """
        given = np.asarray(rows, np.float64).reshape(-1, self.width)
        # One value that is not finite makes the sum so; nearly all batches have none.
        total = given.sum(axis=0)
        if not np.isfinite(total).all():
            given = given[np.isfinite(given).all(axis=1)]
            total = given.sum(axis=0)
        if len(given):
            mean = total / len(given)
            apart = given - mean
            self._take(len(given), mean, apart.T @ apart)

    def merge(self, other: "Covariance") -> None:
        """Take in another sketch.

        Args:
            other: one of as many columns; it is left as it is.

        Raises:
            ConfigError: it has another number of columns.
        """
        if other.width != self.width:
            raise ConfigError(f"{self.width} and {other.width} columns cannot be merged")
        if other.count:
            self._take(other.count, other.mean, other._products)

    def _take(self, count: int, mean: NDArray[Any], products: NDArray[Any]) -> None:
        total = self.count + count
        delta = mean - self.mean
        self._products = (
            self._products + products + np.outer(delta, delta) * (self.count * count / total)
        )
        self.mean = self.mean + delta * (count / total)
        self.count = total

    @property
    def matrix(self) -> NDArray[np.float64]:
        """Unbiased covariances, [columns, columns]; NaN of fewer than two rows."""
        if self.count < 2:
            return np.full((self.width, self.width), np.nan)
        return self._products / (self.count - 1)

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays by name."""
        return {"count": np.array([self.count]), "mean": self.mean, "products": self._products}

    @classmethod
    def of(cls, sections: dict[str, NDArray[Any]]) -> "Covariance":
        """Return the sketch of a state."""
        made = cls(len(sections["mean"]))
        made.count = int(sections["count"][0])
        made.mean = np.array(sections["mean"], float)
        made._products = np.array(sections["products"], float)
        return made
