"""Plain building forms for any inputs: a sum of falling powers and a product of powers."""

from steelyard.errors import FitError
from steelyard.laws.fitting.law import Law, Parameter
from steelyard.laws.fitting.terms import Constant, Input, Power, Product, Raised, Sum, Term

__all__ = ["monomial", "powers"]


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
    names = _distinct(tuple(name for name in of if name != "nofloor"))
    terms: list[Term] = [Power(f"A_{name}", f"alpha_{name}", name) for name in names]
    parameters = [parameter for name in names for parameter in _power(name)]
    if "nofloor" not in of:
        terms.append(Constant("E"))
        parameters.append(
            Parameter(name="E", transform="log", low=-20.0, high=60.0, starts=(-1.0, 0.5))
        )
    formula = " + ".join(
        ["E"] * ("nofloor" not in of) + [f"A_{name} / {name}^alpha_{name}" for name in names]
    )
    return Law(
        name=":".join(("powers", *of)),
        term=Sum(tuple(terms)),
        parameters=tuple(parameters),
        formula=formula,
    )


def _power(name: str) -> tuple[Parameter, Parameter]:
    """Declare the power of one input, whose unit is not known: wide bounds and starts."""
    return (
        Parameter(
            name=f"A_{name}", transform="log", low=-60.0, high=150.0, starts=(1.0, 5.0, 10.0)
        ),
        Parameter(
            name=f"alpha_{name}",
            transform="identity",
            low=-1.0,
            high=4.0,
            starts=(0.1, 0.3, 0.7),
        ),
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
    names = _distinct(of)
    constant = Parameter(name="c", transform="log", low=-150.0, high=150.0, starts=(0.0,))
    slopes = [
        Parameter(name=f"p_{name}", transform="identity", low=-5.0, high=5.0, starts=(0.0,))
        for name in names
    ]
    term = Product((Constant("c"), *(Raised(Input(name), f"p_{name}") for name in names)))
    formula = "c " + " ".join(f"{name}^p_{name}" for name in names)
    return Law(
        name=":".join(("monomial", *of)), term=term, parameters=(constant, *slopes), formula=formula
    )


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse no names and repeated ones."""
    if not names or len(set(names)) != len(names):
        raise FitError(
            f"a law of the inputs {', '.join(names) or 'none'}",
            hint="name each input once, at least one",
        )
    return names
