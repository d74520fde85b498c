"""Exponential growth over the years, a straight line of the logarithm over time.

It is fitted by least squares on the common engine; `steelyard.laws.forms.growth_line` answers what
one asks of the line.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.fit import fit
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array, Derivatives, Term, Transform
from steelyard.laws.forms.terms import positive

__all__ = ["Growth", "fit_growth", "growth"]

_LEAST_POINTS = 3


@dataclass(frozen=True)
class Growth(Term):
    """The quantity c * g^((year - year0) / period).

    Attributes:
        year0: year at which the quantity is c.
        period_years: years in which it grows by the factor g.
    """

    year0: float
    period_years: float

    transforms: ClassVar[dict[str, Transform]] = {"c": "log", "g": "log"}
    inputs: ClassVar[tuple[str, ...]] = ("year",)

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log value, [S, n]; see `Term.evaluate`."""
        periods = (inputs["year"] - self.year0) / self.period_years
        return theta["c"] + theta["g"] * periods, {"c": 1.0, "g": periods}


def growth(year0: float | str = 2020.0, period_years: float | str = 1.0) -> Law:
    """Value = c * g^((year - year0) / period).

    Args:
        year0: year at which the value is c; near the middle of the points c and g are determined
            independently.
        period_years: years per factor g, such as 2 for growth per two years.

    Returns:
        The law with input "year" and 2 parameters. It is linear in its logarithm, so one start is
        enough.

    Raises:
        FitError: the year is not a number or the period not positive.

    Source: Gholami et al. 2024 (arXiv 2403.14123), figure 1; Cottier et al. 2024 (arXiv
        2405.21015), section 3.
    """
    try:
        term = Growth(float(year0), float(period_years))
    except ValueError as error:
        raise FitError(
            f"growth needs numbers: {error}",
            hint="write it as growth:YEAR0:PERIOD, such as growth:2020:2",
        ) from error
    if not (np.isfinite(term.year0) and 0 < term.period_years < np.inf):
        raise FitError(
            f"growth: year0 {term.year0:g} must be finite and the period {term.period_years:g} "
            f"positive"
        )
    exponent = (
        f"year - {term.year0:.10g}"
        if term.period_years == 1
        else f"(year - {term.year0:.10g}) / {term.period_years:.10g}"
    )
    return Law(
        name=f"growth:{term.year0:.17g}:{term.period_years:.17g}",
        term=term,
        parameters=(positive("c", -700.0, 700.0, 0.0), positive("g", -50.0, 50.0, 0.0)),
        formula=f"c * g^({exponent})",
        conditions=("year",),
    )


def fit_growth(
    year: ArrayLike,
    value: ArrayLike,
    *,
    period_years: float = 1.0,
    year0: float | None = None,
    weights: ArrayLike | None = None,
    bootstrap: Bootstrap = Bootstrap(count=1000),
    source: str = "",
) -> Fit:
    """Fit exponential growth to dated values by least squares of the logarithm.

    Args:
        year: decimal years, [n].
        value: positive, any unit, [n].
        period_years: years per factor g.
        year0: year at which the value is c; None for the mean year, rounded.
        weights: weights, not negative, [n]; None for equal ones.
        bootstrap: resampled fits for the "bootstrap" intervals.
        source: where the values come from, kept in the fit.

    Returns:
        A fit of `growth`, for the other functions of this module.

    Raises:
        FitError: fewer than three points, all of one year, or values without a logarithm.
    """
    years = np.atleast_1d(np.asarray(year, dtype=np.float64))
    if len(years) < _LEAST_POINTS:
        raise FitError(
            f"{len(years)} points make no trend; at least {_LEAST_POINTS} are needed",
            hint="add dated values",
        )
    if np.ptp(years) == 0:
        raise FitError(f"every value is of the year {years[0]:g}", hint="add values of other years")
    # At the mean year level and growth are determined independently; a whole year keeps the formula
    # readable.
    law = growth(round(float(years.mean())) if year0 is None else year0, period_years)
    return fit(
        law,
        {"year": years},
        value,
        weights=weights,
        delta=float("inf"),
        prior=None,
        bootstrap=bootstrap,
        source=source,
    )
