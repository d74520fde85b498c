"""The building blocks of a law: positive quantities by their logarithm, with exact derivatives.

A `Term` evaluates the log of a positive quantity for S parameter sets and n points at once. A sum
of terms is taken with log-sum-exp, so a prediction never underflows and never turns negative. A new
kind of term is one small class.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import FitError

__all__ = [
    "Array",
    "Constant",
    "Derivatives",
    "Grouped",
    "Input",
    "Minimum",
    "Power",
    "Product",
    "Raised",
    "Sum",
    "Term",
    "Transform",
]

Transform = Literal["log", "identity"]
Array = NDArray[np.float64]
Derivatives = dict[str, "Array | float"]


class Term(ABC):
    """The log of a positive quantity as a function of parameters and inputs.

    Parameters arrive in fitted coordinates: the natural log of a "log" parameter, the value of an
    "identity" one.
    """

    @property
    @abstractmethod
    def transforms(self) -> dict[str, Transform]:
        """Names of the parameters it uses, each with the coordinate it expects."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs it reads, positive numbers."""

    @abstractmethod
    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log of the quantity and its derivative by each parameter.

        Args:
            theta: fitted coordinate by parameter, [S, 1]; [S, n] when groups of points have values
                of their own.
            inputs: values by input in natural units, [n].

        Returns:
            The log value and its derivative by each parameter, all broadcastable to [S, n].
        """


@dataclass(frozen=True)
class Constant(Term):
    """A positive constant such as the irreducible loss E.

    Attributes:
        name: name of the parameter, a "log" one.
    """

    name: str

    @property
    def transforms(self) -> dict[str, Transform]:
        """The constant itself."""
        return {self.name: "log"}

    @property
    def inputs(self) -> tuple[str, ...]:
        """None."""
        return ()

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log constant, [S, 1]; see `Term.evaluate`."""
        return theta[self.name], {self.name: 1.0}


@dataclass(frozen=True)
class Input(Term):
    """An input as it is, for products and for powers of effective quantities.

    Attributes:
        name: name of the input.
    """

    name: str

    @property
    def transforms(self) -> dict[str, Transform]:
        """None."""
        return {}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The input itself."""
        return (self.name,)

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log input, [n]; see `Term.evaluate`."""
        return np.log(inputs[self.name]), {}


@dataclass(frozen=True)
class Raised(Term):
    """A term raised to a power.

    Attributes:
        base: the term.
        exponent: name of the "identity" parameter.
    """

    base: Term
    exponent: str

    @property
    def transforms(self) -> dict[str, Transform]:
        """Those of the base, and the exponent."""
        return {**self.base.transforms, self.exponent: "identity"}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Those of the base."""
        return self.base.inputs

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return exponent * log base, [S, n]; see `Term.evaluate`."""
        log, slopes = self.base.evaluate(theta, inputs)
        power = theta[self.exponent]
        return power * log, _added(_scaled(power, slopes), {self.exponent: log})


@dataclass(frozen=True)
class Power(Term):
    """A falling power of one quantity: coefficient / quantity^exponent.

    Attributes:
        coefficient: name of the "log" parameter.
        exponent: name of the "identity" parameter; terms that name the same exponent share it.
        of: name of an input, or a term for an effective quantity, such as what repeated tokens are
            worth.
    """

    coefficient: str
    exponent: str
    of: "str | Term"

    @property
    def base(self) -> Term:
        """What is raised."""
        return Input(self.of) if isinstance(self.of, str) else self.of

    @property
    def transforms(self) -> dict[str, Transform]:
        """Those of the quantity, the coefficient and the exponent."""
        return {self.coefficient: "log", self.exponent: "identity", **self.base.transforms}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Those of the quantity."""
        return self.base.inputs

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return ln coefficient - exponent * ln quantity, [S, n]; see `Term.evaluate`."""
        log, slopes = Raised(self.base, self.exponent).evaluate(theta, inputs)
        return theta[self.coefficient] - log, _added(_scaled(-1.0, slopes), {self.coefficient: 1.0})


@dataclass(frozen=True)
class _Several(Term):
    """What sums, products and minima share.

    Attributes:
        terms: terms, at least one.
    """

    terms: tuple[Term, ...]

    @property
    def transforms(self) -> dict[str, Transform]:
        """Those of all terms."""
        return {name: kind for term in self.terms for name, kind in term.transforms.items()}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Those of all terms, each once, in order."""
        return tuple(dict.fromkeys(name for term in self.terms for name in term.inputs))

    def _parts(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[tuple[Array, ...], tuple[Derivatives, ...]]:
        """Evaluate every term: logs, and derivatives."""
        logs, slopes = zip(*(term.evaluate(theta, inputs) for term in self.terms), strict=True)
        return logs, slopes


@dataclass(frozen=True)
class Product(_Several):
    """The product of terms."""

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the sum of the logs, [S, n]; see `Term.evaluate`."""
        logs, slopes = self._parts(theta, inputs)
        return functools.reduce(np.add, logs), functools.reduce(_added, slopes)


@dataclass(frozen=True)
class Minimum(_Several):
    """The smallest of terms, such as a cap; its derivative is that of the smallest one."""

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the smallest log, [S, n]; see `Term.evaluate`."""
        logs, slopes_of = self._parts(theta, inputs)
        columns = np.broadcast_arrays(*logs)
        which = np.argmin(columns, axis=0)
        names = {name for slopes in slopes_of for name in slopes}
        return np.min(columns, axis=0), {
            name: sum(
                (which == index) * slopes.get(name, 0.0) for index, slopes in enumerate(slopes_of)
            )
            for name in names
        }


@dataclass(frozen=True)
class Sum(_Several):
    """The sum of terms, by log-sum-exp."""

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log of the sum, [S, n]; see `Term.evaluate`."""
        logs, slopes = self._parts(theta, inputs)
        # The largest term is taken out first: a start far from the points may put 1e300 beside
        # 1e-300, and the exponentials of both would leave the range of float64.
        largest = functools.reduce(np.maximum, logs)
        shares = [np.exp(log - largest) for log in logs]
        total = functools.reduce(np.add, shares)
        weighted = [
            _scaled(share / total, slope) for share, slope in zip(shares, slopes, strict=True)
        ]
        return largest + np.log(total), functools.reduce(_added, weighted)


def _scaled(factor: Array | float, slopes: Derivatives) -> Derivatives:
    """Multiply derivatives."""
    return {name: factor * slope for name, slope in slopes.items()}


def _added(first: Derivatives, second: Derivatives) -> Derivatives:
    """Add derivatives name by name; terms may share parameters."""
    return first | {
        name: first[name] + slope if name in first else slope for name, slope in second.items()
    }


@dataclass(frozen=True)
class Grouped(Term):
    """A term some of whose parameters have a value per group, such as one intercept per task.

    The input "group" holds the group's number, 1..G.

    Attributes:
        base: the term.
        vary: parameters of the base with a value per group, named "parameter[group]".
        groups: names of the G groups.
    """

    base: Term
    vary: tuple[str, ...]
    groups: tuple[str, ...]

    @property
    def transforms(self) -> dict[str, Transform]:
        """Shared parameters, and one per group of each that varies."""
        kinds = self.base.transforms
        free: dict[str, Transform] = {
            name: kind for name, kind in kinds.items() if name not in self.vary
        }
        free |= {f"{name}[{group}]": kinds[name] for name in self.vary for group in self.groups}
        return free

    @property
    def inputs(self) -> tuple[str, ...]:
        """Those of the base, and the group's number."""
        return (*self.base.inputs, "group")

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the base with each point's own parameters, [S, n]; see `Term.evaluate`."""
        number = np.rint(inputs["group"]).astype(np.int64) - 1
        own = dict(theta)
        for name in self.vary:
            own[name] = np.concatenate(
                [np.atleast_2d(theta[f"{name}[{group}]"]) for group in self.groups], axis=1
            )[:, number]
        log, slopes = self.base.evaluate(own, inputs)
        derivatives: Derivatives = {
            name: slope for name, slope in slopes.items() if name not in self.vary
        }
        for name in self.vary:
            # A group's own parameter moves the points of that group only.
            for index, group in enumerate(self.groups):
                derivatives[f"{name}[{group}]"] = slopes[name] * (number == index)
        return log, derivatives

    def numbers(self, labels: Array) -> Array:
        """Turn names of groups into their numbers; numbers stay as they are.

        Args:
            labels: names or numbers, [n].

        Returns:
            Numbers 1..G, [n].

        Raises:
            FitError: a name or number is not one of the groups.
        """
        known = {group: index + 1.0 for index, group in enumerate(self.groups)}
        hint = f"groups: {', '.join(self.groups)}"
        try:
            # Names go first: a group may be called "2".
            numbers = [
                known[str(label)] if str(label) in known else float(label)
                for label in np.atleast_1d(labels)
            ]
        except ValueError as error:
            raise FitError(f"unknown group ({error})", hint=hint) from error
        if any(number not in known.values() for number in numbers):
            raise FitError(f"group numbers must lie in 1..{len(self.groups)}", hint=hint)
        return np.array(numbers)
