"""What a forecaster says of the next steps: samples or exact quantiles, and their scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from steelyard.errors import ConfigError, TraceError

__all__ = ["CRPS_LEVELS", "SampleForecast", "pinball"]

CRPS_LEVELS = tuple(level / 10 for level in range(1, 10))
"""Levels whose mean quantile loss stands for the CRPS."""
_SAMPLES = 200


def pinball(actual: np.ndarray, quantiles: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the quantile loss of each level and step.

    Args:
        actual: what came [H, ...].
        quantiles: what was said [K, H, ...].
        levels: level of each [K], in (0, 1).

    Returns:
        Loss [K, H, ...] in the unit of the series; NaN where nothing came.
    """
    over = np.asarray(actual) - quantiles
    level = np.reshape(levels, (-1,) + (1,) * (quantiles.ndim - 1))
    return np.where(over >= 0, level * over, (level - 1) * over)


@dataclass(frozen=True, eq=False)
class SampleForecast:
    """The distribution of each of the next steps of one series, or of several at once.

    Attributes:
        values: samples [S, H] or [S, H, N], or quantiles [K, H] or [K, H, N], ascending.
        levels: levels of the quantiles [K], ascending in (0, 1); None where `values` are samples.
        source: the forecaster that made it; a fallback says what it stands in for.
        item_id: series that it is of, or an empty text.
        names: names of the N series of a joint forecast.
    """

    values: np.ndarray
    levels: np.ndarray | None = None
    source: str = ""
    item_id: str = ""
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is no distribution."""
        if self.values.ndim not in (2, 3) or not len(self.values) or not self.values.shape[1]:
            raise TraceError(
                f"a forecast of shape {self.values.shape}",
                hint="give [samples, horizon] or [samples, horizon, series]",
            )
        if not np.isfinite(self.values).all():
            raise TraceError(f"the forecast of {self.source or 'a forecaster'} is not finite")
        if self.levels is not None:
            # The values are not asked to ascend: rounding may cross neighbours that are equal.
            ascending = np.diff(self.levels) > 0
            if len(self.levels) != len(self.values) or len(self.levels) < 2 or not ascending.all():
                raise ConfigError(
                    f"{len(self.levels)} levels for {len(self.values)} quantiles",
                    hint="give two or more ascending levels, one for each row of quantiles",
                )

    @property
    def horizon(self) -> int:
        """Steps forecast."""
        return self.values.shape[1]

    def quantile(self, level: float | Sequence[float] | np.ndarray) -> np.ndarray:
        """Return quantiles of each step.

        Between stored quantiles they are linear; beyond the outermost two, the tail falls
        exponentially through both.

        Args:
            level: one level or K of them, in (0, 1).

        Returns:
            [H] or [H, N] for one level, [K, H] or [K, H, N] for several.

        Raises:
            ConfigError: a level is not in (0, 1).
        """
        wanted = np.atleast_1d(np.asarray(level, float))
        if not ((wanted > 0) & (wanted < 1)).all():
            raise ConfigError(
                f"level {level} of a quantile", hint="give levels above 0 and below 1"
            )
        if self.levels is None:
            found = np.quantile(self.values, wanted, axis=0)
        else:
            found = self._between(wanted)
        return found[0] if np.ndim(level) == 0 else found

    def _between(self, wanted: np.ndarray) -> np.ndarray:
        """Interpolate stored quantiles at levels [K]."""
        levels, values = np.asarray(self.levels), self.values
        right = np.clip(np.searchsorted(levels, wanted), 1, len(levels) - 1)
        share = (wanted - levels[right - 1]) / (levels[right] - levels[right - 1])
        # Beyond the outermost two the share stays at their ends, and a tail is added to it.
        share = np.clip(share, 0, 1).reshape((-1,) + (1,) * (values.ndim - 1))
        found = values[right - 1] + share * (values[right] - values[right - 1])
        low, high = self._tails
        for place, level in enumerate(wanted):
            if level < levels[0]:
                found[place] -= low * np.log(levels[0] / level)
            elif level > levels[-1]:
                found[place] += high * np.log((1 - levels[-1]) / (1 - level))
        return found

    @cached_property
    def _tails(self) -> tuple[np.ndarray, np.ndarray]:
        """Scales of the two exponential tails, each through the outermost two quantiles."""
        levels, values = np.asarray(self.levels), self.values
        low = (values[1] - values[0]) / np.log(levels[1] / levels[0])
        high = (values[-1] - values[-2]) / np.log((1 - levels[-2]) / (1 - levels[-1]))
        return low, high

    @property
    def samples(self) -> np.ndarray:
        """Samples [S, H] or [S, H, N].

        Of quantiles, 200 evenly spaced levels, each held over all steps: sums over steps are as
        uncertain as if all steps erred together, which errs on the safe side.
        """
        if self.levels is None:
            return self.values
        return self.quantile((np.arange(_SAMPLES) + 0.5) / _SAMPLES)

    def mean(self) -> np.ndarray:
        """Return the mean of each step, [H] or [H, N]; of quantiles, that of their curve."""
        if self.levels is None:
            return self.values.mean(axis=0)
        levels, values = np.asarray(self.levels), self.values
        low, high = self._tails
        # The mean of an exponential tail lies one scale beyond the quantile where it begins.
        middle = np.trapezoid(values, levels, axis=0)
        return middle + levels[0] * (values[0] - low) + (1 - levels[-1]) * (values[-1] + high)

    def pinball(self, actual: np.ndarray, levels: Sequence[float] = CRPS_LEVELS) -> np.ndarray:
        """Return the quantile loss.

        Args:
            actual: what came [H] or [H, N]; NaN where nothing was observed.
            levels: levels in (0, 1).

        Returns:
            Loss [K, H] or [K, H, N] in the unit of the series.
        """
        return pinball(actual, self.quantile(levels), np.asarray(levels))

    def crps(self, actual: np.ndarray) -> np.ndarray:
        """Return the continuous ranked probability score of each step.

        Args:
            actual: what came [H] or [H, N]; NaN where nothing was observed.

        Returns:
            Mean of twice the quantile loss over the levels .1 to .9, [H] or [H, N], in the unit of
            the series; NaN where nothing came. Lower is better.
        """
        return 2 * self.pinball(actual).mean(axis=0)

    def covered(self, actual: np.ndarray, share: float = 0.8) -> np.ndarray:
        """Tell which steps came inside the central interval.

        Args:
            actual: what came [H] or [H, N].
            share: share of the distribution that the interval holds.

        Returns:
            bool [H] or [H, N]; False where nothing came.
        """
        low, high = self.interval(share)
        # A comparison with NaN is False, so what was not observed never counts as held.
        return (low <= actual) & (actual <= high)

    def interval(self, share: float = 0.8) -> tuple[np.ndarray, np.ndarray]:
        """Return both ends of the central interval that holds a share of the distribution."""
        low, high = self.quantile([(1 - share) / 2, (1 + share) / 2])
        return low, high

    def replaced(self, **changes: Any) -> "SampleForecast":
        """Return a copy with other fields."""
        fields = ("values", "levels", "source", "item_id", "names")
        return SampleForecast(**{name: getattr(self, name) for name in fields} | changes)
