"""The spectrum of a task: variance of each feature, power of the target along it, and the rest.

Modes that are close together behave alike, so long power laws are kept in bins: the first modes one
by one, then bins of equal width in log index. A million modes take about two hundred bins.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import ConfigError
from steelyard.laws.fitting.terms import Array

__all__ = ["Spectrum"]

_SINGLE_MODES = 64
_BINS_PER_DECADE = 32


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Modes of a linear task, in bins of like ones.

    Attributes:
        variance: variance of one feature of each bin, lambda_k, positive, [K].
        power: power of the target along one mode of each bin, lambda_k w_k^2, not negative, [K].
        count: modes in each bin, positive, [K].
        tail_power: power of the target beyond the last mode, which no student can learn; only
            reported, not part of a loss.
    """

    variance: Array
    power: Array
    count: Array = field(default_factory=lambda: np.ones(0))
    tail_power: float = 0.0

    def __post_init__(self) -> None:
        """Turn the columns into float64 and refuse what is no spectrum."""
        count = np.ones(np.size(self.variance)) if np.size(self.count) == 0 else self.count
        columns = {"variance": self.variance, "power": self.power, "count": count}
        for name, values in columns.items():
            column = np.atleast_1d(np.asarray(values, dtype=np.float64))
            object.__setattr__(self, name, column)
            lowest = 0.0 if name == "power" else np.finfo(np.float64).tiny
            bad = np.flatnonzero(~(np.isfinite(column) & (column >= lowest)))
            if column.ndim != 1 or column.shape != np.shape(self.variance) or len(bad):
                where = (
                    f"mode {bad[0] + 1} is {column[bad[0]]:g}"
                    if len(bad)
                    else f"shape {column.shape}"
                )
                sign = "not negative" if name == "power" else "positive"
                raise ConfigError(
                    f"spectrum: {name} must be {sign} and finite, one per mode; {where}",
                    hint="drop modes without variance; a negative eigenvalue is round-off of a "
                    "covariance, set its mode aside",
                )
        if not self.power.sum() > 0 or not self.tail_power >= 0:
            raise ConfigError(
                "spectrum: the target has no power along any mode",
                hint="a constant target needs no model; center it first",
            )

    @classmethod
    def power_law(cls, source: float, capacity: float, modes: int) -> "Spectrum":
        """Make variance k^-capacity and power k^-source for k = 1 .. modes.

        Args:
            source: a, above 1, or the loss of an untrained student would be infinite.
            capacity: b, positive; above 1 for a finite total variance.
            modes: M, at least 1; more than a few hundred are binned, so 1e9 are as quick as 1e4.

        Returns:
            The spectrum; sums over a bin agree with sums over its modes to about 1e-4.

        Raises:
            ConfigError: an exponent or the number of modes is out of range.

        Source: Bordelon, Atanasov, Pehlevan 2024 (arXiv 2402.01092), equation 8.
        """
        if not 1 < source < np.inf or not 0 < capacity < np.inf:
            raise ConfigError(
                f"power-law spectrum: source exponent a = {source:g} must be above 1 and capacity "
                f"exponent b = {capacity:g} above 0",
                hint="with a <= 1 the target's power does not sum to a finite loss",
            )
        if not 1 <= modes < 1e15:
            raise ConfigError(f"power-law spectrum: {modes:g} modes, allowed are 1 to 1e15")
        first, last = _edges(int(modes))
        count = last - first + 1
        variance, power = (
            _power_sum(first, last, exponent) / count for exponent in (capacity, source)
        )
        return cls(
            variance,
            power,
            count,
            tail_power=float(_power_sum(np.array([modes + 1.0]), np.array([np.inf]), source)[0]),
        )

    @property
    def modes(self) -> float:
        """Number of modes, M."""
        return float(self.count.sum())

    @property
    def total_power(self) -> float:
        """Power of the target along all modes: the test loss before the first step."""
        return float(self.count @ self.power)

    @property
    def trace(self) -> float:
        """Sum of the variances of all modes."""
        return float(self.count @ self.variance)

    def expanded(self, limit: int = 1_000_000) -> tuple[Array, Array]:
        """Return variance and power of every single mode, for a simulation.

        Args:
            limit: most modes allowed.

        Returns:
            Variance and power, [M] each.

        Raises:
            ConfigError: there are more modes than the limit.
        """
        if self.modes > limit:
            raise ConfigError(
                f"{self.modes:g} modes are too many to simulate, the limit is {limit}",
                hint="make the model with fewer modes",
            )
        times = self.count.astype(np.int64)
        return np.repeat(self.variance, times), np.repeat(self.power, times)

    def unlearned_share(self, loss: ArrayLike) -> Array:
        """Say which share of the loss of an endless spectrum is missing because the modes end.

        Args:
            loss: loss of this spectrum, [...].

        Returns:
            tail_power / (loss + tail_power), [...]: an upper bound of the truncation error,
            relative.
        """
        return self.tail_power / (np.asarray(loss, dtype=np.float64) + self.tail_power)


def _edges(modes: int) -> tuple[Array, Array]:
    """Return first and last index of every bin, from 1."""
    single = np.arange(1, min(modes, _SINGLE_MODES) + 1)
    most = max(modes, _SINGLE_MODES)
    bins = int(np.ceil(np.log10(most / _SINGLE_MODES) * _BINS_PER_DECADE))
    rest = np.unique(np.round(np.geomspace(_SINGLE_MODES, most, bins + 1)))
    last = np.concatenate([single, rest[rest > _SINGLE_MODES]]).astype(np.float64)
    return np.concatenate([[1.0], last[:-1] + 1]), last


def _power_sum(first: Array, last: Array, exponent: float) -> Array:
    """Sum k^-exponent from first to last by the midpoint rule of Euler and Maclaurin."""

    def integral(edge: Array) -> Array:
        if exponent == 1:
            return np.log(edge)
        return edge ** (1 - exponent) / (1 - exponent)

    def slope(edge: Array) -> Array:
        return -exponent * edge ** (-exponent - 1)

    low, high = first - 0.5, last + 0.5
    smooth = integral(high) - integral(low) - (slope(high) - slope(low)) / 24
    # A single mode needs no integral, whose error is largest at k = 1.
    return np.where(first == last, first**-exponent, smooth)
