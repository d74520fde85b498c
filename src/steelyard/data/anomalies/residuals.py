"""What the main components of rows do not explain."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from steelyard.data.features.pca import PrincipalComponents
from steelyard.data.sketch import Covariance

__all__ = ["ResidualDetector", "residual_threshold"]


def residual_threshold(variances: NDArray[np.float64], alpha: float) -> float:
    """Return what squared residuals of normal rows exceed with a probability.

    Args:
        variances: variances along the directions that are not explained.
        alpha: the probability.

    Returns:
        The squared length.

    Source: Jackson and Mudholkar 1979, equation 3.2.
    """
    first, second, third = ((variances**power).sum() for power in (1, 2, 3))
    if first <= 1e-12:
        # Nothing is left over: any residual that is more than rounding is strange.
        return 1e-9
    power = 1 - 2 * first * third / (3 * second**2)
    quantile = special.ndtri(1 - alpha)
    inner = quantile * np.sqrt(2 * second * power**2) / first
    inner += 1 + second * power * (power - 1) / first**2
    return float(first * max(inner, 1e-12) ** (1 / power))


@dataclass(frozen=True, kw_only=True)
class ResidualDetector:
    """Squared lengths of residuals.

    Attributes:
        components: directions that explain most rows.
    """

    components: PrincipalComponents

    @classmethod
    def fit(cls, spread: Covariance, explained: float = 0.9) -> "ResidualDetector":
        """Keep so many components that they explain a share of the variance, all but one at most.

        Args:
            spread: covariance of the rows.
            explained: the share.

        Returns:
            The detector.

        Raises:
            DataError: fewer than two rows.
        """
        whole = PrincipalComponents.of(spread, spread.width)
        shares = np.cumsum(whole.variances) / max(whole.total, 1e-300)
        kept = min(int(np.searchsorted(shares, explained)) + 1, max(spread.width - 1, 1))
        return cls(components=PrincipalComponents.of(spread, kept))

    def score(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return squared residuals [N]."""
        return (self.components.residuals(rows) ** 2).sum(axis=1)

    def blame(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return squared residuals by column [N, D]."""
        return self.components.residuals(rows) ** 2
