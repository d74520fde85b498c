"""Fine-tuning loss over data size: flat at first, then a power law with a floor."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fit import PriorChoice, fit
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.inversion import input_for
from steelyard.laws.fitting.law import Law, Parameter
from steelyard.laws.fitting.terms import Array, Constant, Derivatives, Power, Sum, Term, Transform
from steelyard.laws.forms.learning_curves.curve_starts import NO_TRANSITION, curve_starts

__all__ = [
    "fit_rectified",
    "fit_vanilla",
    "rectified",
    "rectified_starts",
    "required_data",
    "transition",
    "vanilla",
]

_ZERO_SHOT_EXAMPLES = 1e-10
_LOG_NONE = -7.0
"""The log of a D_l or E that is none at all."""

_LOG_TRANSITIONS = np.concatenate([NO_TRANSITION, np.linspace(0.0, math.log(1e6), 21)])


@dataclass(frozen=True)
class _Rectified(Term):
    """B / (D_l + examples^beta) + E.

    Flat until examples^beta reaches the pre-learned data size D_l, then a power, then the floor.

    One class rather than a sum of terms, because fits of whole families of curves spend their time
    here.

    Attributes:
        of: name of the input.
    """

    of: str

    transforms: ClassVar[dict[str, Transform]] = {
        "B": "log",
        "D_l": "log",
        "beta": "identity",
        "E": "log",
    }

    @property
    def inputs(self) -> tuple[str, ...]:
        """The one input."""
        return (self.of,)

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log loss, [S, n]; see `Term.evaluate`."""
        log_input = np.log(inputs[self.of])
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


def _parameters(*names: str) -> tuple[Parameter, ...]:
    """Declare the parameters; D_l of e^-7 is none at all, E of e^-7 no floor."""
    known = {
        "B": Parameter(name="B", transform="log", low=-20.0, high=60.0, starts=(1.0, 4.0, 7.0)),
        "D_l": Parameter(
            name="D_l", transform="log", low=_LOG_NONE, high=60.0, starts=(0.0, 2.5, 5.0)
        ),
        "beta": Parameter(
            name="beta", transform="identity", low=0.01, high=4.0, starts=(0.2, 0.5, 0.8)
        ),
        "E": Parameter(name="E", transform="log", low=_LOG_NONE, high=5.0, starts=(-1.5, 0.0)),
    }
    return tuple(known[name] for name in names)


def rectified(of: str = "examples") -> Law:
    """Loss = B / (D_l + examples^beta) + E.

    Args:
        of: name of the input, positive; a loss before any tuning may stand at 1e-10 examples.

    Returns:
        The law with one input and 4 parameters; D_l is the pre-learned data size in units of
        examples^beta, E the floor.

    Source: Lin et al. 2024 (arXiv 2402.02314), equation 4.
    """
    term = _Rectified(of)
    return Law(
        name=f"rectified:{of}",
        term=term,
        parameters=_parameters("B", "D_l", "beta", "E"),
        formula="B / (D_l + D^beta) + E",
    )


def vanilla(of: str = "examples") -> Law:
    """Loss = B / examples^beta + E, the rectified law without pre-learned data.

    Args:
        of: name of the input.

    Returns:
        The law with one input and 3 parameters.

    Source: Hestness et al. 2017 (arXiv 1712.00409); Lin et al. 2024 (arXiv 2402.02314), equation 1.
    """
    term = Sum((Power("B", "beta", of), Constant("E")))
    return Law(
        name=f"vanilla:{of}",
        term=term,
        parameters=_parameters("B", "beta", "E"),
        formula="B / D^beta + E",
    )


def rectified_starts(examples: Array, loss: Array) -> Array:
    """Return starts near the optimum, the best of a grid of exponents and transitions.

    For a given exponent and transition the law is linear in B and E, so these follow from least
    squares of the relative errors. The grid holds exponents from .05 to 2 and transitions from 1 to
    1e6 examples, and no transition at all.

    Args:
        examples: data sizes, [n], positive.
        loss: loss at each of them, [n], positive.

    Returns:
        The two best in the coordinates of `rectified`, [2, 4].
    """
    return curve_starts(examples, loss, _LOG_TRANSITIONS, _LOG_NONE)


def fit_rectified(
    examples: ArrayLike,
    loss: ArrayLike,
    *,
    delta: float = math.inf,
    bootstraps: int = 300,
    seed: int = 0,
    prior: PriorChoice = None,
    source: str = "",
) -> Fit:
    """Fit the rectified law to one model's fine-tuning curve.

    Args:
        examples: data sizes, [n]; 0 stands for the model before tuning and is taken as 1e-10.
        loss: loss after tuning on each, [n], natural units.
        delta: where the Huber loss turns linear, log units; infinite for least squares, as
            published.
        bootstraps: resampled fits for the intervals; 0 for none.
        seed: seed of the resampling.
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
    settings: dict[str, Any] = {"delta": delta, "bootstraps": bootstraps, "seed": seed}
    given = np.asarray(examples, dtype=np.float64)
    sizes = np.where(given == 0, _ZERO_SHOT_EXAMPLES, given)
    return _fit_curve(rectified(), rectified_starts, sizes, loss, prior, source, settings)


def fit_vanilla(
    examples: ArrayLike,
    loss: ArrayLike,
    *,
    delta: float = math.inf,
    bootstraps: int = 300,
    seed: int = 0,
    source: str = "",
) -> Fit:
    """Fit the vanilla law, to compare with `fit_rectified`.

    Args:
        examples: data sizes, [n], positive.
        loss: loss after tuning on each, [n], natural units.
        delta: where the Huber loss turns linear, log units; infinite for least squares.
        bootstraps: resampled fits for the intervals; 0 for none.
        seed: seed of the resampling.
        source: where the points come from.

    Returns:
        The fit of `vanilla("examples")`.

    Raises:
        FitError: sizes or losses that cannot be fitted; rows are named.
    """
    settings: dict[str, Any] = {"delta": delta, "bootstraps": bootstraps, "seed": seed}
    return _fit_curve(vanilla(), _vanilla_starts, examples, loss, None, source, settings)


def _vanilla_starts(examples: Array, loss: Array) -> Array:
    """Return the two best starts in the coordinates of `vanilla`, [2, 3]."""
    return curve_starts(examples, loss, NO_TRANSITION, _LOG_NONE)[:, [0, 2, 3]]


def _fit_curve(
    law: Law,
    starts_of: Callable[[Array, Array], Array],
    examples: ArrayLike,
    loss: ArrayLike,
    prior: PriorChoice,
    source: str,
    settings: Mapping[str, Any],
) -> Fit:
    """Fit a law from starts near the points."""
    sizes = np.atleast_1d(np.asarray(examples, dtype=np.float64))
    values = np.atleast_1d(np.asarray(loss, dtype=np.float64))
    # What has no starts cannot be fitted either; the fit then says what is wrong.
    is_usable = sizes.shape == values.shape and sizes.size and (sizes > 0).all()
    is_usable = is_usable and np.isfinite(values).all() and (values > 0).all()
    starts = starts_of(sizes, values) if is_usable else "auto"
    columns = {"examples": sizes}
    return fit(law, columns, values, starts=starts, prior=prior, source=source, **settings)


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
