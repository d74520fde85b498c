"""Plain building forms for any inputs: powers above a floor, and products of powers."""

from collections.abc import Mapping, Sequence

from steelyard.errors import FitError
from steelyard.laws.fitting.law import Law, Parameter, Prior
from steelyard.laws.fitting.terms import Constant, Input, Power, Product, Raised, Sum, Term
from steelyard.laws.forms.terms import positive, real

__all__ = [
    "coefficient",
    "exponent",
    "irreducible",
    "monomial",
    "power_form",
    "power_law",
    "powers",
    "product_form",
]

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


def _distinct(*names: str) -> tuple[str, ...]:
    """Refuse no names and repeated ones."""
    if not names or len(set(names)) != len(names):
        raise FitError(
            f"a law of the inputs {', '.join(names) or 'none'}",
            hint="name each input once, at least one",
        )
    return names
