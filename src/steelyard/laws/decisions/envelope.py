"""The lower envelope of a cloud of runs: the best error that each amount of compute has bought.

Runs of all sizes, data sets and lengths are thrown together; only the best of each compute bin
shows what compute can buy, the others are short of something. A line through all runs is flatter
than the envelope.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fitted import Fit, Prediction
from steelyard.laws.fitting.holdout import ASSUMED_DRIFT
from steelyard.laws.fitting.law import Law, Parameter
from steelyard.laws.fitting.points import named_column, refuse_rows
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.powers import power_law

__all__ = ["Envelope", "envelope_runs", "fit_envelope"]

Stat = Literal["min", "quantile", "expectile", "line"]
Line = tuple[Array, Array]

_RANGE_MARGIN_DECADES = 0.1
_ENOUGH_BINS = 3
_FEW_RUNS = 8
_REWEIGHTINGS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """Error = A / total_gmacs^alpha along the lower envelope.

    Attributes:
        fit: fit of the line, whose points are the bins; predicts, and has a JSON form.
        stat: what stands for a bin; "line" when all runs were fitted, also where too few bins held
            runs.
        rows: rows of the runs that are the best of a bin, the first row is 0; empty for other
            statistics.
        num_runs: number of runs that were given.
    """

    fit: Fit
    stat: Stat
    rows: NDArray[np.int64]
    num_runs: int

    def exponent(self, level: float = 0.8) -> Estimate:
        """Return the power of compute, negative, with its bootstrap interval over runs."""
        return self.fit.derive(lambda values: -values["alpha"], level)

    def predict(
        self, total_gmacs: ArrayLike, level: float = 0.8, *, extrapolate: bool = False
    ) -> Prediction:
        """Predict the best error an amount of compute can buy.

        Args:
            total_gmacs: GMAC per sample times samples seen, [n] or a number.
            level: probability inside the interval, 0..1.
            extrapolate: allow more than two decades beyond the bins.

        Returns:
            Errors with low and high, [n].
        """
        return self.fit.predict({"total_gmacs": total_gmacs}, level, extrapolate=extrapolate)

    def predict_run(
        self, gmacs: ArrayLike, samples: ArrayLike, level: float = 0.8, *, extrapolate: bool = False
    ) -> Prediction:
        """Predict the error of a model that was not trained.

        Args:
            gmacs: GMAC per sample of the model, both towers, [n] or a number.
            samples: seen in training, [n] or a number.
            level: probability inside the interval, 0..1.
            extrapolate: allow more than two decades beyond the bins.

        Returns:
            Errors with low and high, [n].
        """
        return self.predict(
            np.asarray(gmacs, dtype=np.float64) * np.asarray(samples, dtype=np.float64),
            level,
            extrapolate=extrapolate,
        )

    def excess(self, total_gmacs: ArrayLike, error: ArrayLike) -> Array:
        """Return ln(error / predicted), [n]; a large one is short of more than compute."""
        return np.log(
            np.asarray(error, dtype=np.float64) / self.predict(total_gmacs, extrapolate=True).value
        )


def fit_envelope(
    points: Mapping[str, ArrayLike],
    target: str | ArrayLike = "error",
    *,
    bins: int = 5,
    stat: Stat = "min",
    share: float = 0.1,
    at: Literal["center", "point"] = "center",
    bootstrap: Bootstrap = Bootstrap(),
    source: str = "",
) -> Envelope:
    """Fit a power law of compute to the best runs.

    The range of log10 compute, stretched by 0.1 at its upper end, is cut into equal bins; what
    stands for a bin is paired with its center, and a straight line is fitted by least squares of
    the logs. Bootstraps draw runs with replacement and keep the bins; a line through fewer than
    eight runs adds Student's noise of the residuals instead.

    Args:
        points: columns "total_gmacs", or "gmacs" per sample and "samples", [n]; "metric", when
            there, must be the same in all rows.
        target: errors strictly between 0 and 1, [n], or the name of their column.
        bins: number of bins, at least 3.
        stat: "min", or with fewer outliers in mind "quantile" of each bin; "expectile" fits an
            asymmetric line to all runs without bins; "line" fits a plain line to all runs.
        share: fraction of the runs that lie below a quantile line, or the weight of those above an
            expectile line, 0..0.5.
        at: pair the minimum with the "center" of its bin (as published; flattens the slope by about
            .003, because the last bin ends before its edge) or with the compute of the run itself
            ("point"), whose intervals hold the truth more often.
        bootstrap: resamplings of the runs and their seed; 0 for none.
        source: where the runs come from.

    Returns:
        The envelope; a plain line, with a warning, when fewer than three bins hold runs.

    Raises:
        FitError: an error of 0 or 1, mixed metrics, missing compute, fewer than three runs or a
            single amount of compute.

    Example:
        >>> fit_envelope({"total_gmacs": gmacs}, 1 - accuracy).exponent().value  # doctest: +SKIP
        -0.106

    Source: Cherti et al. 2023 (arXiv 2212.07143), section 4 and its published notebook.
    """
    compute, error = envelope_runs(points, target)
    if (
        bins < _ENOUGH_BINS
        or not 0 < share < 0.5
        or (at == "point" and stat not in ("min", "line"))
    ):
        raise FitError(
            "bins must be at least 3, share within 0..0.5, and only minima have a point of "
            "their own"
        )
    x, y = np.log10(compute), np.log(error)
    edges = np.linspace(x.min(), x.max() + _RANGE_MARGIN_DECADES, bins + 1)
    held = len(np.unique(np.searchsorted(edges, x, side="right")))
    if stat in ("min", "quantile") and held < _ENOUGH_BINS:
        warnings.warn(
            f"only {held} of {bins} compute bins hold runs: a line through all runs instead",
            SteelyardWarning,
            stacklevel=2,
        )
        stat = "line"
    reduce = _reducer(stat, edges, share, at)
    line = _expectile(share) if stat == "expectile" else _least_squares
    theta = line(*reduce(x, y))
    samples = np.clip(
        _bootstrap(x, y, reduce, line, theta, bootstrap),
        *_law().bounds,
    )
    rows = _best_rows(x, y, edges) if stat == "min" else np.zeros(0, dtype=np.int64)
    resampling = "none" if not len(samples) else "pairs" if len(x) >= _FEW_RUNS else "noise"
    return Envelope(
        fit=_as_fit(theta, samples, reduce(x, y), resampling, bootstrap.seed, source),
        stat=stat,
        rows=rows,
        num_runs=len(x),
    )


def envelope_runs(points: Mapping[str, ArrayLike], target: str | ArrayLike) -> tuple[Array, Array]:
    """Check runs and return their total compute and error.

    Args:
        points: columns as `fit_envelope` takes them.
        target: errors, or the name of their column.

    Returns:
        GMAC in total and errors, [n] each.

    Raises:
        FitError: what cannot be fitted, by rows.
    """
    error = np.atleast_1d(np.asarray(named_column(points, target), dtype=np.float64))
    compute = (
        np.broadcast_to(_total_gmacs(points), error.shape) if np.ndim(error) == 1 else error[:0]
    )
    if len(error) < _ENOUGH_BINS or compute.shape != error.shape:
        raise FitError(
            f"{len(error)} errors and {len(compute)} amounts of compute; at least three runs are "
            f"needed, one value each"
        )
    refuse_rows(
        ~((error > 0) & (error < 1)),
        "error must lie strictly between 0 and 1",
        error,
        "error is 1 - accuracy or 1 - recall, a fraction; a run at 0 or 1 sits on the metric's "
        "end and has no place on the line",
    )
    refuse_rows(
        ~(np.isfinite(compute) & (compute > 0)),
        "compute must be known and positive",
        compute,
        "fill gmacs from the architecture: laws.contrastive_gmacs",
    )
    metrics = sorted(
        {str(metric) for metric in np.atleast_1d(np.asarray(points.get("metric", "")))}
    )
    if len(metrics) > 1:
        raise FitError(
            f"mixed metrics {', '.join(metrics)}: their errors do not compare",
            hint="fit the rows of one metric at a time",
        )
    if np.ptp(np.log10(compute)) < 0.01:
        raise FitError(
            f"all runs took {compute[0]:.3g} GMAC, so the exponent cannot be fitted",
            hint="add runs with other compute",
        )
    return np.array(compute), error


def _total_gmacs(points: Mapping[str, ArrayLike]) -> Array:
    """Read the total, or multiply compute per sample by samples, [n]."""
    if "total_gmacs" in points:
        return np.atleast_1d(np.asarray(points["total_gmacs"], dtype=np.float64))
    if "gmacs" in points and "samples" in points:
        return np.atleast_1d(
            np.asarray(points["gmacs"], dtype=np.float64)
            * np.asarray(points["samples"], dtype=np.float64)
        )
    raise FitError(
        f"no compute among the columns {', '.join(points)}",
        hint="give total_gmacs, or gmacs per sample (laws.contrastive_gmacs computes them from "
        "the architecture) and samples",
    )


def _reducer(stat: Stat, edges: Array, share: float, at: str) -> Callable[[Array, Array], Line]:
    """Make the function that turns runs into the points of the line."""
    centers = (edges[1:] + edges[:-1]) / 2

    def reduce(x: Array, y: Array) -> Line:
        bins = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(centers) - 1)
        held = np.unique(bins)
        if stat == "quantile":
            return centers[held], np.array([np.quantile(y[bins == index], share) for index in held])
        best = _best_rows(x, y, edges)
        return (x[best] if at == "point" else centers[held]), y[best]

    return reduce if stat in ("min", "quantile") else lambda x, y: (x, y)


def _best_rows(x: Array, y: Array, edges: Array) -> NDArray[np.int64]:
    """Return the row of least error in each bin that holds runs."""
    bins = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(edges) - 2)
    rows = np.lexsort((y, bins))
    return rows[np.unique(bins[rows], return_index=True)[1]]


def _least_squares(x: Array, y: Array, weights: Array | None = None) -> Array:
    """Fit y = ln A - alpha ln C with x = log10 C; ln A and alpha, not a number on a single x."""
    weights = np.ones(len(x)) if weights is None else weights
    middle = np.average(x, weights=weights)
    spread = float((weights * (x - middle) ** 2).sum())
    if spread <= 1e-12:
        return np.full(2, np.nan)
    slope = float((weights * (x - middle) * y).sum()) / spread
    return np.array([np.average(y, weights=weights) - slope * middle, -slope / np.log(10)])


def _expectile(share: float) -> Callable[[Array, Array], Array]:
    """Make the least squares that weigh runs above the line `share`, others 1 - `share`."""

    def line(x: Array, y: Array) -> Array:
        theta = _least_squares(x, y)
        for _ in range(_REWEIGHTINGS):
            above = y > theta[0] - theta[1] * np.log(10) * x
            theta = _least_squares(x, y, np.where(above, share, 1 - share))
        return theta

    return line


def _bootstrap(
    x: Array,
    y: Array,
    reduce: Callable[[Array, Array], Line],
    line: Callable[[Array, Array], Array],
    theta: Array,
    bootstrap: Bootstrap,
) -> Array:
    """Fit resampled runs, [B, 2]; draws that fall onto one amount of compute are left out."""
    count = bootstrap.count
    generator = bootstrap.only_way("an envelope draws runs, and noise for fewer than eight")
    if len(x) >= _FEW_RUNS:
        draws = (generator.integers(0, len(x), len(x)) for _ in range(count))
        found = np.array([line(*reduce(x[rows], y[rows])) for rows in draws]).reshape(-1, 2)
        return found[np.isfinite(found).all(axis=1)]
    # Resampled pairs of so few runs fall onto one or two points; noise of redrawn size (Student's)
    # is added to the line instead.
    said = theta[0] - theta[1] * np.log(10) * x
    freedom = max(len(x) - 2, 1)
    scale = np.sqrt(
        ((y - said) ** 2).sum() / freedom / (generator.chisquare(freedom, count) / freedom)
    )
    noisy = said + scale[:, None] * generator.standard_normal((count, len(x)))
    return np.array([line(*reduce(x, drawn)) for drawn in noisy]).reshape(-1, 2)


def _as_fit(
    theta: Array,
    samples: Array,
    line: Line,
    resampling: Literal["pairs", "noise", "none"],
    seed: int,
    source: str,
) -> Fit:
    """Keep the line as a fit of the engine, whose points are the bins."""
    x, y = line
    residuals = y - (theta[0] - theta[1] * np.log(10) * x)
    noise = float(np.sqrt((residuals**2).sum() / max(len(x) - 2, 1)))
    return Fit(
        law=_law(),
        theta=theta,
        samples=samples,
        inputs={"total_gmacs": 10**x},
        target=np.exp(y),
        weights=np.ones(len(x)),
        clusters=np.arange(len(x)),
        delta=np.inf,
        objective=float(0.5 * (residuals**2).sum()),
        noise=noise,
        drift=ASSUMED_DRIFT,
        drift_source="assumed",
        resampling=resampling,
        seed=seed,
        source=source,
    )


def _law() -> Law:
    """Declare A / total_gmacs^alpha with bounds for errors."""
    # It keeps the name of the plain power law, by which a stored fit is read from JSON.
    parameters = (
        Parameter(name="A", transform="log", low=-60.0, high=60.0, starts=(1.0,)),
        Parameter(name="alpha", transform="identity", low=-2.0, high=2.0, starts=(0.1,)),
    )
    return replace(
        power_law("total_gmacs", "nofloor"), parameters=parameters, formula="A / C^alpha"
    )
