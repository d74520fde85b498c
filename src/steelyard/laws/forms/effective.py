"""Effective quantities: what a repeated amount or an oversized model counts as.

A term stands where an input would, as in `Power("B", "beta", of=Repeated(...))`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from steelyard.laws.fitting.terms import Array, Derivatives, Term, Transform

__all__ = ["Decay", "OptimalSize", "Quotient", "Repeated", "Repetitions", "saturation"]

Decay = Literal["exponential", "geometric"]
"""How the worth of a further pass falls: by exp(-1/R) of a smooth decay, or as R / (1 + R) to the
power of the pass."""

_TINY = 1e-300
"""Stands for no repetition at all where its logarithm is needed."""

_LARGEST_LOG = 600.0
"""Beyond it a ratio counts as this large, so that no exponential overflows."""


@dataclass(frozen=True)
class Repeated(Term):
    """The worth of a total of which only a part is unique.

    It is u + u R (1 - decay(r)) for r = total / u - 1 repetitions. The worth saturates at u (1 +
    R); R to infinity gives the total back, and so does a total of at most u.

    Attributes:
        total: such as the tokens trained on.
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
        """Those of both quantities, and the constant."""
        return {**self.total.transforms, **self.unique.transforms, self.constant: "log"}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Those of both quantities, each once."""
        return tuple(dict.fromkeys((*self.total.inputs, *self.unique.inputs)))

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log worth, [S, n]; see `Term.evaluate`."""
        whole, whole_slopes = self.total.evaluate(theta, inputs)
        part, part_slopes = self.unique.evaluate(theta, inputs)
        ratio = np.exp(np.clip(whole - part, 0.0, _LARGEST_LOG))
        log_constant = theta[self.constant]
        worth, by_repeats, by_constant = saturation(ratio - 1.0, np.exp(log_constant), self.decay)
        slopes: Derivatives = {}
        if whole_slopes or part_slopes:
            # Where nothing repeats, the worth is the total and the unique part has no say.
            elasticity = np.where(whole < part, 1.0, by_repeats * ratio / worth)
            for name in {**whole_slopes, **part_slopes}:
                slopes[name] = elasticity * whole_slopes.get(name, 0.0) + (
                    1.0 - elasticity
                ) * part_slopes.get(name, 0.0)
        slopes[self.constant] = slopes.get(self.constant, 0.0) + by_constant / worth
        return np.minimum(whole, part) + np.log(worth), slopes


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
        tokens: D, a term.
        exponents: names of alpha and beta; the same name twice for tied exponents.

    Source: Hoffmann et al. 2022 (arXiv 2203.15556), equation 4, solved for N at given D; used for
        U_N in Muennighoff et al. 2023 (arXiv 2305.16264), section 3.1.
    """

    tokens: Term
    exponents: tuple[str, str] = ("alpha", "beta")

    @property
    def transforms(self) -> dict[str, Transform]:
        """Coefficients A and B, and the exponents."""
        return {
            **self.tokens.transforms,
            "A": "log",
            "B": "log",
            **dict.fromkeys(self.exponents, "identity"),
        }

    @property
    def inputs(self) -> tuple[str, ...]:
        """Those of the tokens."""
        return self.tokens.inputs

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log size, [S, n]; see `Term.evaluate`."""
        log_tokens, token_slopes = self.tokens.evaluate(theta, inputs)
        first, second = self.exponents
        alpha, beta = theta[first], theta[second]
        log_size = (np.log(alpha / beta) + theta["A"] - theta["B"] + beta * log_tokens) / alpha
        slopes: Derivatives = {name: beta / alpha * slope for name, slope in token_slopes.items()}
        parts = (
            ("A", 1 / alpha),
            ("B", -1 / alpha),
            (first, (1 / alpha - log_size) / alpha),
            (second, (log_tokens - 1 / beta) / alpha),
        )
        for name, part in parts:
            slopes[name] = slopes.get(name, 0.0) + part
        return log_size, slopes


@dataclass(frozen=True)
class Quotient(Term):
    """One input over another.

    Attributes:
        over: name of the input above the line.
        under: name of the input below it.
    """

    over: str
    under: str

    transforms: ClassVar[dict[str, Transform]] = {}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Both."""
        return (self.over, self.under)

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log quotient, [n]; see `Term.evaluate`."""
        return np.log(inputs[self.over]) - np.log(inputs[self.under]), {}


@dataclass(frozen=True)
class Repetitions(Quotient):
    """How often an amount goes beyond the first pass: over / under - 1.

    Where it does not, 1e-300 stands for none.
    """

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log of the repetitions, [n]; see `Term.evaluate`."""
        return np.log(np.maximum(inputs[self.over] / inputs[self.under] - 1.0, _TINY)), {}
