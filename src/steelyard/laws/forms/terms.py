"""What laws are made of beyond sums and powers: parameters in short, quotients, formulas.

Effective quantities say what a repeated amount or an oversized model counts as. A term stands where
an input would, as in `Power("B", "beta", of=Repeated(...))`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from steelyard.laws.fitting.law import Law, Parameter, Prior
from steelyard.laws.fitting.terms import Array, Derivatives, Product, Term, Transform

__all__ = [
    "Decay",
    "Formula",
    "Number",
    "OptimalSize",
    "Quotient",
    "Repeated",
    "formula_law",
    "positive",
    "real",
    "saturation",
]

Decay = Literal["exponential", "geometric"]
"""How the worth of a further pass falls: by exp(-1/R) of a smooth decay, or as R / (1 + R) to the
power of the pass."""

_LARGEST_LOG = 600.0
"""Beyond it a ratio counts as this large, so that no exponential overflows."""


def positive(
    name: str, low: float, high: float, *starts: float, prior: Prior | None = None
) -> Parameter:
    """Declare a number that is fitted by its log; bounds, starts and prior are logs."""
    return Parameter(name=name, transform="log", low=low, high=high, starts=starts, prior=prior)


def real(
    name: str, low: float, high: float, *starts: float, prior: Prior | None = None
) -> Parameter:
    """Declare a number that is fitted as it is, such as an exponent."""
    return Parameter(
        name=name, transform="identity", low=low, high=high, starts=starts, prior=prior
    )


@dataclass(frozen=True)
class Formula(Term):
    """A quantity written as one function, where sums and powers do not reach.

    Attributes:
        function: takes the fitted coordinates by name and one column per input, and returns what
            `Term.evaluate` does.
        parameters: those it uses.
        columns: names of the inputs, in the order of the function's arguments.
    """

    function: Callable[..., tuple[Array, Derivatives]]
    parameters: tuple[Parameter, ...]
    columns: tuple[str, ...]

    @property
    def transforms(self) -> dict[str, Transform]:
        """As the parameters declare."""
        return {item.name: item.transform for item in self.parameters}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns."""
        return self.columns

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return what the function does; see `Term.evaluate`."""
        return self.function(theta, *(inputs[name] for name in self.columns))


def formula_law(
    name: str,
    function: Callable[..., tuple[Array, Derivatives]],
    inputs: tuple[str, ...],
    parameters: tuple[Parameter, ...],
    formula: str,
) -> Law:
    """Declare a law that is one `Formula`."""
    term = Formula(function, parameters, inputs)
    return Law(name=name, term=term, parameters=parameters, formula=formula)


@dataclass(frozen=True)
class Number(Term):
    """A known positive number.

    Attributes:
        value: the number.
    """

    value: float

    transforms: ClassVar[dict[str, Transform]] = {}
    inputs: ClassVar[tuple[str, ...]] = ()

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log number, [1]; see `Term.evaluate`."""
        return np.log([self.value]), {}


@dataclass(frozen=True)
class Quotient(Product):
    """The first of two terms over the second."""

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the difference of the logs, [S, n]; see `Term.evaluate`."""
        (over, under), (rising, falling) = self._parts(theta, inputs)
        return over - under, rising | {
            name: rising.get(name, 0.0) - slope for name, slope in falling.items()
        }


@dataclass(frozen=True)
class Repeated(Term):
    """The worth of a total of which only a part is unique.

    It is u + u R (1 - decay(r)) for r = total / u - 1 repetitions. The worth saturates at u (1 +
    R); R to infinity gives the total back, and so does a total of at most u.

    Attributes:
        total: such as the tokens trained on; has no parameters.
        unique: u, such as the unique tokens among them; where it exceeds the total, the total
            counts.
        constant: name of the "log" parameter R.
        decay: "exponential" for exp(-r / R), "geometric" for (R / (1 + R))^r, a fixed share of
            worth lost with each pass.

    Source: Muennighoff et al. 2023 (arXiv 2305.16264), equation 5 and, for the geometric form,
        appendix A.
    """

    total: Term
    unique: Term
    constant: str
    decay: Decay = "exponential"

    @property
    def transforms(self) -> dict[str, Transform]:
        """Those of the unique part, and the constant."""
        return {**self.unique.transforms, self.constant: "log"}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Those of both quantities, each once."""
        return tuple(dict.fromkeys((*self.total.inputs, *self.unique.inputs)))

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log worth, [S, n]; see `Term.evaluate`."""
        whole, _ = self.total.evaluate(theta, inputs)
        part, part_slopes = self.unique.evaluate(theta, inputs)
        ratio = np.exp(np.clip(whole - part, 0.0, _LARGEST_LOG))
        worth, by_repeats, by_constant = saturation(
            ratio - 1.0, np.exp(theta[self.constant]), self.decay
        )
        # Where nothing repeats, the worth is the total and the unique part has no say.
        say = np.where(whole < part, 0.0, 1.0 - by_repeats * ratio / worth)
        slopes: Derivatives = {name: say * slope for name, slope in part_slopes.items()}
        return np.minimum(whole, part) + np.log(worth), slopes | {
            self.constant: by_constant / worth
        }


def saturation(repeats: Array, constant: Array, decay: Decay) -> tuple[Array, Array, Array]:
    """Return the worth of repetitions in units of the first pass, 1 + R (1 - exp(-rate r)).

    Args:
        repeats: r, passes beyond the first, 0 or more; broadcasts with `constant`.
        constant: R, positive.
        decay: exponential with rate 1 / R, or geometric with rate ln(1 + 1 / R).

    Returns:
        The worth, and its derivatives by r and by ln R.
    """
    if decay == "geometric":
        rate, rate_slope = np.log1p(1 / constant), -1 / (1 + constant)
    else:
        rate, rate_slope = 1 / constant, -1 / constant
    # expm1 keeps the gain of a very small number of repetitions, where 1 - exp would round to 0.
    lost = np.expm1(-rate * repeats)
    gained, kept = -constant * lost, 1.0 + lost
    return 1.0 + gained, constant * rate * kept, gained + constant * rate_slope * repeats * kept


@dataclass(frozen=True)
class OptimalSize(Term):
    """The model size for which so many tokens are compute-optimal.

    It balances the two terms of E + A / N^alpha + B / D^beta: alpha A / N^alpha = beta B / D^beta.

    Attributes:
        tokens: D, a term without parameters.
        exponents: names of alpha and beta; the same name twice for tied exponents.

    Source: Hoffmann et al. 2022 (arXiv 2203.15556), equation 4, solved for N at given D; used for
        U_N in Muennighoff et al. 2023 (arXiv 2305.16264), section 3.1.
    """

    tokens: Term
    exponents: tuple[str, str] = ("alpha", "beta")

    @property
    def transforms(self) -> dict[str, Transform]:
        """Coefficients A and B, and the exponents."""
        return {"A": "log", "B": "log", **dict.fromkeys(self.exponents, "identity")}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Those of the tokens."""
        return self.tokens.inputs

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log size, [S, n]; see `Term.evaluate`."""
        log_tokens, _ = self.tokens.evaluate(theta, inputs)
        first, second = self.exponents
        alpha, beta = theta[first], theta[second]
        log_size = (np.log(alpha / beta) + theta["A"] - theta["B"] + beta * log_tokens) / alpha
        slopes: Derivatives = {
            "A": 1 / alpha,
            "B": -1 / alpha,
            first: (1 / alpha - log_size) / alpha,
        }
        # Tied exponents are one parameter, whose two parts add.
        slopes[second] = slopes.get(second, 0.0) + (log_tokens - 1 / beta) / alpha
        return log_size, slopes
