"""Shapes that loss takes over size and data where a sum of two powers does not bend as runs do."""

from collections.abc import Mapping

import numpy as np

from steelyard.laws.fitting.law import Law, Prior
from steelyard.laws.fitting.terms import Array, Constant, Derivatives, Input, Power, Raised, Sum
from steelyard.laws.forms.powers import coefficient, exponent, irreducible
from steelyard.laws.forms.terms import formula_law, positive, real

__all__ = ["broken", "coupled", "saturating", "shifted"]

_COUPLING_PRIOR = Prior(1.0, 0.5)
"""1 is the plain sum; below it size and data share what is left to learn."""


def coupled() -> Law:
    """Loss = E + (A / parameters^alpha + B / tokens^beta)^k, size and data coupled above a floor.

    k = 1 is the sum of two powers; without E it is Kaplan's form with alpha_D = k beta.

    Returns:
        The law with inputs "parameters" and "tokens", 6 parameters.

    Source: the sum of Hoffmann et al. 2022 (arXiv 2203.15556), equation 10, raised to a power as in
        Kaplan et al. 2020 (arXiv 2001.08361), equation 1.5.
    """
    parts = Sum((Power("A", "alpha", "parameters"), Power("B", "beta", "tokens")))
    return Law(
        name="coupled",
        term=Sum((Raised(parts, "k"), Constant("E"))),
        parameters=(
            coefficient("A", 4.0, 10.0),
            coefficient("B", 5.0, 12.0),
            exponent("alpha", 0.3, 0.7),
            exponent("beta", 0.3, 0.7),
            real("k", 0.1, 3.0, 0.4, 1.0, prior=_COUPLING_PRIOR),
            irreducible("E", -0.5, 0.5),
        ),
        formula="E + (A / N^alpha + B / D^beta)^k",
    )


def saturating() -> Law:
    """Loss = E + G u / (1 + u) with u = A / parameters^alpha + B / tokens^beta.

    A plateau E + G of models that have not begun to learn, then the sum of two powers, then E.

    Returns:
        The law with inputs "parameters" and "tokens", 6 parameters.
    """
    parameters = (
        positive("G", -12.0, 8.0, 0.0, 2.0),
        coefficient("A", 2.0, 6.0, 10.0),
        coefficient("B", 3.0, 8.0, 12.0),
        exponent("alpha", 0.3, 0.6),
        exponent("beta", 0.3, 0.8),
        irreducible("E", -2.0, 0.5),
    )
    formula = "E + G u / (1 + u), u = A / N^alpha + B / D^beta"
    return formula_law("saturating", _saturated, ("parameters", "tokens"), parameters, formula)


def _saturated(
    theta: Mapping[str, Array], parameters: Array, tokens: Array
) -> tuple[Array, Derivatives]:
    """Return the log loss, [S, n]; see `Term.evaluate`."""
    log_size, log_data = np.log(parameters), np.log(tokens)
    size = theta["A"] - theta["alpha"] * log_size
    data = theta["B"] - theta["beta"] * log_data
    both = np.logaddexp(size, data)
    whole = np.logaddexp(0.0, both)
    above = theta["G"] + both - whole
    total = np.logaddexp(theta["E"], above)
    part = np.exp(above - total)
    # d above / d u-part: its share of u, times what saturation leaves of it.
    left = part * np.exp(-whole)
    by_size, by_data = left * np.exp(size - both), left * np.exp(data - both)
    return total, {
        "G": part,
        "A": by_size,
        "B": by_data,
        "alpha": -by_size * log_size,
        "beta": -by_data * log_data,
        "E": 1 - part,
    }


def shifted(of: str = "samples") -> Law:
    """Loss = E + A / (input + c)^alpha, a power law whose count starts c before the first sample.

    Args:
        of: name of the input.

    Returns:
        The law with one input and 4 parameters.
    """
    moved = Sum((Input(of), Constant("c")))
    return Law(
        name=f"shifted:{of}",
        term=Sum((Power("A", "alpha", moved), Constant("E"))),
        parameters=(
            positive("A", -20.0, 80.0, 1.0, 6.0, 12.0),
            real("alpha", 0.02, 3.0, 0.2, 0.6),
            positive("c", -5.0, 40.0, 2.0, 8.0, 16.0),
            positive("E", -12.0, 6.0, -2.0, 0.0),
        ),
        formula=f"E + A / ({of} + c)^alpha",
    )


def broken(of: str = "samples") -> Law:
    """Loss = A / input^alpha (1 + (input / c)^s)^(-gamma), one power bending into another.

    Args:
        of: name of the input.

    Returns:
        The law with one input and 4 parameters; the bend is as sharp as one factor of e wide.

    Source: Caballero et al. 2022 (arXiv 2210.14891), one break, without floor.
    """
    parameters = (
        positive("A", -20.0, 60.0, 0.0, 4.0),
        real("alpha", -0.02, 2.0, 0.03, 0.2),
        positive("c", 0.0, 45.0, 8.0, 16.0, 22.0),
        real("gamma", -1.5, 3.0, -0.1, 0.2),
    )
    formula = f"A / {of}^alpha (1 + {of} / c)^-gamma"
    return formula_law(f"broken:{of}", _broken, (of,), parameters, formula)


def _broken(theta: Mapping[str, Array], samples: Array) -> tuple[Array, Derivatives]:
    """Return the log loss, [S, n]; see `Term.evaluate`."""
    log_input = np.log(samples)
    past = log_input - theta["c"]
    bend = np.logaddexp(0.0, past)
    return theta["A"] - theta["alpha"] * log_input - theta["gamma"] * bend, {
        "A": 1.0,
        "alpha": -log_input,
        "c": theta["gamma"] * np.exp(past - bend),
        "gamma": -bend,
    }
