"""Random windows of a set of series, as a pure function of an index and a seed."""

import numpy as np

from steelyard.errors import TraceError
from steelyard.operate.series.series_set import SeriesSet

__all__ = ["WindowSampler"]


class WindowSampler:
    """Draws windows: the series in proportion to its length, the place uniformly.

    Source: Woo et al. 2023 (arXiv 2310.05063), section 4: sampling of training windows.
    """

    def __init__(self, series: SeriesSet, length: int, *, shortest: int = 0, seed: int = 0) -> None:
        """Count the places where a window may end.

        Args:
            series: what is drawn from.
            length: steps of a window.
            shortest: fewest steps of its series that a window holds; a shorter window is filled
                with NaN at its beginning. 0 draws whole windows only.
            seed: seed of the draws.

        Raises:
            TraceError: no series is long enough.
        """
        self.series = series
        self.length = length
        self._seed = seed
        self._least = min(shortest or length, length)
        places = np.maximum(np.asarray(series.lengths) - self._least + 1, 0)
        self._ends = np.cumsum(places)
        if not len(places) or self._ends[-1] == 0:
            raise TraceError(
                f"no series has {self._least} values",
                hint="lower the context or the horizon, or give longer series",
            )

    def batch(self, index: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw the windows of a batch.

        Args:
            index: number of the batch, from 0; equal numbers draw equal windows.
            size: windows.

        Returns:
            Values [size, length], NaN where nothing was observed or the series had not begun; and
            the series of each, int64 [size].
        """
        # A generator of the batch's own: whoever goes on after a stop draws what would have come.
        drawn = np.random.default_rng((self._seed, index)).integers(self._ends[-1], size=size)
        rows = np.searchsorted(self._ends, drawn, side="right")
        before = np.where(rows > 0, self._ends[rows - 1], 0)
        ends = drawn - before + self._least
        first = np.asarray(self.series.offsets)[rows]
        places = (first + ends)[:, None] + np.arange(-self.length, 0)
        if self._least == self.length:
            return self.series.values[places], rows
        inside = places >= first[:, None]
        # Places before the series lie in the one before it, and must not be read as its past.
        values = self.series.values[np.where(inside, places, 0)]
        return np.where(inside, values, np.nan), rows
