"""A law: named parameters with bounds and starts, and a term that predicts the log of the target."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.terms import Array, Term, Transform

__all__ = ["Law", "Parameter", "Prior"]


@dataclass(frozen=True, slots=True)
class Prior:
    """A weak Gaussian belief about a parameter, in fitted coordinates.

    Attributes:
        center: most believed coordinate (the natural log for a "log" parameter).
        sd: standard deviation, positive.
    """

    center: float
    sd: float

    def __post_init__(self) -> None:
        """Refuse a spread that is not positive."""
        if not (np.isfinite(self.center) and 0 < self.sd < np.inf):
            raise FitError(f"prior: center {self.center} must be finite and sd {self.sd} positive and finite")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One number of a law.

    Attributes:
        name: as the literature writes it.
        transform: "log" for positive numbers fitted by their natural log, "identity" for exponents.
        low: lower bound in fitted coordinates.
        high: upper bound in fitted coordinates.
        starts: where the multi-start grid puts it, fitted coordinates within the bounds.
        prior: used when a study has too few points to do without; None for no belief at all.
    """

    name: str
    transform: Transform
    low: float
    high: float
    starts: tuple[float, ...]
    prior: Prior | None = None

    def __post_init__(self) -> None:
        """Refuse empty ranges and starts outside of them."""
        if not self.low < self.high or not self.starts or any(not self.low <= start <= self.high for start in self.starts):
            raise FitError(f"parameter {self.name}: starts {self.starts} must lie in a range, given [{self.low}, {self.high}]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Law:
    """A declared law: log prediction = term(parameters, inputs).

    Attributes:
        name: short, kept in a fit's JSON.
        term: what predicts; see `steelyard.laws.fitting.terms`.
        parameters: P of them, in the order of the columns of `theta`.
        formula: the prediction in words of the literature, N parameters and D tokens.
    """

    name: str
    term: Term
    parameters: tuple[Parameter, ...]
    formula: str = ""

    def __post_init__(self) -> None:
        """Refuse parameters that do not match what the term uses."""
        declared = {item.name: item.transform for item in self.parameters}
        if declared != self.term.transforms or len(declared) != len(self.parameters):
            raise FitError(f"law {self.name}: declares parameters {declared}, but its term uses {self.term.transforms}")

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names in order."""
        return tuple(item.name for item in self.parameters)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Input names in order."""
        return self.term.inputs

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds in fitted coordinates, [P] each."""
        return np.array([item.low for item in self.parameters]), np.array([item.high for item in self.parameters])

    def start_grid(self) -> Array:
        """Give every combination of the parameters' starts, [S, P]."""
        return np.array(list(itertools.product(*(item.starts for item in self.parameters))), dtype=np.float64)

    def values(self, theta: Array) -> Array:
        """Turn fitted coordinates [..., P] into natural values [..., P]."""
        is_log = np.array([item.transform == "log" for item in self.parameters])
        return np.where(is_log, np.exp(np.where(is_log, theta, 0.0)), theta)

    def coordinates(self, values: Mapping[str, float]) -> Array:
        """Turn natural values into fitted coordinates.

        Args:
            values: natural values by parameter.

        Returns:
            Fitted coordinates, [P].

        Raises:
            FitError: a parameter is missing, or a "log" one is not positive.
        """
        missing = [name for name in self.names if name not in values]
        if missing or any(item.transform == "log" and not values[item.name] > 0 for item in self.parameters):
            raise FitError(f"law {self.name} needs {', '.join(self.names)}, coefficients positive; given {dict(values)}")
        return np.array([np.log(values[item.name]) if item.transform == "log" else values[item.name] for item in self.parameters])

    def predict(self, theta: Array, inputs: Mapping[str, Array]) -> Array:
        """Predict the log of the target.

        Args:
            theta: fitted coordinates, [S, P].
            inputs: per input its values in natural units, [n].

        Returns:
            Log predictions, [S, n].
        """
        log, _ = self.term.evaluate(self._columns(theta), inputs)
        return np.broadcast_to(log, (len(theta), self._count(inputs)))

    def evaluate(self, theta: Array, inputs: Mapping[str, Array]) -> tuple[Array, Array]:
        """Predict the log of the target with its gradient.

        Args:
            theta: fitted coordinates, [S, P].
            inputs: per input its values in natural units, [n].

        Returns:
            Log predictions [S, n] and their derivatives by the fitted coordinates [S, P, n].
        """
        log, slopes = self.term.evaluate(self._columns(theta), inputs)
        shape = (len(theta), self._count(inputs))
        gradient = np.empty((shape[0], len(self.parameters), shape[1]))
        for index, name in enumerate(self.names):
            gradient[:, index] = slopes[name]
        return np.broadcast_to(log, shape), gradient

    def _columns(self, theta: Array) -> dict[str, Array]:
        """Name the columns of `theta`, each [S, 1]."""
        return {name: theta[:, index : index + 1] for index, name in enumerate(self.names)}

    def _count(self, inputs: Mapping[str, Array]) -> int:
        """Count the points."""
        return len(inputs[self.inputs[0]])
