"""A fitted law: parameters with intervals, predictions with intervals, and an exact JSON form."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.identifiability import FlatDirection, condition_number, flat_directions
from steelyard.laws.fitting.law import Law, Parameter, Prior
from steelyard.laws.fitting.points import check_inputs
from steelyard.laws.fitting.terms import Array
from steelyard.quantity import Provenance

if TYPE_CHECKING:
    from steelyard.laws.fitting.holdout import Holdout

__all__ = ["Fit", "Prediction"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted values with their interval, natural units, [n] each."""

    value: Array
    low: Array
    high: Array


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A law with fitted numbers.

    Attributes:
        law: with P parameters.
        theta: optimum in fitted coordinates, [P].
        samples: bootstrap optima in fitted coordinates, [B, P]; [0, P] for a published set.
        inputs: the points' inputs, [n] each; empty for a published set.
        target: the points' targets, natural units, [n].
        weights: of the points, [n].
        delta: of the Huber loss, log units.
        objective: weighted sum of Huber losses at the optimum, the prior's part included.
        noise: standard deviation of the log residuals, corrected for the parameters.
        drift: growth of the log error per factor e beyond the points, standard deviation.
        drift_source: "holdout" when measured by leaving the largest points out, "assumed" when there were too few.
        resampling: what the samples come from: "pairs", "noise" or "none".
        prior: beliefs that took part, by parameter; empty for none.
        seed: of the resampling.
        provenance: "fitted", or "published" for numbers taken from a paper.
        source: where the points or numbers come from.
    """

    law: Law
    theta: Array
    samples: Array
    inputs: dict[str, Array] = field(default_factory=dict)
    target: Array = field(default_factory=lambda: np.zeros(0))
    weights: Array = field(default_factory=lambda: np.zeros(0))
    delta: float = 1e-3
    objective: float = 0.0
    noise: float = 0.0
    drift: float = 0.0
    drift_source: Literal["holdout", "assumed", "none"] = "none"
    resampling: Literal["pairs", "noise", "none"] = "none"
    prior: dict[str, Prior] = field(default_factory=dict)
    seed: int = 0
    provenance: Provenance = "fitted"
    source: str = ""

    @property
    def params(self) -> dict[str, float]:
        """Fitted parameters by name, natural units."""
        return dict(zip(self.law.names, self.law.values(self.theta).tolist(), strict=True))

    @property
    def num_points(self) -> int:
        """Points with weight that were fitted."""
        return int((self.weights > 0).sum())

    @property
    def residuals(self) -> Array:
        """Log target minus log prediction, [n]."""
        return np.log(self.target) - self.law.predict(self.theta[None], self.inputs)[0] if len(self.target) else np.zeros(0)

    @property
    def at_bounds(self) -> tuple[str, ...]:
        """Parameters that ended at a bound: the points do not determine them, or the law does not fit."""
        low, high = self.law.bounds
        stuck = (self.theta <= low) | (self.theta >= high)
        return tuple(name for name, is_stuck in zip(self.law.names, stuck, strict=True) if is_stuck)

    @property
    def condition_number(self) -> float:
        """How many times better the best determined direction of the parameters is known than the worst; 1 is ideal."""
        return condition_number(self.law, self.theta, self.inputs, self.weights)

    @property
    def flat_directions(self) -> tuple[FlatDirection, ...]:
        """Combinations of parameters the points leave nearly free; empty when all are determined."""
        return flat_directions(self.law, self.theta, self.inputs, self.weights, max(self.noise, 1e-6))

    def interval(self, name: str, level: float = 0.8) -> tuple[float, float]:
        """Give the percentile bootstrap interval of a parameter.

        Args:
            name: of the parameter.
            level: probability inside, 0..1.

        Returns:
            Low and high in natural units; both equal to the value when there are no samples.

        Raises:
            FitError: the law has no such parameter, or the level is not between 0 and 1.
        """
        if name not in self.law.names:
            raise FitError(f"law {self.law.name} has no parameter {name!r}", hint=f"it has {', '.join(self.law.names)}")
        if not len(self.samples):
            return self.params[name], self.params[name]
        low, high = np.quantile(self.law.values(self.samples)[:, self.law.names.index(name)], _tails(level))
        return float(low), float(high)

    def predict(self, inputs: Mapping[str, ArrayLike], level: float = 0.8) -> Prediction:
        """Predict the target of new runs.

        The interval adds three independent parts in log space: the parameters' bootstrap spread, the residual noise of one
        run, and, beyond the points, the drift seen when the largest points were left out.

        Args:
            inputs: per input values in natural units, [n] or a single number.
            level: probability that a new run falls inside, 0..1.

        Returns:
            Values with low and high, [n].

        Raises:
            FitError: an input is missing or not positive, or the level is not between 0 and 1.
        """
        columns = check_inputs(self.law, inputs)
        center = self.law.predict(self.theta[None], columns)[0]
        below, above = self._half_widths(columns, center, level)
        return Prediction(np.exp(center), np.exp(center - below), np.exp(center + above))

    def distance(self, inputs: Mapping[str, ArrayLike]) -> Array:
        """Say how far inputs lie outside the range of the points: Euclidean, in factors of e per input; 0 inside, [n]."""
        columns = check_inputs(self.law, inputs)
        return outside(self.inputs, columns) if self.inputs else np.zeros(len(columns[self.law.inputs[0]]))

    def holdout(self, along: str = "", fraction: float = 0.25) -> "Holdout":
        """Fit again without the largest points and predict them.

        Args:
            along: input whose largest values are left out; empty for the product of all inputs.
            fraction: of the range of log sizes that is left out, 0..1, at the large end.

        Returns:
            The held points with measured and predicted values.
        """
        from steelyard.laws.fitting.holdout import hold_out

        return hold_out(self, along, fraction)

    def to_json(self) -> str:
        """Write everything as JSON; `from_json` gives an equal fit, bit for bit."""
        plain = {name: getattr(self, name) for name in ("delta", "objective", "noise", "drift", "drift_source")}
        plain |= {name: getattr(self, name) for name in ("resampling", "seed", "provenance", "source")}
        return json.dumps(
            {
                "law": self.law.name,
                "parameters": [_parameter_to_plain(item) for item in self.law.parameters],
                "theta": self.theta.tolist(),
                "samples": self.samples.tolist(),
                "inputs": {name: column.tolist() for name, column in self.inputs.items()},
                "target": self.target.tolist(),
                "weights": self.weights.tolist(),
                "prior": {name: [item.center, item.sd] for name, item in self.prior.items()},
                **plain,
            },
            indent=1,
            allow_nan=False,
        )

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
        from steelyard.laws.forms import law_named

        try:
            data = json.loads(text)
            declared = tuple(_parameter_from_plain(item) for item in data.pop("parameters"))
            law = replace(law or law_named(data["law"]), parameters=declared)
            data["law"] = law
            data["prior"] = {name: Prior(*pair) for name, pair in data["prior"].items()}
            data["inputs"] = {name: np.array(column, dtype=np.float64) for name, column in data["inputs"].items()}
            for name in ("theta", "target", "weights"):
                data[name] = np.array(data[name], dtype=np.float64)
            data["samples"] = np.array(data["samples"], dtype=np.float64).reshape(-1, len(declared))
            return cls(**data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FitError(
                f"this is not a stored fit: {error}", hint="give the JSON that `laws fit --json` or Fit.to_json wrote"
            ) from error

    def _half_widths(self, columns: Mapping[str, Array], center: Array, level: float) -> tuple[Array, Array]:
        """Give the interval's lower and upper half width in log units, [n] each."""
        from scipy.special import ndtri, stdtrit

        tails = _tails(level)
        freedom = max(self.num_points - len(self.law.parameters), 1)
        spread = (float(stdtrit(freedom, tails[1])) * self.noise) ** 2
        if self.inputs:
            spread = spread + (float(ndtri(tails[1])) * self.drift * outside(self.inputs, columns)) ** 2
        low = high = np.zeros_like(center)
        if len(self.samples):
            low, high = np.quantile(self.law.predict(self.samples, columns), tails, axis=0)
            low, high = np.maximum(center - low, 0), np.maximum(high - center, 0)
        return np.sqrt(low**2 + spread), np.sqrt(high**2 + spread)


def outside(known: Mapping[str, Array], columns: Mapping[str, Array]) -> Array:
    """Give the Euclidean distance of `columns` from the box of `known`, in factors of e, [n]."""
    total: Any = 0.0
    for name, column in columns.items():
        log, box = np.log(column), np.log(known[name])
        total = total + np.maximum(np.maximum(log - box.max(), box.min() - log), 0.0) ** 2
    return np.sqrt(total)


def _tails(level: float) -> tuple[float, float]:
    """Turn a level into its two tail probabilities."""
    if not 0 < level < 1:
        raise FitError(f"level {level} must lie between 0 and 1", hint="0.8 gives an 80 % interval")
    return 0.5 - level / 2, 0.5 + level / 2


def _parameter_to_plain(item: Parameter) -> dict[str, Any]:
    prior = None if item.prior is None else [item.prior.center, item.prior.sd]
    return {
        "name": item.name, "transform": item.transform, "low": item.low, "high": item.high, "starts": list(item.starts), "prior": prior,
    }  # fmt: skip


def _parameter_from_plain(data: dict[str, Any]) -> Parameter:
    prior = None if data["prior"] is None else Prior(*data["prior"])
    return Parameter(**{**data, "starts": tuple(data["starts"]), "prior": prior})
