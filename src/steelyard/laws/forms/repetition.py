"""Laws for training when unique data run out: what repeated tokens and excess parameters are worth.

Repeats and excess parameters enter through the effective quantities of
`steelyard.laws.forms.terms`. The constants of repetition are poorly determined by most tables;
`repetition_constants` says how poorly.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law, Parameter
from steelyard.laws.fitting.points import check_positive
from steelyard.laws.fitting.profile import Profile
from steelyard.laws.fitting.terms import (
    Array,
    Constant,
    Derivatives,
    Input,
    Minimum,
    Power,
    Product,
    Raised,
    Sum,
    Term,
)
from steelyard.laws.forms.powers import coefficient, exponent, irreducible
from steelyard.laws.forms.terms import (
    Decay,
    Formula,
    OptimalSize,
    Quotient,
    Repeated,
    positive,
    real,
    saturation,
)

__all__ = [
    "RepetitionConstants",
    "data_constrained",
    "effective_tokens",
    "overfitting_penalty",
    "repetition_constants",
    "value_of_next_epoch",
]

Base = Mapping[str, float] | Fit | None

_PASSES = (float(np.log(0.01)), float(np.log(1e6)))
"""Log range of the constants of repetition."""
_TINY = 1e-300
"""Stands for no repetition at all where its logarithm is needed."""


def data_constrained(
    decay: Decay = "exponential", tied: bool | str = False, *, base: Base = None
) -> Law:
    """Loss = E + A / N'^alpha + B / D'^beta for repeated tokens and excess parameters.

    The worth of the tokens is D' = U + U R_D (1 - exp(-r / R_D)) with r = D / U - 1, and N'
    likewise with R_N over U_N, the smaller of N and the size for which U tokens are
    compute-optimal. Without repetition and excess it is the base law.

    Args:
        decay: decay of the worth of a further pass; "geometric" loses a fixed share, 1 / (1 + R),
            with each.
        tied: use one exponent for both (alpha = beta); "tied" says so too. Follows from `base` when
            that is given.
        base: known numbers for A, B, E, alpha and beta, which are then fixed: a mapping in natural
            units, such as the `params` of a published set, or a fit of the base law. None fits them
            together with R_D and R_N.

    Returns:
        The law with inputs "parameters", "tokens" and "unique_tokens"; R_D and R_N are free, and
        the base unless given.

    Raises:
        FitError: the decay is unknown, or the base is not of the form E + A / N^alpha + B / D^beta.

    Source: Muennighoff et al. 2023 (arXiv 2305.16264), equations 5 and 6.
    """
    if decay not in ("exponential", "geometric"):
        raise FitError(f"unknown decay {decay!r}", hint="exponential or geometric")
    known, beta = _known(base, tied)
    unique = Minimum((Input("tokens"), Input("unique_tokens")))
    fitting = Minimum((Input("parameters"), OptimalSize(unique, ("alpha", beta))))
    return _on_base(
        f"data_constrained:{decay}",
        known,
        size=Repeated(Input("parameters"), fitting, "R_N", decay),
        tokens=Repeated(Input("tokens"), unique, "R_D", decay),
        beta=beta,
        parameters=(
            positive("R_D", *_PASSES, *np.log([1.0, 15.0, 200.0]).tolist()),
            positive("R_N", *_PASSES, *np.log([1.0, 5.0, 50.0]).tolist()),
        ),
        formula=f"E + A / N'^alpha + B / D'^{beta}",
    )


def overfitting_penalty(tied: bool | str = False, *, base: Base = None) -> Law:
    """Loss = E + A / N^alpha + B / D^beta + P r^delta (N / U)^kappa.

    Repeated tokens count in full, and overfitting costs. Unlike `data_constrained` it can rise with
    further epochs.

    Args:
        tied: use one exponent for both (alpha = beta); "tied" says so too. Follows from `base` when
            that is given.
        base: numbers of the base law, as in `data_constrained`.

    Returns:
        The law with inputs "parameters", "tokens" and "unique_tokens"; P, delta and kappa are free,
        and the base unless given.

    Raises:
        FitError: the base is of another form.

    Source: Lovelace et al. 2026 (arXiv 2605.01640).
    """
    known, beta = _known(base, tied)
    repeats = Formula(_log_repeats, (), ("tokens", "unique_tokens"))
    capacity = Quotient((Input("parameters"), Input("unique_tokens")))
    return _on_base(
        "overfitting_penalty",
        known,
        size=Input("parameters"),
        tokens=Input("tokens"),
        beta=beta,
        more=(Product((Constant("P"), Raised(repeats, "delta"), Raised(capacity, "kappa"))),),
        parameters=(
            positive("P", -30.0, 10.0, -6.0, -3.0),
            real("delta", 0.05, 4.0, 0.5, 1.0),
            real("kappa", 0.0, 4.0, 0.3, 1.0),
        ),
        formula=f"E + A / N^alpha + B / D^{beta} + P r^delta (N / U)^kappa",
    )


def _log_repeats(_: Mapping[str, Array], total: Array, unique: Array) -> tuple[Array, Derivatives]:
    """Return the log of the passes beyond the first, [n]."""
    return np.log(np.maximum(total / unique - 1.0, _TINY)), {}


def _on_base(
    name: str,
    known: Mapping[str, float],
    *,
    size: Term,
    tokens: Term,
    beta: str,
    more: tuple[Term, ...] = (),
    parameters: Sequence[Parameter],
    formula: str,
) -> Law:
    """Declare E + A / size^alpha + B / tokens^beta and more, with the known numbers fixed.

    A, B, E, alpha and beta have few starts, because the constants of repetition multiply them.
    """
    base = (coefficient("A", 6.0), coefficient("B", 7.5), irreducible("E", 0.5))
    exponents = [exponent(item, 0.3, 0.5) for item in dict.fromkeys(("alpha", beta))]
    law = Law(
        name=name + (":tied" if beta == "alpha" else ""),
        term=Sum((Power("A", "alpha", size), Power("B", beta, tokens), Constant("E"), *more)),
        parameters=(*base, *exponents, *parameters),
        formula=formula,
    )
    return law.fix(**known)


@dataclass(frozen=True, slots=True)
class RepetitionConstants:
    """How far the points leave the constants of repetition free.

    Attributes:
        repeats: profile of R_D; its `parameters` hold the best R_N beside each R_D.
        excess: profile of R_N.
    """

    repeats: Profile
    excess: Profile

    @property
    def is_flat(self) -> bool:
        """Whether either constant is left free; a single pair of numbers then says little."""
        return self.repeats.is_flat or self.excess.is_flat

    def __str__(self) -> str:
        """Return both intervals, and say what is flat."""
        return f"{self.repeats}\n{self.excess}"


def repetition_constants(fit: Fit, level: float = 0.9) -> RepetitionConstants:
    """Profile both constants of a `data_constrained` fit; a fitted pair is a point of a valley.

    Args:
        fit: fit with its points, R_D and R_N free.
        level: probability inside the intervals, 0..1.

    Returns:
        Both profiles.

    Raises:
        FitError: the law does not fit R_D and R_N, or the fit has no points.
    """
    missing = [name for name in ("R_D", "R_N") if name not in fit.law.names]
    if missing or not fit.inputs:
        raise FitError(
            f"law {fit.law.name} has no fitted {' and '.join(missing) or 'points'}",
            hint="fit data_constrained() to points",
        )
    return RepetitionConstants(fit.profile("R_D", level), fit.profile("R_N", level))


def effective_tokens(fit: Fit, unique_tokens: float, epochs: float, level: float = 0.8) -> Estimate:
    """Say how many fresh tokens so many epochs over the unique ones are worth.

    Args:
        fit: fit of `data_constrained`.
        unique_tokens: U, positive.
        epochs: passes over them, positive, not only whole ones; below 1 nothing repeats.
        level: probability inside the interval, 0..1.

    Returns:
        Tokens, between U and epochs U beyond the first pass.

    Raises:
        FitError: the law has no R_D, or a count is not positive and finite.

    Source: Muennighoff et al. 2023 (arXiv 2305.16264), equation 5.
    """
    check_positive(unique_tokens=unique_tokens, epochs=epochs)
    return _derived(
        fit, lambda constant, decay: unique_tokens * _passes(epochs, constant, decay), level
    )


def value_of_next_epoch(fit: Fit, epochs: float, level: float = 0.8) -> Estimate:
    """Say what one more epoch is worth after some, as a fraction of as many fresh tokens.

    Args:
        fit: fit of `data_constrained`.
        epochs: passes already made, 0 or more; after none the next is worth 1.
        level: probability inside the interval, 0..1.

    Returns:
        A fraction, 0..1.

    Raises:
        FitError: the law has no R_D, or epochs is negative or not finite.
    """
    if not (np.isfinite(epochs) and epochs >= 0):
        raise FitError(f"epochs {epochs:g} must be 0 or more and finite")
    return _derived(
        fit,
        lambda constant, decay: (
            _passes(epochs + 1, constant, decay) - _passes(epochs, constant, decay)
        ),
        level,
    )


def _passes(epochs: float, constant: Array, decay: Decay) -> Array:
    """Return the worth of so many passes in units of one, [S]."""
    if epochs <= 1:
        return np.full_like(constant, epochs)
    return saturation(np.array(epochs - 1.0), constant, decay)[0]


def _derived(fit: Fit, function: Callable[[Array, Decay], Array], level: float) -> Estimate:
    """Derive a number from R_D over the fit's bootstrap."""
    powers = fit.law.term.terms if isinstance(fit.law.term, Sum) else ()
    worths = [power.of for power in powers if isinstance(power, Power)]
    decays: list[Decay] = [
        of.decay for of in worths if isinstance(of, Repeated) and of.constant == "R_D"
    ]
    if not decays:
        raise FitError(
            f"law {fit.law.name} has no R_D",
            hint="fit data_constrained() to runs with repeated tokens",
        )
    return fit.derive(lambda params: function(params["R_D"], decays[0]), level)


def _known(base: Base, tied: bool | str) -> tuple[dict[str, float], str]:
    """Resolve the base to numbers of A, B, E, alpha and beta, empty for none, and name the beta."""
    if base is None:
        return {}, "alpha" if tied in (True, "tied") else "beta"
    numbers = {**base.law.fixed, **base.params} if isinstance(base, Fit) else dict(base)
    if set(numbers) not in ({"A", "B", "E", "alpha"}, {"A", "B", "E", "alpha", "beta"}):
        raise FitError(
            f"the base gives {', '.join(numbers) or 'nothing'}; needed are A, B, E, alpha and, "
            f"unless tied, beta",
            hint="give a fit of chinchilla() or chinchilla(tied=True) to single-epoch runs of the "
            "same tokenizer and parameter count",
        )
    return numbers, "beta" if "beta" in numbers else "alpha"
