"""Columns with numbers far out: a mean and a scale that a few rows do not make."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from steelyard.data.sketch import KllQuantiles, Moments

__all__ = ["TrimmedScale", "trimmed_scale"]

_TRIMMED, _LEAST_ROWS = 0.01, 1.5
"""Share of rows at each end that count as the next ones, and rows there at least."""
_FAR = 3.0
"""Standard deviation over that of the trimmed numbers above which few rows make it."""
_ROOM = 10.0
"""Trimmed standard deviations beyond the trimmed ends at which numbers are cut off."""
_LEVELS = 1001


@dataclass(frozen=True, kw_only=True, slots=True)
class TrimmedScale:
    """How a column with numbers far out is standardized.

    Attributes:
        mean: mean of the trimmed numbers.
        scale: their standard deviation.
        low: numbers below are cut off.
        high: numbers above are cut off.
    """

    mean: float
    scale: float
    low: float
    high: float


def trimmed_scale(sketch: "KllQuantiles", spread: "Moments") -> TrimmedScale | None:
    """Return another scale for a column whose standard deviation a few numbers make.

    Args:
        sketch: quantiles of the column.
        spread: its moments.

    Returns:
        The scale; None where mean and standard deviation say what most rows are like, or where all
        but a few rows are equal.

    Source: Tukey 1962, "The future of data analysis", section 3 (winsorized mean and variance).
    """
    if not sketch.count:
        return None
    trimmed = max(_TRIMMED, _LEAST_ROWS / sketch.count)
    if trimmed >= 0.5:
        return None
    values = np.clip(
        sketch.quantile(np.linspace(0, 1, _LEVELS)),
        *sketch.quantile(np.array([trimmed, 1 - trimmed])),
    )
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    scale, mean = float(values.std()), float(values.mean())
    # What rounding leaves of equal numbers is no spread.
    if not scale > 1e-12 * max(abs(mean), 1e-290) or spread.std <= _FAR * scale:
        return None
    reach = _ROOM * scale
    return TrimmedScale(
        mean=mean,
        scale=scale,
        low=float(values.min()) - reach,
        high=float(values.max()) + reach,
    )
