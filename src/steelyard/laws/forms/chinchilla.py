"""The laws of the literature as declarations.

Bounds and priors are for losses of language models in nats or bits; they are wide, and a fit names
a parameter that ends at a bound. Coefficients are fitted by their natural log.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steelyard.laws.fitting.law import Law, Parameter, Prior
from steelyard.laws.fitting.terms import Array, Constant, Derivatives, Power, Sum, Term, Transform

__all__ = [
    "chinchilla",
    "chinchilla_tied",
    "coefficient",
    "exponent",
    "irreducible",
    "kaplan",
    "power_law",
]

_EXPONENT = (0.05, 1.5)
_EXPONENT_PRIOR = Prior(0.37, 0.2)
"""Published exponents of language models lie between .28 and .45 (Hoffmann 2022, Besiroglu 2024,
Muennighoff 2023); wider here."""


def coefficient(name: str, *starts: float) -> Parameter:
    """Declare the coefficient of a power; starts are logs."""
    return Parameter(name=name, transform="log", low=-20.0, high=60.0, starts=starts)


def exponent(name: str, *starts: float) -> Parameter:
    """Declare the exponent of a power, believed near the published ones."""
    return Parameter(
        name=name,
        transform="identity",
        low=_EXPONENT[0],
        high=_EXPONENT[1],
        starts=starts,
        prior=_EXPONENT_PRIOR,
    )


def irreducible(name: str, *starts: float) -> Parameter:
    """Declare an irreducible loss; starts are logs."""
    return Parameter(
        name=name, transform="log", low=-7.0, high=5.0, starts=starts, prior=Prior(0.3, 1.5)
    )


def chinchilla(*, tied: bool = False) -> Law:
    """Loss = E + A / parameters^alpha + B / tokens^beta.

    72 starts: ln A in {3, 6, 10}, ln B in {5, 8, 12}, ln E in {-.5, .5}, alpha and beta in {.3,
    .6}.

    Args:
        tied: use one exponent for both (alpha = beta); it is then called alpha.

    Returns:
        The law with inputs "parameters" and "tokens", 5 parameters (4 when tied).

    Source: Hoffmann et al. 2022 (arXiv 2203.15556), equation 10; starts after Besiroglu et al. 2024
    (arXiv 2404.10102).
    """
    beta = "alpha" if tied else "beta"
    parameters = [
        coefficient("A", 3.0, 6.0, 10.0),
        coefficient("B", 5.0, 8.0, 12.0),
        irreducible("E", -0.5, 0.5),
        exponent("alpha", 0.3, 0.6),
    ]
    return Law(
        name="chinchilla_tied" if tied else "chinchilla",
        term=Sum((Power("A", "alpha", "parameters"), Power("B", beta, "tokens"), Constant("E"))),
        parameters=tuple(parameters if tied else [*parameters, exponent("beta", 0.3, 0.6)]),
        formula=f"E + A / N^alpha + B / D^{beta}",
    )


def chinchilla_tied() -> Law:
    """Return `chinchilla(tied=True)`: loss = E + A / parameters^alpha + B / tokens^alpha."""
    return chinchilla(tied=True)


def power_law(of: str = "parameters", floor: bool | str = True) -> Law:
    """Loss = A / input^alpha + E, a straight line in log-log space above a floor.

    Args:
        of: name of the input.
        floor: whether an irreducible part E is added; "nofloor" says no.

    Returns:
        The law with one input and 3 parameters (2 without floor).

    Source: Hestness et al. 2017 (arXiv 1712.00409).
    """
    power = Power("A", "alpha", of)
    parameters = (coefficient("A", 1.0, 4.0, 8.0), exponent("alpha", 0.1, 0.3, 0.6))
    if floor in (False, "nofloor"):
        return Law(
            name=f"power_law:{of}:nofloor",
            term=power,
            parameters=parameters,
            formula=f"A / {of}^alpha",
        )
    law = Sum((power, Constant("E")))
    return Law(
        name=f"power_law:{of}",
        term=law,
        parameters=(*parameters, irreducible("E", -2.0, 0.5)),
        formula=f"A / {of}^alpha + E",
    )


@dataclass(frozen=True)
class _KaplanTerm(Term):
    """[(Nc / parameters)^(alpha_N / alpha_D) + Dc / tokens]^alpha_D."""

    transforms: ClassVar[dict[str, Transform]] = {
        "Nc": "log",
        "Dc": "log",
        "alpha_N": "identity",
        "alpha_D": "identity",
    }
    inputs: ClassVar[tuple[str, ...]] = ("parameters", "tokens")

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log loss, [S, n]; see `Term.evaluate`."""
        size = theta["Nc"] - np.log(inputs["parameters"])
        data = theta["Dc"] - np.log(inputs["tokens"])
        power = theta["alpha_D"]
        ratio = theta["alpha_N"] / power
        # The sum of both parts in log space: neither overflows, whatever the scales.
        total = np.logaddexp(ratio * size, data)
        share = np.exp(ratio * size - total)
        slopes: Derivatives = {
            "Nc": theta["alpha_N"] * share,
            "Dc": power * (1 - share),
            "alpha_N": share * size,
            "alpha_D": total - ratio * share * size,
        }
        return power * total, slopes


def kaplan() -> Law:
    """Loss = [(Nc / parameters)^(alpha_N / alpha_D) + Dc / tokens]^alpha_D, without a floor.

    Returns:
        The law with inputs "parameters" (non-embedding in the paper) and "tokens", 4 parameters.

    Source: Kaplan et al. 2020 (arXiv 2001.08361), equation 1.5.
    """
    scale = (10.0, 20.0, 30.0)
    parameters = (
        Parameter(name="Nc", transform="log", low=-20.0, high=150.0, starts=scale),
        Parameter(name="Dc", transform="log", low=-20.0, high=150.0, starts=scale),
        Parameter(
            name="alpha_N",
            transform="identity",
            low=0.01,
            high=1.5,
            starts=(0.08, 0.25),
            prior=Prior(0.1, 0.1),
        ),
        Parameter(
            name="alpha_D",
            transform="identity",
            low=0.01,
            high=1.5,
            starts=(0.08, 0.25),
            prior=Prior(0.1, 0.1),
        ),
    )
    formula = "[(Nc / N)^(alpha_N / alpha_D) + Dc / D]^alpha_D"
    return Law(name="kaplan", term=_KaplanTerm(), parameters=parameters, formula=formula)
