"""Local outlier factor: rows in thinner places than their neighbours, on a sample of the rows."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.nearest import nearest_rows
from steelyard.errors import DataError

__all__ = ["LocalOutliers"]

_LEAST_REACH = 1e-10


@dataclass(frozen=True, kw_only=True)
class LocalOutliers:
    """A sample with the density around each of its rows.

    Attributes:
        rows: the sample [M, D].
        count: neighbours that are looked at.
        reaches: distance of each row of the sample to the last of its neighbours [M].
        densities: one over the mean distance at which its neighbours reach it [M].

    Source: Breunig et al. 2000 (LOF), definitions 5 to 7.
    """

    rows: NDArray[np.float32]
    count: int
    reaches: NDArray[np.float64]
    densities: NDArray[np.float64]

    @classmethod
    def fit(cls, rows: NDArray[np.floating], count: int = 20) -> "LocalOutliers":
        """Keep rows.

        Args:
            rows: the sample, mostly of usual rows [M, D].
            count: neighbours, fewer where there are no more rows.

        Returns:
            The detector.

        Raises:
            DataError: fewer than two rows.
        """
        if len(rows) < 2:
            raise DataError("neighbours need at least two rows")
        kept = np.ascontiguousarray(rows, np.float32)
        count = min(count, len(kept) - 1)
        places, squares = nearest_rows(kept, kept, count + 1)
        places, apart = _without_self(places, np.sqrt(squares), np.arange(len(kept)))
        reaches = apart[:, -1]
        reached = np.maximum(apart, reaches[places]).mean(axis=1)
        densities = 1 / np.maximum(reached, _LEAST_REACH)
        return cls(rows=kept, count=count, reaches=reaches, densities=densities)

    def _neighbours(
        self, rows: NDArray[np.floating]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return neighbours and distances [N, count]; a row of the sample is not its own."""
        asked = np.ascontiguousarray(rows, np.float32)
        places, squares = nearest_rows(self.rows, asked, self.count + 1)
        # Sums of squares cancel: equal rows are looked for, not distances of 0.
        first = self.rows[places[:, 0]]
        own = np.where((first == asked).all(axis=1), places[:, 0], -1)
        return _without_self(places, np.sqrt(squares), own)

    def score(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the mean density of neighbours over that of rows, about 1 for usual ones [N]."""
        places, apart = self._neighbours(rows)
        reached = np.maximum(apart, self.reaches[places]).mean(axis=1)
        return self.densities[places].mean(axis=1) * np.maximum(reached, _LEAST_REACH)

    def blame(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return squared distances from the mean of the neighbours by column [N, D]."""
        places, _ = self._neighbours(rows)
        return (np.asarray(rows, np.float64) - self.rows[places].mean(axis=1)) ** 2


def _without_self(
    places: NDArray[np.int64], apart: NDArray[np.float64], own: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Leave one neighbour out of each line: the row itself, else the last."""
    is_own = places == own[:, None]
    out = np.where(is_own.any(axis=1), is_own.argmax(axis=1), places.shape[1] - 1)
    kept = np.arange(places.shape[1]) != out[:, None]
    shape = len(places), places.shape[1] - 1
    return places[kept].reshape(shape), apart[kept].reshape(shape)
