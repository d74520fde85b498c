"""Powers above a floor and products of powers: for any inputs, and for the batch."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.law import Law, Parameter, Prior
from steelyard.laws.fitting.terms import Array, Constant, Input, Power, Product, Raised, Sum, Term
from steelyard.laws.forms.terms import positive, real

__all__ = [
    "batch_law",
    "batch_of_loss",
    "coefficient",
    "critical_batch_at_loss",
    "exponent",
    "irreducible",
    "monomial",
    "power_form",
    "power_law",
    "powers",
    "product_form",
]

_KAPLAN = (2e8, 0.21)
"""Critical batch in tokens at a loss of 1 nat per token, and alpha_B: Kaplan et al. 2020 (arXiv
2001.08361), critical batch size."""

_EXPONENT_PRIOR = Prior(0.37, 0.2)
"""Published exponents of language models lie between .28 and .45 (Hoffmann 2022, Besiroglu 2024,
Muennighoff 2023); wider here."""


def coefficient(name: str, *starts: float) -> Parameter:
    """Declare the coefficient of a power; starts are logs."""
    return positive(name, -20.0, 60.0, *starts)


def exponent(name: str, *starts: float) -> Parameter:
    """Declare the exponent of a power, believed near the published ones."""
    return real(name, 0.05, 1.5, *starts, prior=_EXPONENT_PRIOR)


def irreducible(name: str, *starts: float) -> Parameter:
    """Declare an irreducible loss; starts are logs."""
    return positive(name, -7.0, 5.0, *starts, prior=Prior(0.3, 1.5))


def power_form(
    name: str, of: str, roles: Sequence[str], parameters: Sequence[Parameter], formula: str
) -> Law:
    """Declare coefficient / input^exponent, above a floor where there is one.

    Args:
        name: name of the law.
        of: name of the input.
        roles: names of coefficient and exponent, and of the floor if any.
        parameters: all of them, in the order of the fit's coordinates.
        formula: the law in words of its paper.

    Returns:
        The law with one input.
    """
    coefficient, exponent, *floor = roles
    term = Sum((Power(coefficient, exponent, of), *map(Constant, floor)))
    return Law(name=name, term=term, parameters=tuple(parameters), formula=formula)


def product_form(
    name: str, coefficient: Parameter, exponents: Mapping[str, Parameter], formula: str = ""
) -> Law:
    """Declare coefficient times the product over inputs of input^exponent, a plane in log space.

    Args:
        name: name of the law.
        coefficient: the factor.
        exponents: exponent by input, in order.
        formula: the law in words of its paper; empty for "c input^exponent ..." of the names.

    Returns:
        The law.
    """
    factors = [Raised(Input(of), item.name) for of, item in exponents.items()]
    named = [coefficient.name, *(f"{of}^{item.name}" for of, item in exponents.items())]
    return Law(
        name=name,
        term=Product((Constant(coefficient.name), *factors)),
        parameters=(coefficient, *exponents.values()),
        formula=formula or " ".join(named),
    )


def power_law(of: str = "parameters", floor: bool | str = True) -> Law:
    """Loss = A / input^alpha + E, a straight line in log-log space above a floor.

    Args:
        of: name of the input.
        floor: whether an irreducible part E is added; "nofloor" says no.

    Returns:
        The law with one input and 3 parameters (2 without floor).

    Source: Hestness et al. 2017 (arXiv 1712.00409).
    """
    parameters = (coefficient("A", 1.0, 4.0, 8.0), exponent("alpha", 0.1, 0.3, 0.6))
    formula = f"A / {of}^alpha"
    if floor in (False, "nofloor"):
        return power_form(f"power_law:{of}:nofloor", of, ("A", "alpha"), parameters, formula)
    parameters = (*parameters, irreducible("E", -2.0, 0.5))
    return power_form(f"power_law:{of}", of, ("A", "alpha", "E"), parameters, f"{formula} + E")


def powers(*of: str) -> Law:
    """Target = E + sum over inputs of A_input / input^alpha_input.

    Args:
        *of: names of the inputs, each once; a last "nofloor" leaves E out.

    Returns:
        The law with parameters "A_<input>" and "alpha_<input>" per input, and "E".

    Raises:
        FitError: no inputs, or one twice.

    Source: Kaplan et al. 2020 (arXiv 2001.08361), equation 1.6, for parameters and steps without
        floor.
    """
    names = _distinct(*(name for name in of if name != "nofloor"))
    terms: list[Term] = [Power(f"A_{name}", f"alpha_{name}", name) for name in names]
    parts = [f"A_{name} / {name}^alpha_{name}" for name in names]
    # The unit of an input is not known: wide bounds and starts.
    parameters = [
        parameter
        for name in names
        for parameter in (
            positive(f"A_{name}", -60.0, 150.0, 1.0, 5.0, 10.0),
            real(f"alpha_{name}", -1.0, 4.0, 0.1, 0.3, 0.7),
        )
    ]
    if "nofloor" not in of:
        terms.append(Constant("E"))
        parameters.append(positive("E", -20.0, 60.0, -1.0, 0.5))
        parts.insert(0, "E")
    return Law(
        name=":".join(("powers", *of)),
        term=Sum(tuple(terms)),
        parameters=tuple(parameters),
        formula=" + ".join(parts),
    )


def monomial(*of: str) -> Law:
    """Target = c times the product over inputs of input^p_input, a plane in log space.

    Args:
        *of: names of the inputs, each once.

    Returns:
        The law with parameters "c" and one "p_<input>" per input.

    Raises:
        FitError: no inputs, or one twice.
    """
    slopes = {name: real(f"p_{name}", -5.0, 5.0, 0.0) for name in _distinct(*of)}
    return product_form(":".join(("monomial", *of)), positive("c", -150.0, 150.0, 0.0), slopes)


def batch_law(*of: str) -> Law:
    """Critical or best batch = c parameters^p tokens^q.

    Args:
        *of: inputs, among "parameters" and "tokens"; none for both.

    Returns:
        The law of a batch, 2 or 3 parameters.

    Raises:
        FitError: other inputs.

    Source: Zhang et al. 2024 (arXiv 2410.21676), section 4.
    """
    exponents = {"parameters": "p", "tokens": "q"}
    names = of or tuple(exponents)
    if any(name not in exponents for name in names) or len(set(names)) != len(names):
        raise FitError(
            f"batch law of {', '.join(names)}", hint="its inputs are parameters, tokens or both"
        )
    powers = {name: real(exponents[name], -2.0, 3.0, 0.3) for name in names}
    return product_form(":".join(("batch_law", *of)), positive("c", -80.0, 80.0, 0.0), powers)


def batch_of_loss() -> Law:
    """Critical batch = B_star / loss^exponent, the exponent being 1 / alpha_B.

    Returns:
        The law of a batch with input "loss", 2 parameters.

    Source: Kaplan et al. 2020 (arXiv 2001.08361), critical batch size.
    """
    parameters = (
        positive("B_star", -10.0, 60.0, 10.0, 20.0),
        real("exponent", 0.1, 20.0, 2.0, 5.0),
    )
    roles = ("B_star", "exponent")
    return power_form("batch_of_loss", "loss", roles, parameters, "B_star / L^exponent")


def critical_batch_at_loss(loss: ArrayLike) -> Array:
    """Return the critical batch of language models at a loss, as published.

    2e8 / loss^(1 / .21) tokens.

    Args:
        loss: nats per token of the paper's tokenizer, positive, [n].

    Returns:
        Tokens per step at which steps and examples are both twice their least, [n].

    Raises:
        FitError: a loss that is not positive.

    Source: Kaplan et al. 2020 (arXiv 2001.08361), critical batch size.
    """
    value = np.asarray(loss, dtype=np.float64)
    if not (value > 0).all():
        raise FitError("losses must be positive")
    return _KAPLAN[0] / value ** (1 / _KAPLAN[1])


def _distinct(*names: str) -> tuple[str, ...]:
    """Refuse no names and repeated ones."""
    if not names or len(set(names)) != len(names):
        raise FitError(
            f"a law of the inputs {', '.join(names) or 'none'}",
            hint="name each input once, at least one",
        )
    return names
