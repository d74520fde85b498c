"""Powers above a floor and products of powers, in the letters of the papers that use them.

Every law of one power is `power_law` and every product of powers is `monomial`; what papers call
them, and the bounds and starts that suit what they predict, stands in two tables.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.law import Law, Parameter, Prior
from steelyard.laws.fitting.terms import Array, Constant, Input, Power, Product, Raised, Sum, Term
from steelyard.laws.forms.terms import positive, real

__all__ = [
    "LOG_NO_FLOOR",
    "POWER_FORMS",
    "PRODUCT_FORMS",
    "coefficient",
    "critical_batch_at_loss",
    "exponent",
    "irreducible",
    "monomial",
    "power_law",
    "powers",
    "product_form",
]

_KAPLAN = (2e8, 0.21)
"""Critical batch in tokens at a loss of 1 nat per token, and alpha_B: Kaplan et al. 2020 (arXiv
2001.08361), critical batch size."""

LOG_NO_FLOOR = -12.0
"""The log of a floor so low that it is none."""

_ANY = "any"
"""Stands for every input that has no exponent of its own."""

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


_POWERS: dict[str, tuple[str, str, tuple[Parameter, ...]]] = {
    # Hestness et al. 2017 (arXiv 1712.00409).
    "power_law": (
        "parameters",
        "A alpha E",
        (
            coefficient("A", 1.0, 4.0, 8.0),
            exponent("alpha", 0.1, 0.3, 0.6),
            irreducible("E", -2.0, 0.5),
        ),
    ),
    # Hestness et al. 2017, section 3: beta is minus their beta_g, a gamma of e^-12 is no floor.
    "power_law_floor": (
        "samples",
        "alpha beta gamma",
        (
            positive("alpha", -20.0, 60.0, 0.0, 3.0, 6.0),
            real("beta", 0.01, 4.0, 0.1, 0.3, 0.8),
            positive("gamma", LOG_NO_FLOOR, 5.0, -4.0, 0.0),
        ),
    ),
    # Fine-tuning loss, Lin et al. 2024 (arXiv 2402.02314), equation 1.
    "vanilla": (
        "examples",
        "B beta E",
        (
            positive("B", -20.0, 60.0, 1.0, 4.0, 7.0),
            real("beta", 0.01, 4.0, 0.2, 0.5, 0.8),
            positive("E", -7.0, 5.0, -1.5, 0.0),
        ),
    ),
    # Fewest steps to a target loss, Zhang et al. 2024 (arXiv 2410.21676), section 2.
    "steps_to_target": (
        "batch",
        "b alpha a",
        (
            positive("a", -5.0, 30.0, 3.0, 6.0, 9.0),
            positive("b", -5.0, 60.0, 6.0, 10.0, 14.0, 20.0),
            real("alpha", 0.2, 3.0, 0.7, 1.0, 1.4),
        ),
    ),
    # Critical batch, the exponent being 1 / alpha_B: Kaplan et al. 2020 (arXiv 2001.08361).
    "batch_of_loss": (
        "loss",
        "B_star exponent",
        (positive("B_star", -10.0, 60.0, 10.0, 20.0), real("exponent", 0.1, 20.0, 2.0, 5.0)),
    ),
    # Best batch size or learning rate, whose scale is free: Rybkin et al. 2025 (arXiv 2502.04327),
    # equations 3 and 4.
    "updates_setting": (
        "utd",
        "coefficient slope",
        (positive("coefficient", -60.0, 60.0, 0.0), real("slope", -4.0, 4.0, 0.3)),
    ),
}
"""Usual input, names of coefficient, exponent and floor, if any, and the parameters in the order of
a fit's coordinates, by the name of the form."""

_PRODUCTS: dict[str, tuple[tuple[str, ...], Parameter, dict[str, Parameter]]] = {
    "monomial": (
        (),
        positive("c", -150.0, 150.0, 0.0),
        {_ANY: real("p_{}", -5.0, 5.0, 0.0)},
    ),
    # Critical or best batch, Zhang et al. 2024 (arXiv 2410.21676), section 4.
    "batch_law": (
        ("parameters", "tokens"),
        positive("c", -80.0, 80.0, 0.0),
        {"parameters": real("p", -2.0, 3.0, 0.3), "tokens": real("q", -2.0, 3.0, 0.3)},
    ),
    # Smallest model that reaches the best error, Hestness et al. 2017, section 3.
    "model_size_law": (
        ("samples",),
        positive("sigma", -30.0, 60.0, 0.0, 8.0),
        {_ANY: real("beta_p", -1.0, 3.0, 0.3, 0.8)},
    ),
}
"""Usual inputs, coefficient, and exponent by input, by the name of the form."""

POWER_FORMS, PRODUCT_FORMS = tuple(_POWERS), tuple(_PRODUCTS)


def power_law(of: str = "", floor: bool | str = True, *, letters: str = "power_law") -> Law:
    """Loss = A / input^alpha + E, a straight line in log-log space above a floor.

    Args:
        of: name of the input; empty for the usual one of the letters, "parameters" for A, alpha, E.
        floor: whether an irreducible part E is added; "nofloor" says no.
        letters: one of `POWER_FORMS`, whose paper's letters, bounds and starts to take.

    Returns:
        The law with one input and 3 parameters, 2 without floor.

    Source: Hestness et al. 2017 (arXiv 1712.00409).
    """
    usual, roles, parameters = _POWERS[letters]
    of, has_floor = of or usual, floor not in (False, "nofloor")
    names = roles.split()[: 2 + has_floor]
    coefficient, exponent, *floors = names
    return Law(
        name=":".join((letters, of) if has_floor else (letters, of, "nofloor")),
        term=Sum((Power(coefficient, exponent, of), *map(Constant, floors))),
        parameters=tuple(item for item in parameters if item.name in names),
        formula=" + ".join((f"{coefficient} / {of}^{exponent}", *floors)),
    )


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


def monomial(*of: str, letters: str = "monomial") -> Law:
    """Target = c times the product over inputs of input^p_input, a plane in log space.

    Args:
        *of: names of the inputs, each once; none for the usual ones of the letters.
        letters: one of `PRODUCT_FORMS`, whose paper's letters, bounds and starts to take.

    Returns:
        The law with parameters "c" and one "p_<input>" per input.

    Raises:
        FitError: no inputs, one twice, or one that the letters have no exponent for.
    """
    usual, coefficient, exponents = _PRODUCTS[letters]
    names = _distinct(*(of or usual))
    unknown = [name for name in names if name not in exponents and _ANY not in exponents]
    if unknown:
        raise FitError(
            f"{letters.replace('_', ' ')} of {', '.join(unknown)}",
            hint=f"its inputs: {', '.join(exponents)}",
        )
    slopes = {name: exponents.get(name) or exponents[_ANY] for name in names}
    slopes = {name: replace(slope, name=slope.name.format(name)) for name, slope in slopes.items()}
    return product_form(":".join((letters, *of)), coefficient, slopes)


def product_form(name: str, coefficient: Parameter, exponents: Mapping[str, Parameter]) -> Law:
    """Declare coefficient times the product over inputs of input^exponent.

    Args:
        name: name of the law.
        coefficient: the factor.
        exponents: exponent by input, in order.

    Returns:
        The law.
    """
    factors = [Raised(Input(of), item.name) for of, item in exponents.items()]
    named = [coefficient.name, *(f"{of}^{item.name}" for of, item in exponents.items())]
    return Law(
        name=name,
        term=Product((Constant(coefficient.name), *factors)),
        parameters=(coefficient, *exponents.values()),
        formula=" ".join(named),
    )


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
