"""Principal components: the directions in which rows differ most."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch import Covariance
from steelyard.errors import ConfigError, DataError

__all__ = ["PrincipalComponents"]


@dataclass(frozen=True, kw_only=True)
class PrincipalComponents:
    """Directions of most variance.

    Attributes:
        mean: middle of the rows [D].
        directions: orthogonal, of length 1, the one of most variance first; the entry of largest
            size of each is positive [K, D].
        variances: variance of the rows along each [K].
        total: variance of the rows along all directions there are.
    """

    mean: NDArray[np.float64]
    directions: NDArray[np.float64]
    variances: NDArray[np.float64]
    total: float

    @classmethod
    def of(cls, spread: Covariance, count: int) -> "PrincipalComponents":
        """Return the components of rows whose covariance was folded, of at most 5,000 columns.

        Args:
            spread: covariance of the rows.
            count: components, 1 to the number of columns.

        Returns:
            The components.

        Raises:
            ConfigError: the number is out of range.
            DataError: fewer than two rows.

        Source: Jolliffe 2002, "Principal Component Analysis", chapter 1.
        """
        from scipy import linalg

        if not 1 <= count <= spread.width:
            raise ConfigError(
                f"{count} components of {spread.width} columns", hint=f"give 1 to {spread.width}"
            )
        if spread.count < 2:
            raise DataError(f"{spread.count} whole rows have no directions", hint="give 2 or more")
        last = spread.width - 1
        values, vectors = linalg.eigh(spread.matrix, subset_by_index=(last + 1 - count, last))
        return cls(
            mean=spread.mean,
            directions=signed(vectors.T[::-1]),
            variances=np.maximum(values[::-1], 0.0),
            total=float(np.trace(spread.matrix)),
        )

    def apply(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return how far rows lie along the directions, from the middle [N, K]."""
        return (rows - self.mean) @ self.directions.T

    def residuals(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return what the components do not explain of rows [N, D]."""
        centred = rows - self.mean
        return centred - centred @ self.directions.T @ self.directions

    @property
    def explained(self) -> float:
        """Share of the variance along the directions."""
        return float(self.variances.sum() / max(self.total, 1e-300))

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {
            "mean": self.mean,
            "directions": self.directions,
            "variances": self.variances,
            "total": np.array([self.total]),
        }

    @classmethod
    def restored(cls, sections: dict[str, NDArray[Any]]) -> "PrincipalComponents":
        """Return the components of arrays by name."""
        arrays = {name: np.array(sections[name]) for name in ("mean", "directions", "variances")}
        return cls(**arrays, total=float(sections["total"][0]))


def signed(directions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn directions so that the entry of largest size is positive: either sign is as good."""
    at = np.abs(directions).argmax(axis=1)
    signs = np.sign(directions[np.arange(len(directions)), at])
    return directions * np.where(signs == 0, 1.0, signs)[:, None]
