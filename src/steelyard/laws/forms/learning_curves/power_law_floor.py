"""The laws of learning curves: a power law above a floor, and the model size that goes with it."""

import math
import warnings

from steelyard.errors import SteelyardWarning
from steelyard.laws.fitting.fit import fit
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law, Parameter
from steelyard.laws.fitting.terms import Array, Constant, Input, Power, Product, Raised, Sum
from steelyard.laws.forms.learning_curves.curve_starts import NO_TRANSITION, curve_starts

__all__ = ["NO_FLOOR", "fit_floor", "model_size_law", "power_law_floor"]

_LOG_NONE = -12.0
NO_FLOOR = math.exp(_LOG_NONE)
"""A floor so low that it is none."""


def power_law_floor(of: str = "samples") -> Law:
    """Error = alpha / samples^beta + gamma.

    Args:
        of: name of the input.

    Returns:
        The law with one input and 3 parameters; beta is minus the published beta_g, gamma of e^-12
        is no floor.

    Source: Hestness et al. 2017 (arXiv 1712.00409), section 3.
    """
    parameters = (
        Parameter(name="alpha", transform="log", low=-20.0, high=60.0, starts=(0.0, 3.0, 6.0)),
        Parameter(name="beta", transform="identity", low=0.01, high=4.0, starts=(0.1, 0.3, 0.8)),
        Parameter(name="gamma", transform="log", low=_LOG_NONE, high=5.0, starts=(-4.0, 0.0)),
    )
    term = Sum((Power("alpha", "beta", of), Constant("gamma")))
    return Law(
        name=f"power_law_floor:{of}",
        term=term,
        parameters=parameters,
        formula="alpha / m^beta + gamma",
    )


def model_size_law(of: str = "samples") -> Law:
    """Parameters of the smallest model that reaches the best error = sigma samples^beta_p.

    Args:
        of: name of the input.

    Returns:
        The law with one input and 2 parameters.

    Source: Hestness et al. 2017 (arXiv 1712.00409), section 3.
    """
    parameters = (
        Parameter(name="sigma", transform="log", low=-30.0, high=60.0, starts=(0.0, 8.0)),
        Parameter(name="beta_p", transform="identity", low=-1.0, high=3.0, starts=(0.3, 0.8)),
    )
    term = Product((Constant("sigma"), Raised(Input(of), "beta_p")))
    return Law(
        name=f"model_size_law:{of}", term=term, parameters=parameters, formula="sigma m^beta_p"
    )


def fit_floor(samples: Array, error: Array, **settings: float | str) -> Fit:
    """Fit the law, without its floor when there are only four shards."""
    law = power_law_floor()
    starts = curve_starts(samples, error, NO_TRANSITION, _LOG_NONE)[:, [0, 2, 3]]
    if len(samples) <= len(law.parameters) + 1:
        warnings.warn(
            f"{len(samples)} shards cannot tell a floor; it is taken as 0",
            SteelyardWarning,
            stacklevel=4,
        )
        law, starts = law.fix(gamma=NO_FLOOR), starts[:, :2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SteelyardWarning)
        return fit(law, {"samples": samples}, error, starts=starts, prior=None, **settings)  # pyright: ignore[reportArgumentType]
