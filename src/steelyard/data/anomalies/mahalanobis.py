"""Distance from the middle of the rows, in the scale of their covariance."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch import Covariance
from steelyard.errors import DataError

__all__ = ["MahalanobisDetector", "shrunk_covariance"]

_Rows = NDArray[np.floating]
_KEPT = 0.975
"""Share of rows, the nearest ones, that the middle and covariance are found from in the end."""


def shrunk_covariance(spread: Covariance) -> NDArray[np.float64]:
    """Return the covariance drawn towards equal variances, so that it has an inverse.

    Args:
        spread: covariance of two or more rows.

    Returns:
        [D, D].

    Source: Chen, Wiesel, Eldar and Hero 2010 (arXiv 0907.4698), equation 23 (OAS).
    """
    given, width = spread.matrix, spread.width
    trace, squares = float(np.trace(given)), float((given**2).sum())
    above = (1 - 2 / width) * squares + trace**2
    below = (spread.count + 1 - 2 / width) * (squares - trace**2 / width)
    share = min(1.0, above / below) if below > 0 else 1.0
    # Columns that repeat others leave no direction without variance.
    least = max(share * trace / width, 1e-9 * trace / width, 1e-300)
    return (1 - share) * given + least * np.eye(width)


@dataclass(frozen=True, kw_only=True)
class MahalanobisDetector:
    """Squared distances from the middle.

    Attributes:
        mean: middle [D].
        precision: inverse of the covariance [D, D].

    Source: Mahalanobis 1936; rows far out are left out once, as in Rousseeuw and van Driessen
        1999 (one concentration step of FAST-MCD).
    """

    mean: NDArray[np.float64]
    precision: NDArray[np.float64]

    @classmethod
    def fit(cls, blocks: Callable[[], Iterable[_Rows]]) -> "MahalanobisDetector":
        """Find middle and covariance in two passes.

        Args:
            blocks: returns the rows, some at a time [N, D], the same ones at each call.

        Returns:
            The detector.

        Raises:
            DataError: fewer than two rows.
        """
        first = cls._of(blocks(), lambda rows: np.ones(len(rows), bool))
        scores = np.concatenate([first.score(rows) for rows in blocks()])
        level = float(np.quantile(scores, _KEPT))
        return cls._of(blocks(), lambda rows: first.score(rows) <= level)

    @classmethod
    def _of(
        cls, blocks: Iterable[_Rows], chosen: Callable[[_Rows], NDArray[np.bool_]]
    ) -> "MahalanobisDetector":
        """Return the detector of chosen rows."""
        spread: Covariance | None = None
        for rows in blocks:
            spread = spread or Covariance(rows.shape[1])
            spread.update(rows[chosen(rows)])
        if spread is None or spread.count < 2:
            raise DataError("a covariance needs at least two rows")
        inverse = np.linalg.inv(shrunk_covariance(spread)).astype(np.float64)
        return cls(mean=spread.mean, precision=inverse)

    def score(self, rows: _Rows) -> NDArray[np.float64]:
        """Return squared distances [N]."""
        apart = rows - self.mean
        return np.einsum("nd,nd->n", apart @ self.precision, apart)

    def blame(self, rows: _Rows) -> NDArray[np.float64]:
        """Return how much less the squared distance would be if a column were as others foretell.

        Args:
            rows: [N, D].

        Returns:
            [N, D].
        """
        pulled = (rows - self.mean) @ self.precision
        return pulled**2 / np.diag(self.precision)
