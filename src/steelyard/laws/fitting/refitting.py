"""Fits of some of the points: without a few rows, or without the largest ones, then predicted."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.fit import fit
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.holdout import largest
from steelyard.laws.fitting.terms import Array

__all__ = ["Holdout", "hold_out", "without"]


def without(fitted: Fit, rows: Sequence[int] | NDArray[np.int64]) -> Fit:
    """Fit again without some points.

    Args:
        fitted: fit that has its points.
        rows: numbers of the points to leave out, the first row is 0.

    Returns:
        The fit of the others, made the same way.

    Raises:
        FitError: too few points remain.
    """
    kept = np.setdiff1d(np.arange(len(fitted.target)), np.asarray(rows, dtype=np.int64))
    clusters = fitted.clusters[kept]
    has_groups = 1 < len(np.unique(clusters)) < len(clusters)
    return fit(
        fitted.law,
        {name: column[kept] for name, column in fitted.inputs.items()},
        fitted.target[kept],
        weights=fitted.weights[kept],
        groups=clusters if has_groups else None,
        bootstrap=Bootstrap(count=len(fitted.samples), seed=fitted.seed),
        delta=fitted.delta,
        prior=fitted.prior or None,
        source=fitted.source,
    )


@dataclass(frozen=True, slots=True)
class Holdout:
    """The points left out, as measured and as predicted by a fit of the others.

    Attributes:
        fit: fit of the smaller points.
        inputs: inputs of the held points, [m] each.
        measured: targets of the held points, [m].
        predicted: predictions of the fit, [m].
        low: lower ends of the 80 % intervals, [m].
        high: upper ends, [m].
    """

    fit: Fit
    inputs: dict[str, Array]
    measured: Array
    predicted: Array
    low: Array
    high: Array

    @property
    def mean_relative_error(self) -> float:
        """Mean of |predicted - measured| / measured, a fraction."""
        return float(np.mean(np.abs(self.predicted - self.measured) / self.measured))

    @property
    def coverage(self) -> float:
        """Fraction of held points inside their 80 % interval."""
        return float(np.mean((self.low <= self.measured) & (self.measured <= self.high)))


def hold_out(fitted: Fit, along: str = "", fraction: float = 0.25) -> Holdout:
    """Fit again without the largest points and predict them.

    Args:
        fitted: fit that has its points.
        along: input whose largest values are left out; empty for the product of all inputs.
        fraction: upper part of the range of log sizes that is left out, 0..1.

    Returns:
        The held points with measured and predicted values.

    Raises:
        FitError: no such input, no points, nothing would be left out, or too little would remain.
    """
    if along and along not in fitted.inputs:
        raise FitError(
            f"cannot hold out along {along!r}",
            hint=f"inputs of this fit: {', '.join(fitted.inputs) or 'none, it has no points'}",
        )
    if not fitted.inputs or not 0 < fraction < 1:
        raise FitError("a holdout needs a fit with points and a fraction between 0 and 1")
    axes = (along,) if along else fitted.law.axes
    size = np.sum([np.log(fitted.inputs[name]) for name in axes], axis=0)
    held = np.flatnonzero(largest(size, fraction))
    with warnings.catch_warnings():
        # Fewer points are what a holdout is about; warnings of it would be noise.
        warnings.simplefilter("ignore", SteelyardWarning)
        smaller = without(fitted, held)
    inputs = {name: column[held] for name, column in fitted.inputs.items()}
    said = smaller.predict(inputs)
    return Holdout(smaller, inputs, fitted.target[held], said.value, said.low, said.high)
