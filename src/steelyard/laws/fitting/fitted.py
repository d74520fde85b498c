"""A fitted law: parameters and predictions with intervals, and an exact JSON form."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.diagnostics import (
    FlatDirection,
    Influence,
    Outlier,
    condition_number,
    flat_directions,
    influence,
    outliers,
)
from steelyard.laws.fitting.estimate import Estimate, Prediction, band, tails
from steelyard.laws.fitting.law import Law, Prior
from steelyard.laws.fitting.points import Points, check_inputs
from steelyard.laws.fitting.profile import Profile, profile
from steelyard.laws.fitting.stored import read, write
from steelyard.laws.fitting.study import Study
from steelyard.laws.fitting.terms import Array
from steelyard.quantity import Provenance

if TYPE_CHECKING:
    from steelyard.laws.fitting.holdout import Holdout

__all__ = ["Fit", "Prediction", "outside"]

_FAR = 100.0
"""Factor beyond the points from which on a prediction must be asked for: the drift was measured
inside them, and nothing says that it lasts so far."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A law with fitted numbers.

    Attributes:
        law: law with P parameters.
        theta: optimum in fitted coordinates, [P].
        samples: bootstrap optima in fitted coordinates, [B, P]; [0, P] for a published set.
        inputs: inputs of the points, [n] each; empty for a published set.
        target: targets of the points, natural units, [n].
        weights: weights of the points, [n].
        clusters: number of the cluster each point was drawn with in the bootstrap, [n].
        delta: where the Huber loss turned linear, log units.
        objective: weighted sum of Huber losses at the optimum, the prior's part included.
        noise: standard deviation of the log residuals, corrected for the parameters.
        drift: growth of the log error per factor e beyond the points, standard deviation.
        drift_source: "holdout" when measured by leaving the largest points out, "assumed" when
            there were too few.
        resampling: what the samples come from: "pairs", "noise" or "none".
        prior: beliefs that took part, by parameter; empty for none.
        prior_scale: weight of the beliefs in units of the objective.
        seed: seed of the resampling.
        provenance: "fitted", or "published" for numbers taken from a paper.
        source: where the points or numbers come from.
    """

    law: Law
    theta: Array
    samples: Array
    inputs: dict[str, Array] = field(default_factory=dict)
    target: Array = field(default_factory=lambda: np.zeros(0))
    weights: Array = field(default_factory=lambda: np.zeros(0))
    clusters: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    delta: float = 1e-3
    objective: float = 0.0
    noise: float = 0.0
    drift: float = 0.0
    drift_source: Literal["holdout", "assumed", "none"] = "none"
    resampling: Literal["pairs", "noise", "none"] = "none"
    prior: dict[str, Prior] = field(default_factory=dict)
    prior_scale: float = 0.0
    seed: int = 0
    provenance: Provenance = "fitted"
    source: str = ""

    @property
    def params(self) -> dict[str, float]:
        """Fitted parameters by name, natural units."""
        return dict(zip(self.law.names, self.law.values(self.theta).tolist(), strict=True))

    @property
    def thetas(self) -> Array:
        """Fitted coordinates of the optimum, first, and of the bootstraps, [1 + B, P]."""
        return np.concatenate([self.theta[None], self.samples])

    @property
    def num_points(self) -> int:
        """Points with weight that were fitted."""
        return int((self.weights > 0).sum())

    @property
    def freedom(self) -> int:
        """Points with weight beyond the parameters, at least 1."""
        return max(self.num_points - len(self.law.parameters), 1)

    @property
    def residuals(self) -> Array:
        """Log target minus log prediction, [n]."""
        return (
            np.log(self.target) - self.law.predict(self.theta[None], self.inputs)[0]
            if len(self.target)
            else np.zeros(0)
        )

    @property
    def at_bounds(self) -> tuple[str, ...]:
        """Parameters that ended at a bound, so that points do not determine them or do not fit."""
        low, high = self.law.bounds
        stuck = (self.theta <= low) | (self.theta >= high)
        return tuple(name for name, is_stuck in zip(self.law.names, stuck, strict=True) if is_stuck)

    @property
    def condition_number(self) -> float:
        """How many times better the best known direction of theta is known than the worst."""
        return condition_number(self.law, self.theta, self.inputs, self.weights)

    @property
    def flat_directions(self) -> tuple[FlatDirection, ...]:
        """Combinations of parameters that the points leave nearly free; empty when none is."""
        noise = max(self.noise, 1e-6)
        return flat_directions(self.law, self.theta, self.inputs, self.weights, noise)

    def interval(self, name: str, level: float = 0.8) -> tuple[float, float]:
        """Return the percentile bootstrap interval of a parameter.

        Args:
            name: name of the parameter.
            level: probability inside, 0..1.

        Returns:
            Low and high in natural units; both equal to the value when there are no samples.

        Raises:
            FitError: the law has no such parameter, or the level is not between 0 and 1.
        """
        if name not in self.law.names:
            raise FitError(
                f"law {self.law.name} has no parameter {name!r}",
                hint=f"it has {', '.join(self.law.names)}",
            )
        if not len(self.samples):
            return self.params[name], self.params[name]
        values = self.law.values(self.samples)[:, self.law.names.index(name)]
        low, high = np.quantile(values, tails(level))
        return float(low), float(high)

    def draws(self) -> dict[str, Array]:
        """Return natural values of the optimum, first, and of the bootstraps, [1 + B] each."""
        values = self.law.values(self.thetas)
        fixed = {name: np.full(len(values), value) for name, value in self.law.fixed.items()}
        return dict(zip(self.law.names, values.T, strict=True)) | fixed

    def derive(self, function: Callable[[dict[str, Array]], Array], level: float = 0.8) -> Estimate:
        """Compute something from the parameters, with its bootstrap interval.

        Args:
            function: result [S] from the natural values [S] by parameter, fixed ones included.
            level: probability inside, 0..1.

        Returns:
            The result at the optimum and the percentiles over the bootstrap; no width for a
            published set.
        """
        result = np.asarray(function(self.draws()), dtype=np.float64)
        return Estimate.over(np.broadcast_to(result, (1 + len(self.samples),)), level)

    def profile(self, name: str, level: float = 0.9) -> Profile:
        """Return a parameter's profile interval: all others at their best for each of its values.

        Args:
            name: name of the parameter.
            level: probability inside, 0..1.

        Returns:
            Interval and curve, and whether the valley is flat.

        Raises:
            FitError: no such parameter, or the fit has no points.
        """
        return profile(self.study(), self.theta, self.objective, max(self.noise, 1e-9), name, level)

    def influence(self) -> Influence:
        """Fit again without each point in turn and return how far the parameters move.

        Returns:
            Parameters without each point, and their shifts.

        Raises:
            FitError: a published set, which has no points.
        """
        return influence(self.study(), self.theta, self.samples)

    def outliers(self, threshold: float = 4.0) -> tuple[Outlier, ...]:
        """List points more than `threshold` robust standard deviations off the law, worst first."""
        return outliers(self.study(), self.theta, threshold)

    def without(self, rows: Sequence[int]) -> "Fit":
        """Fit again without some points.

        Args:
            rows: their numbers, the first row is 0.

        Returns:
            The fit of the others, made the same way.

        Raises:
            FitError: too few points remain.
        """
        kept = np.setdiff1d(np.arange(len(self.target)), np.asarray(rows, dtype=np.int64))
        has_groups = len(np.unique(self.clusters)) < len(self.clusters)
        return self.refitted(kept, self.clusters[kept] if has_groups else None)

    def refitted(
        self, rows: NDArray[np.int64] | NDArray[np.bool_], groups: ArrayLike | None = None
    ) -> "Fit":
        """Fit some of the points the way all were fitted.

        Args:
            rows: numbers of the points to fit, or a mask over all.
            groups: labels of those that are drawn together in the bootstrap; none for single ones.

        Returns:
            The fit of these points.

        Raises:
            FitError: too few points.
        """
        from steelyard.laws.fitting.fit import fit

        return fit(
            self.law,
            {name: column[rows] for name, column in self.inputs.items()},
            self.target[rows],
            weights=self.weights[rows],
            groups=groups,
            bootstrap=Bootstrap(count=len(self.samples), seed=self.seed),
            delta=self.delta,
            prior=self.prior or None,
            source=self.source,
        )

    def study(self) -> Study:
        """Return the points with what is computed from them.

        Returns:
            The study that the fit came from.

        Raises:
            FitError: a published set, which has no points.
        """
        if not len(self.target):
            raise FitError(
                f"the law of {self.source or 'this set'} was published without its points",
                hint="fit the law to points first",
            )
        points = Points(self.inputs, self.target, self.weights, self.clusters)
        return Study(self.law, points, self.delta, self.prior, self.prior_scale)

    def predict(
        self, inputs: Mapping[str, ArrayLike], level: float = 0.8, *, extrapolate: bool = False
    ) -> Prediction:
        """Predict the target of new runs.

        The interval adds three independent parts in log space: the parameters' bootstrap spread,
        the residual noise of one run, and, beyond the points, the drift seen when the largest
        points were left out.

        Args:
            inputs: values by input in natural units, [n] or a single number.
            level: probability that a new run falls inside, 0..1.
            extrapolate: allow inputs more than two decades beyond the points.

        Returns:
            Values with low and high, [n].

        Raises:
            FitError: an input is missing, not positive, or more than two decades beyond the points
                without `extrapolate`, or the level is not between 0 and 1.
        """
        columns = check_inputs(self.law, inputs)
        if not extrapolate:
            self._refuse_far(columns)
        return band(
            self.law.predict(self.thetas, columns),
            level,
            noise=self.noise,
            freedom=self.freedom,
            drift=self.drift,
            distance=self._outside(columns),
        )

    def distance(self, inputs: Mapping[str, ArrayLike]) -> Array:
        """Return Euclidean distances from the points, in factors of e; 0 inside, [n]."""
        return self._outside(check_inputs(self.law, inputs))

    def holdout(self, along: str = "", fraction: float = 0.25) -> "Holdout":
        """Fit again without the largest points and predict them.

        Args:
            along: input whose largest values are left out; empty for the product of all inputs.
            fraction: upper part of the range of log sizes that is left out, 0..1.

        Returns:
            The held points with measured and predicted values.
        """
        from steelyard.laws.fitting.holdout import hold_out

        return hold_out(self, along, fraction)

    def to_json(self) -> str:
        """Write everything as JSON, from which `from_json` makes an equal fit, bit for bit."""
        return write(self)

    @classmethod
    def from_json(cls, text: str, law: Law | None = None) -> "Fit":
        """Read what `to_json` wrote.

        Args:
            text: the JSON.
            law: needed only for a law that is not one of `steelyard.laws.forms`.

        Returns:
            An equal fit.

        Raises:
            FitError: the text is not a fit, or its law is not known here.
        """
        return read(cls, text, law)

    def _outside(self, columns: Mapping[str, Array]) -> Array:
        """Return the distance of checked inputs from the points, [n]."""
        if not self.inputs or not self.law.axes:
            return np.zeros(len(columns[self.law.inputs[0]]))
        return outside(self.inputs, {name: columns[name] for name in self.law.axes})

    def _refuse_far(self, columns: Mapping[str, Array]) -> None:
        """Refuse inputs more than two decades outside the points."""
        for name in self.law.axes if self.inputs else ():
            low, high = self.inputs[name].min(), self.inputs[name].max()
            wanted = columns[name]
            far = wanted[(wanted > _FAR * high) | (wanted * _FAR < low)]
            if len(far):
                raise FitError(
                    f"{name} {far[0]:.4g} lies more than two decades beyond the fitted points "
                    f"({low:.4g} to {high:.4g})",
                    hint="add points nearer to it, or allow it with extrapolate=True "
                    "(--extrapolate on the command line)",
                )


def outside(known: Mapping[str, Array], columns: Mapping[str, Array]) -> Array:
    """Return the Euclidean distance of `columns` from the box of `known`, in factors of e, [n]."""
    total: Any = 0.0
    for name, column in columns.items():
        log = np.log(column)
        box = np.log(known[name])
        total = total + np.maximum(np.maximum(log - box.max(), box.min() - log), 0.0) ** 2
    return np.sqrt(total)
