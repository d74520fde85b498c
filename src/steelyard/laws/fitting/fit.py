"""The one verb of the room: measured points in, a fitted law with honest intervals out.

All points, each group of points on its own, or some of them: without a few rows, or without the
largest, which are then predicted.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.holdout import ASSUMED_DRIFT, largest, measure_drift
from steelyard.laws.fitting.law import Law, Prior
from steelyard.laws.fitting.points import Points, named_column
from steelyard.laws.fitting.study import Study
from steelyard.laws.fitting.terms import Array

__all__ = ["Holdout", "beliefs", "fit", "fit_each", "hold_out", "without"]

_FEW_POINTS_PER_PARAMETER = 4
"""Below this a law can follow the noise of single runs into absurd exponents; above it the weak
priors would change little and yet make every fit depend on them."""

PriorChoice = Mapping[str, Prior] | Literal["auto"] | None


def fit(
    law: Law,
    points: Mapping[str, ArrayLike],
    target: ArrayLike | str,
    *,
    starts: Array | Literal["auto"] = "auto",
    bootstrap: Bootstrap = Bootstrap(),
    delta: float = 1e-3,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    prior: PriorChoice = "auto",
    source: str = "",
) -> Fit:
    """Fit a law to measured points.

    The sum of Huber losses of the log residuals is minimized from many starts at once, then for
    every bootstrap from the best optimum, then for fits that leave the largest points out, whose
    errors widen the prediction intervals beyond the points.

    Args:
        law: what to fit, such as `chinchilla()`.
        points: values by input of the law in natural units, [n], such as a `RunTable`; further
            columns are ignored.
        target: positive, [n], such as losses in nats per token, or the name of a column of
            `points`.
        starts: fitted coordinates [S, P], or "auto" for the law's own grid.
        bootstrap: how often, from which seed and in which way the points are resampled for the
            intervals.
        delta: where the Huber loss turns linear, in log units; infinite for least squares.
        weights: not negative, [n]; none for equal ones.
        groups: labels of points that are drawn together in the bootstrap, [n], such as the
            checkpoints of one run.
        prior: weak beliefs by parameter in fitted coordinates; "auto" takes the law's own below
            four points per parameter and none otherwise; None for never.
        source: where the points come from, kept in the fit; that of the table when it has one.

    Returns:
        The fit; same arguments, same numbers.

    Raises:
        FitError: points that do not allow the fit; rows and columns are named.

    Example:
        >>> fitted = fit(chinchilla(), {"parameters": n, "tokens": d}, loss)  # doctest: +SKIP
        >>> fitted.interval("alpha")  # doctest: +SKIP
        (0.341, 0.355)

    Source: Hoffmann et al. 2022 (arXiv 2203.15556), section 3.3, with the sum and the starts of
        Besiroglu et al. 2024 (arXiv 2404.10102).
    """
    data = Points.checked(law, points, target, weights, groups)
    study = Study(law, data, delta, beliefs(law, prior, int((data.weights > 0).sum())))
    theta, objective, others = study.optimum(_starts(law, starts, delta))
    noise = study.noise(theta)
    drift, drift_source = (
        measure_drift(study.thinned().problem(), others, noise)
        if bootstrap.count
        else (ASSUMED_DRIFT, "assumed")
    )
    kind = study.resampling(bootstrap.resampling)
    samples = study.bootstrap(theta, noise, kind, bootstrap.count, bootstrap.generator())
    return Fit(
        law=law,
        theta=theta,
        samples=samples,
        inputs=data.inputs,
        target=data.target,
        weights=data.weights,
        clusters=data.clusters,
        delta=delta,
        objective=objective,
        noise=noise,
        drift=drift,
        drift_source=drift_source,
        resampling=kind if bootstrap.count else "none",
        prior=dict(study.beliefs),
        prior_scale=study.scale,
        seed=bootstrap.seed,
        source=source or str(getattr(points, "source", "")),
    )


def fit_each(
    law: Law,
    points: Mapping[str, ArrayLike],
    target: ArrayLike | str,
    by: ArrayLike,
    *,
    bootstrap: Bootstrap = Bootstrap(),
    delta: float = 1e-3,
) -> dict[str, Fit]:
    """Fit a law to each group of points on its own.

    `Law.grouped` shares parameters between groups instead.

    Args:
        law: what to fit.
        points: values by input in natural units, [n].
        target: positive, [n], or the name of a column of `points`.
        by: label of each point's group, [n].
        bootstrap: resampled fits per group.
        delta: where the Huber loss turns linear, in log units.

    Returns:
        The fit of each group, by label, in the order of their first points.

    Raises:
        FitError: a group does not allow the fit; the group is named.
    """
    labels = np.asarray(by).astype(str)
    goal = np.asarray(named_column(points, target), dtype=np.float64)
    source = str(getattr(points, "source", ""))
    fits: dict[str, Fit] = {}
    for label in dict.fromkeys(labels.tolist()):
        rows = labels == label
        own = {name: np.asarray(points[name])[rows] for name in law.inputs if name in points}
        try:
            fits[label] = fit(law, own, goal[rows], bootstrap=bootstrap, delta=delta, source=source)
        except FitError as error:
            raise FitError(f"group {label}: {error}", hint=error.hint) from error
    return fits


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


def _starts(law: Law, starts: Array | Literal["auto"], delta: float) -> Array:
    """Resolve and check the starts, [S, P]."""
    grid = (
        law.start_grid()
        if isinstance(starts, str)
        else np.atleast_2d(np.asarray(starts, dtype=np.float64))
    )
    if grid.shape[1] != len(law.parameters) or not np.isfinite(grid).all() or not delta > 0:
        raise FitError(f"starts must be finite [S, {len(law.parameters)}], and delta positive")
    return grid


def beliefs(law: Law, prior: PriorChoice, count: int) -> dict[str, Prior]:
    """Resolve which priors take part.

    Args:
        law: whose parameters carry the weak priors.
        prior: prior that `fit` takes.
        count: points with weight.

    Returns:
        Priors by parameter; empty for none.

    Raises:
        FitError: a prior for an unknown parameter.
    """
    if prior is None:
        return {}
    if isinstance(prior, str):
        if count >= _FEW_POINTS_PER_PARAMETER * len(law.parameters):
            return {}
        return {item.name: item.prior for item in law.parameters if item.prior is not None}
    unknown = [name for name in prior if name not in law.names]
    if unknown:
        raise FitError(
            f"prior for unknown parameters {', '.join(unknown)}",
            hint=f"law {law.name} has {', '.join(law.names)}",
        )
    return dict(prior)
