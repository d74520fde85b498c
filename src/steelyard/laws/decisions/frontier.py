"""Find the models that were among the largest training runs when they were published."""

import datetime
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.points import refuse_rows
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.growth import fit_growth

__all__ = ["above_trend", "decimal_year", "rank_at_publication", "top_at_publication"]


def decimal_year(date: datetime.date) -> float:
    """Return a date as a decimal year: 1 July 2024 is 2024.497."""
    start = datetime.date(date.year, 1, 1).toordinal()
    return date.year + (date.toordinal() - start) / (
        datetime.date(date.year + 1, 1, 1).toordinal() - start
    )


def rank_at_publication(year: ArrayLike, compute: ArrayLike) -> NDArray[np.int64]:
    """Rank each model by training compute among those published until then.

    Args:
        year: year of publication, decimal, [n]; models of one date see each other.
        compute: training compute, any unit, [n]; NaN for unknown, which is neither ranked nor
            counted.

    Returns:
        Ranks from 1, [n]; equal compute shares a rank; 0 where compute is unknown.

    Raises:
        FitError: the columns differ in length, or hold negative compute or unknown years.

    Source: Cottier et al. 2024 (arXiv 2405.21015), section 2.1: models in the top 10 of training
        compute at their release.
    """
    years, size = _columns(year, compute)
    known = np.isfinite(size)
    larger = (size[None, :] > size[:, None]) & (years[None, :] <= years[:, None])
    return np.where(known, 1 + larger.sum(axis=1), 0).astype(np.int64)


def top_at_publication(year: ArrayLike, compute: ArrayLike, count: int = 10) -> NDArray[np.bool_]:
    """Mark the models that were among the `count` largest when published.

    Args:
        year: year of publication, decimal, [n].
        compute: training compute, [n]; NaN for unknown.
        count: models at the frontier, such as 3, 5, 10 or 20.

    Returns:
        True for those at the frontier, [n].
    """
    rank = rank_at_publication(year, compute)
    return (rank >= 1) & (rank <= count)


def above_trend(year: ArrayLike, compute: ArrayLike, fraction: float = 0.25) -> NDArray[np.bool_]:
    """Mark the models that lie furthest above the trend of training compute over time.

    The other way to find the frontier, with no count in it: a line through the logarithm of all
    models' compute, and the upper `fraction` of the residuals.

    Args:
        year: year of publication, decimal, [n].
        compute: training compute, [n]; NaN for unknown, which is never marked.
        fraction: fraction of the known models to mark, 0..1.

    Returns:
        True for those far above the trend, [n].

    Raises:
        FitError: fewer than three known models, or a fraction outside 0..1.

    Source: Cottier et al. 2024 (arXiv 2405.21015), the check of its selection by the residual from
        the trend of compute.
    """
    years, size = _columns(year, compute)
    known = np.flatnonzero(np.isfinite(size))
    if not 0 < fraction < 1:
        raise FitError(
            f"a fraction of {fraction} marks nothing or everything",
            hint="give a fraction between 0 and 1, such as 0.25",
        )
    residuals = fit_growth(years[known], size[known], bootstrap=Bootstrap(count=0)).residuals
    marked = np.zeros(len(years), dtype=bool)
    marked[known[residuals > np.quantile(residuals, 1 - fraction)]] = True
    return marked


def _columns(
    year: ArrayLike | Sequence[float], compute: ArrayLike | Sequence[float]
) -> tuple[Array, Array]:
    """Turn both columns into float64 and refuse what has no rank."""
    years, size = np.asarray(year, dtype=np.float64), np.asarray(compute, dtype=np.float64)
    if years.shape != size.shape or years.ndim != 1:
        raise FitError(
            f"years {years.shape} and compute {size.shape} must be columns of one length",
            hint="give one of each per model",
        )
    refuse_rows(~np.isfinite(years), "years must be finite", years, "drop models without a date")
    unknown = "give NaN where compute is unknown"
    refuse_rows(size <= 0, "compute must be positive", size, unknown)
    return years, size
