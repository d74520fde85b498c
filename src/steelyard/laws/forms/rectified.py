"""Fine-tuning loss over data size: flat at first, then a power law with a floor."""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fit import PriorChoice, fit
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.inversion import input_for
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array, Derivatives
from steelyard.laws.forms.learning_curves.curve_laws import NO_TRANSITION, curve_starts
from steelyard.laws.forms.powers import power_form
from steelyard.laws.forms.terms import formula_law, positive, real

__all__ = [
    "fit_rectified",
    "fit_vanilla",
    "rectified",
    "required_data",
    "transition",
    "vanilla",
]

_ZERO_SHOT_EXAMPLES = 1e-10
_LOG_NONE = -7.0
"""The log of a D_l or E that is none at all."""

_LOG_TRANSITIONS = np.concatenate([NO_TRANSITION, np.linspace(0.0, math.log(1e6), 21)])

_PARAMETERS = (
    positive("B", -20.0, 60.0, 1.0, 4.0, 7.0),
    positive("D_l", _LOG_NONE, 60.0, 0.0, 2.5, 5.0),
    real("beta", 0.01, 4.0, 0.2, 0.5, 0.8),
    positive("E", _LOG_NONE, 5.0, -1.5, 0.0),
)


def rectified(of: str = "examples") -> Law:
    """Loss = B / (D_l + examples^beta) + E.

    Args:
        of: name of the input, positive; a loss before any tuning may stand at 1e-10 examples.

    Returns:
        The law with one input and 4 parameters; D_l is the pre-learned data size in units of
        examples^beta, E the floor.

    Source: Lin et al. 2024 (arXiv 2402.02314), equation 4.
    """
    formula = "B / (D_l + D^beta) + E"
    return formula_law(f"rectified:{of}", _rectified, (of,), _PARAMETERS, formula)


def _rectified(theta: Mapping[str, Array], examples: Array) -> tuple[Array, Derivatives]:
    """Return the log loss, [S, n]; see `Term.evaluate`.

    It is flat until examples^beta reaches the pre-learned data size D_l, then a power, then the
    floor. One function rather than a sum of terms, because fits of whole families of curves spend
    their time here.
    """
    log_input = np.log(examples)
    learned = np.logaddexp(theta["D_l"], theta["beta"] * log_input)
    falling = theta["B"] - learned
    total = np.logaddexp(falling, theta["E"])
    share, known = np.exp(falling - total), np.exp(theta["D_l"] - learned)
    slope = -share * known
    return total, {
        "B": share,
        "D_l": slope,
        "beta": -(share + slope) * log_input,
        "E": 1 - share,
    }


def vanilla(of: str = "examples") -> Law:
    """Loss = B / examples^beta + E, the rectified law without pre-learned data.

    Args:
        of: name of the input.

    Returns:
        The law with one input and 3 parameters.

    Source: Hestness et al. 2017 (arXiv 1712.00409); Lin et al. 2024 (arXiv 2402.02314), equation 1.
    """
    parameters = [item for item in _PARAMETERS if item.name != "D_l"]
    return power_form(f"vanilla:{of}", of, ("B", "beta", "E"), parameters, "B / D^beta + E")


def fit_rectified(
    examples: ArrayLike,
    loss: ArrayLike,
    *,
    delta: float = math.inf,
    bootstrap: Bootstrap = Bootstrap(),
    prior: PriorChoice = None,
    source: str = "",
) -> Fit:
    """Fit the rectified law to one model's fine-tuning curve.

    Args:
        examples: data sizes, [n]; 0 stands for the model before tuning and is taken as 1e-10.
        loss: loss after tuning on each, [n], natural units.
        delta: where the Huber loss turns linear, log units; infinite for least squares, as
            published.
        bootstrap: resampled fits for the intervals and their seed; 0 for none.
        prior: weak beliefs about parameters; see `steelyard.laws.fit`.
        source: where the points come from.

    Returns:
        The fit of `rectified("examples")`. Where `at_bounds` names E the floor is not reached;
        where it names D_l there is no flat phase.

    Raises:
        FitError: sizes or losses that cannot be fitted; rows are named.

    Example:
        >>> transition(fit_rectified(examples, loss)).value  # doctest: +SKIP
        2150.0

    Source: Lin et al. 2024 (arXiv 2402.02314), sections 3.3 and appendix on the fit; starts are
    ours.
    """
    given = np.asarray(examples, dtype=np.float64)
    return _fit_curve(
        rectified(),
        np.where(given == 0, _ZERO_SHOT_EXAMPLES, given),
        loss,
        delta=delta,
        bootstrap=bootstrap,
        prior=prior,
        source=source,
    )


def fit_vanilla(
    examples: ArrayLike,
    loss: ArrayLike,
    *,
    delta: float = math.inf,
    bootstrap: Bootstrap = Bootstrap(),
    source: str = "",
) -> Fit:
    """Fit the vanilla law, to compare with `fit_rectified`.

    Args:
        examples: data sizes, [n], positive.
        loss: loss after tuning on each, [n], natural units.
        delta: where the Huber loss turns linear, log units; infinite for least squares.
        bootstrap: resampled fits for the intervals and their seed; 0 for none.
        source: where the points come from.

    Returns:
        The fit of `vanilla("examples")`.

    Raises:
        FitError: sizes or losses that cannot be fitted; rows are named.
    """
    return _fit_curve(vanilla(), examples, loss, delta=delta, bootstrap=bootstrap, source=source)


def _fit_curve(
    law: Law,
    examples: ArrayLike,
    loss: ArrayLike,
    *,
    delta: float,
    bootstrap: Bootstrap,
    source: str,
    prior: PriorChoice = None,
) -> Fit:
    """Fit a law from starts near the points; transitions from 1 to 1e6 examples, and none."""
    sizes = np.atleast_1d(np.asarray(examples, dtype=np.float64))
    values = np.atleast_1d(np.asarray(loss, dtype=np.float64))
    starts: Array | Literal["auto"] = "auto"
    # What has no starts cannot be fitted either; the fit then says what is wrong.
    if (
        sizes.shape == values.shape
        and sizes.size
        and (sizes > 0).all()
        and (np.isfinite(values) & (values > 0)).all()
    ):
        transitions = _LOG_TRANSITIONS if "D_l" in law.names else NO_TRANSITION
        found = curve_starts(sizes, values, transitions, _LOG_NONE)
        starts = found[:, [item.name in law.names for item in _PARAMETERS]]
    return fit(
        law,
        {"examples": sizes},
        values,
        starts=starts,
        delta=delta,
        bootstrap=bootstrap,
        prior=prior,
        source=source,
    )


def transition(fit: Fit, level: float = 0.8) -> Estimate:
    """Return the data size where the flat phase turns into the power law: examples^beta = D_l.

    Args:
        fit: fit of `rectified`.
        level: probability inside the interval, 0..1.

    Returns:
        Examples with the bootstrap interval.

    Raises:
        FitError: the fit is of another law.

    Source: Lin et al. 2024 (arXiv 2402.02314), section 4.2.
    """
    _require(fit, "D_l")
    return fit.derive(lambda params: params["D_l"] ** (1 / params["beta"]), level)


def required_data(
    fit: Fit, loss: float, level: float = 0.8, *, extrapolate: bool = False
) -> Estimate:
    """Return the data size that reaches a loss.

    Args:
        fit: fit of `rectified` or `vanilla`.
        loss: wanted loss, natural units.
        level: probability inside the interval, 0..1.
        extrapolate: whether an answer more than two decades beyond the points is allowed.

    Returns:
        Examples; low is where a lucky run gets there, high where a run reaches it almost surely
        (infinite when the floor's interval holds the loss).

    Raises:
        FitError: the law's floor or the largest allowed size does not reach the loss.
    """
    _require(fit, "beta")
    return input_for(fit, loss, level, extrapolate=extrapolate)


def _require(fit: Fit, parameter: str) -> None:
    """Refuse fits of other laws."""
    if parameter not in fit.law.names or len(fit.law.inputs) != 1:
        raise FitError(
            f"law {fit.law.name} has no {parameter}", hint="fit `rectified()` to the curve first"
        )
