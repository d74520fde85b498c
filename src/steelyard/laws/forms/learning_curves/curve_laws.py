"""The laws of learning curves, the starts of their fits, and the model size that goes with them."""

import math
import warnings
from collections.abc import Mapping

import numpy as np

from steelyard.errors import SteelyardWarning
from steelyard.laws.fitting.fit import fit
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array, Derivatives
from steelyard.laws.forms.powers import power_form, product_form
from steelyard.laws.forms.terms import formula_law, positive, real

__all__ = [
    "NO_FLOOR",
    "NO_TRANSITION",
    "curve_starts",
    "fit_floor",
    "model_size_law",
    "power_law_floor",
    "smooth_transition",
]

NO_TRANSITION = np.array([-150.0])
"""Log size of a transition before every size: a plain power law."""

_EXPONENTS = np.geomspace(0.05, 2.0, 16)
_KEPT = 2
_LOG_NONE = -12.0
NO_FLOOR = math.exp(_LOG_NONE)
"""A floor so low that it is none."""

_NEWTON_STEPS = 40
_LARGEST_STEP = 4.0
_LEAST_BEND = 0.02
_FARTHEST = 600.0
"""Logit beyond which the error is the plateau or the floor to double precision."""


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
        positive("alpha", -20.0, 60.0, 0.0, 3.0, 6.0),
        real("beta", 0.01, 4.0, 0.1, 0.3, 0.8),
        positive("gamma", _LOG_NONE, 5.0, -4.0, 0.0),
    )
    roles = ("alpha", "beta", "gamma")
    return power_form(f"power_law_floor:{of}", of, roles, parameters, "alpha / m^beta + gamma")


def model_size_law(of: str = "samples") -> Law:
    """Parameters of the smallest model that reaches the best error = sigma samples^beta_p.

    Args:
        of: name of the input.

    Returns:
        The law with one input and 2 parameters.

    Source: Hestness et al. 2017 (arXiv 1712.00409), section 3.
    """
    sigma, slope = positive("sigma", -30.0, 60.0, 0.0, 8.0), real("beta_p", -1.0, 3.0, 0.3, 0.8)
    return product_form(f"model_size_law:{of}", sigma, {of: slope}, "sigma m^beta_p")


def smooth_transition(of: str = "samples") -> Law:
    """Error e with e - E = B samples^-c (E + G - e)^a.

    A plateau E + G, a power law and a floor E, joined smoothly.

    Args:
        of: name of the input.

    Returns:
        The law with one input and 5 parameters; a near 0 is the power law with floor.

    Source: Alabdulmohsin et al. 2022 (arXiv 2209.06640), estimator M4.
    """
    parameters = (
        positive("E", _LOG_NONE, 5.0, -4.0, -0.5),
        positive("G", -12.0, 8.0, 0.0, 1.5),
        positive("B", -20.0, 60.0, 1.0, 4.0, 8.0),
        real("c", 0.01, 4.0, 0.2, 0.6),
        real("a", _LEAST_BEND, 8.0, 0.3, 1.5),
    )
    formula = "e - E = B m^-c (E + G - e)^a"
    return formula_law(f"smooth_transition:{of}", _smooth, (of,), parameters, formula)


def _smooth(theta: Mapping[str, Array], samples: Array) -> tuple[Array, Derivatives]:
    """Return the log error, [S, n]; Newton's method finds the logit of (e - E) / G."""
    log_input, bend, height = np.log(samples), theta["a"], theta["G"]
    wanted = theta["B"] - theta["c"] * log_input + (bend - 1) * height
    logit = np.where(wanted < 0, wanted, wanted / np.maximum(bend, _LEAST_BEND))
    logit = logit.clip(-_FARTHEST, _FARTHEST)
    for _ in range(_NEWTON_STEPS):
        log_share, log_rest, slope = _at(logit, bend)
        step = (log_share - bend * log_rest - wanted) / slope
        logit = (logit - step.clip(-_LARGEST_STEP, _LARGEST_STEP)).clip(-_FARTHEST, _FARTHEST)
    log_share, log_rest, slope = _at(logit, bend)
    above = height + log_share
    total = np.logaddexp(theta["E"], above)
    part = np.exp(above - total)
    moved = part * np.exp(log_rest) / slope
    return total, {
        "E": 1 - part,
        "G": part + moved * (bend - 1),
        "B": moved,
        "c": -moved * log_input,
        "a": moved * (height + log_rest),
    }


def _at(logit: Array, bend: Array) -> tuple[Array, Array, Array]:
    """Return the logs of a share and of its rest, and the slope Newton's method divides by."""
    log_share, log_rest = -np.logaddexp(0, -logit), -np.logaddexp(0, logit)
    return log_share, log_rest, np.exp(log_rest) + bend * np.exp(log_share)


def fit_floor(samples: Array, error: Array, **settings: object) -> Fit:
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


def curve_starts(sizes: Array, values: Array, log_transitions: Array, log_none: float) -> Array:
    """Find height / (transition^beta + size^beta) + floor near the points.

    Every exponent from .05 to 2 is tried with every transition; height and floor follow from least
    squares of the relative errors.

    Args:
        sizes: the input, [n], positive.
        values: the target, [n], positive.
        log_transitions: natural logs of the transitions to try, [T].
        log_none: the log of the smallest height, floor and transition^beta.

    Returns:
        The two best: log height, log of transition^beta, beta, log floor, [2, 4].
    """
    exponents, transitions = np.meshgrid(_EXPONENTS, log_transitions, indexing="ij")
    beta, known = exponents.reshape(-1, 1), (exponents * transitions).reshape(-1, 1).clip(log_none)
    total = np.logaddexp(known, beta * np.log(sizes))
    top = total.min(axis=1, keepdims=True)
    shape, level = np.exp(top - total) / values, np.broadcast_to(1 / values, total.shape)
    height, floor = _line(shape, level, math.exp(log_none))
    misfit = ((height[:, None] * shape + floor[:, None] * level - 1) ** 2).sum(axis=1)
    best = np.argsort(misfit, kind="stable")[:_KEPT]
    return np.stack([np.log(height) + top[:, 0], known[:, 0], beta[:, 0], np.log(floor)], axis=1)[
        best
    ]


def _line(shape: Array, level: Array, smallest: float) -> tuple[Array, Array]:
    """Solve height * shape + floor * level = 1 by bounded least squares, [S] each."""
    ss, sl, ll = (shape**2).sum(axis=1), (shape * level).sum(axis=1), (level**2).sum(axis=1)
    s1, l1 = shape.sum(axis=1), level.sum(axis=1)
    floor = np.maximum((l1 * ss - s1 * sl) / np.maximum(ss * ll - sl * sl, 1e-12), smallest)
    return np.maximum((s1 - floor * sl) / ss, smallest), floor
