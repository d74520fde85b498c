"""A law: named parameters with bounds and starts, and a term for the log of the target."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.terms import Array, Constant, Grouped, Power, Sum, Term, Transform

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
            raise FitError(
                f"prior: center {self.center} must be finite and sd {self.sd} positive and finite"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One number of a law.

    Attributes:
        name: name in the literature.
        transform: "log" for positive numbers fitted by their natural log, "identity" for exponents.
        low: lower bound in fitted coordinates.
        high: upper bound in fitted coordinates.
        starts: places in the multi-start grid, fitted coordinates within the bounds.
        prior: belief used when a study has too few points to do without; None for none at all.
    """

    name: str
    transform: Transform
    low: float
    high: float
    starts: tuple[float, ...]
    prior: Prior | None = None

    def __post_init__(self) -> None:
        """Refuse empty ranges and starts outside of them."""
        if (
            not self.low < self.high
            or not self.starts
            or any(not self.low <= start <= self.high for start in self.starts)
        ):
            raise FitError(
                f"parameter {self.name}: starts {self.starts} must lie in a range, given "
                f"[{self.low}, {self.high}]"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Law:
    """A declared law: log prediction = term(parameters, inputs).

    Attributes:
        name: short name, kept in a fit's JSON.
        term: what predicts; see `steelyard.laws.fitting.terms`.
        parameters: the P free ones, in the order of the columns of `theta`.
        formula: the prediction in words of the literature, N parameters and D tokens.
        fixed: parameters that are not fitted, natural values; see `fix`.
        conditions: inputs that may be the same in every row or follow others, such as the number of
            a group; they take no part in the search for one-axis tables, in holdouts and in
            distances.
    """

    name: str
    term: Term
    parameters: tuple[Parameter, ...]
    formula: str = ""
    fixed: Mapping[str, float] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse parameters that do not match what the term uses."""
        kinds = self.term.transforms
        declared = {item.name: item.transform for item in self.parameters}
        free = {name: kind for name, kind in kinds.items() if name not in self.fixed}
        if declared != free or len(declared) != len(self.parameters) or not self.parameters:
            raise FitError(
                f"law {self.name}: declares parameters {declared}, but its term uses {free}"
            )
        wrong = [
            name
            for name, value in self.fixed.items()
            if name not in kinds or (kinds[name] == "log" and not value > 0)
        ]
        if wrong:
            raise FitError(
                f"law {self.name}: cannot fix {', '.join(wrong)}",
                hint=f"it has {', '.join(kinds)}; coefficients are positive",
            )

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
        ends = np.array([(item.low, item.high) for item in self.parameters], dtype=np.float64)
        return ends[:, 0], ends[:, 1]

    @property
    def axes(self) -> tuple[str, ...]:
        """Inputs along which the law is extrapolated: all but the conditions."""
        return tuple(name for name in self.inputs if name not in self.conditions)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups with parameters of their own; empty for none."""
        return self.term.groups if isinstance(self.term, Grouped) else ()

    @property
    def powers(self) -> dict[str, tuple[str, str]]:
        """Coefficient and exponent by input of a sum of powers; empty for any other law.

        The powers are of inputs as they are, and what else the sum holds is constant.
        """
        parts = self.term.terms if isinstance(self.term, Sum) else ()
        powers = {
            part.of: (part.coefficient, part.exponent)
            for part in parts
            if isinstance(part, Power) and isinstance(part.of, str)
        }
        others = [part for part in parts if not isinstance(part, Constant)]
        return powers if len(powers) == len(others) else {}

    def fix(self, **values: float) -> "Law":
        """Hold parameters at known values.

        Args:
            **values: natural values by parameter.

        Returns:
            The law whose other parameters are free.

        Raises:
            FitError: the law has no such free parameter, a coefficient is not positive, or nothing
                would be left to fit.
        """
        unknown = [name for name in values if name not in self.names]
        if unknown:
            raise FitError(
                f"law {self.name} has no free parameter {', '.join(unknown)}",
                hint=f"free: {', '.join(self.names)}",
            )
        free = tuple(item for item in self.parameters if item.name not in values)
        return replace(self, parameters=free, fixed={**self.fixed, **values})

    def grouped(self, vary: Sequence[str], groups: Sequence[str]) -> "Law":
        """Return a law with a value per group for some parameters; the others are shared.

        Args:
            vary: names of free parameters that differ between groups.
            groups: names of the groups, at least one.

        Returns:
            The law with parameters "name[group]" and the further input "group", the name or number
            (1..G) of each point's group.

        Raises:
            FitError: an unknown parameter, groups that repeat, or a law that has groups already.
        """
        if (
            self.groups
            or not groups
            or len(set(groups)) != len(groups)
            or any(name not in self.names for name in vary)
        ):
            raise FitError(
                f"law {self.name}: cannot give {', '.join(vary)} a value per group of "
                f"{', '.join(groups) or 'no groups'}",
                hint=f"free parameters: {', '.join(self.names)}; groups have different names and "
                f"are given once",
            )
        own = [
            replace(item, name=f"{item.name}[{group}]")
            for item in self.parameters
            if item.name in vary
            for group in groups
        ]
        shared = [item for item in self.parameters if item.name not in vary]
        term = Grouped(self.term, tuple(vary), tuple(groups))
        return replace(
            self, term=term, parameters=(*shared, *own), conditions=(*self.conditions, "group")
        )

    def start_grid(self) -> Array:
        """Return every combination of the parameters' starts, [S, P]."""
        # The groups of one parameter start together: 3 starts for each of 20 groups would be 3^20.
        families = {item.name.partition("[")[0]: item.starts for item in self.parameters}
        order = list(families)
        grid = np.array(list(itertools.product(*families.values())), dtype=np.float64)
        return grid[:, [order.index(item.name.partition("[")[0]) for item in self.parameters]]

    def values(self, theta: Array) -> Array:
        """Turn fitted coordinates [..., P] into natural values [..., P]."""
        is_log = np.array([item.transform == "log" for item in self.parameters])
        # The inner where keeps exp from overflowing on columns that are no logs.
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
        missing = [name for name in self.names if not np.isfinite(values.get(name, np.nan))]
        if missing or any(
            item.transform == "log" and not values[item.name] > 0 for item in self.parameters
        ):
            raise FitError(
                f"law {self.name} needs {', '.join(self.names)}, coefficients positive; given "
                f"{dict(values)}"
            )
        return np.array(
            [
                np.log(values[item.name]) if item.transform == "log" else values[item.name]
                for item in self.parameters
            ]
        )

    def predict(self, theta: Array, inputs: Mapping[str, Array]) -> Array:
        """Predict the log of the target.

        Args:
            theta: fitted coordinates, [S, P].
            inputs: values by input in natural units, [n].

        Returns:
            Log predictions, [S, n].
        """
        log, _ = self.term.evaluate(self.columns(theta), inputs)
        return np.broadcast_to(log, (len(theta), len(inputs[self.inputs[0]])))

    def evaluate(self, theta: Array, inputs: Mapping[str, Array]) -> tuple[Array, Array]:
        """Predict the log of the target with its gradient.

        Args:
            theta: fitted coordinates, [S, P].
            inputs: values by input in natural units, [n].

        Returns:
            Log predictions [S, n] and their derivatives by the fitted coordinates [S, P, n].
        """
        log, slopes = self.term.evaluate(self.columns(theta), inputs)
        shape = (len(theta), len(inputs[self.inputs[0]]))
        gradient = np.empty((shape[0], len(self.parameters), shape[1]))
        for index, name in enumerate(self.names):
            gradient[:, index] = slopes[name]
        return np.broadcast_to(log, shape), gradient

    def columns(self, theta: Array) -> dict[str, Array]:
        """Name the columns of `theta`, each [S, 1]; fixed parameters come as [1, 1]."""
        columns = {name: theta[:, index : index + 1] for index, name in enumerate(self.names)}
        if self.fixed:
            kinds = self.term.transforms
            for name, value in self.fixed.items():
                columns[name] = np.full((1, 1), np.log(value) if kinds[name] == "log" else value)
        return columns
