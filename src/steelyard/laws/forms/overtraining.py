"""Training beyond the compute-optimal token count: loss, and task error by loss.

The law of over-training is the sum of powers with one exponent written for those two axes: with C =
6 N D and M = D / N, a M^h C^-h = a (6 N^2)^-h and b M^-h C^-h = b (6 D^2)^-h, so alpha = beta = 2
h.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.fitted import Fit, Prediction
from steelyard.laws.fitting.law import Law, Parameter, Prior
from steelyard.laws.fitting.terms import Array, Constant, Derivatives, Sum, Term, Transform

__all__ = ["downstream_error", "overtraining", "predict_error"]

_LOG_FLOPS_FACTOR = float(np.log(6.0))
_SMALLEST_GAP = 0.05
"""Below this share of eps the error is continued by its tangent in log space, so that no start
meets the log of 0."""


@dataclass(frozen=True)
class _SquaredPower(Term):
    """coefficient * (6 input^2)^-exponent."""

    coefficient: str
    exponent: str
    of: str

    @property
    def transforms(self) -> dict[str, Transform]:
        """Coefficient and exponent."""
        return {self.coefficient: "log", self.exponent: "identity"}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The one input."""
        return (self.of,)

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return ln coefficient - exponent ln(6 input^2), [S, n]; see `Term.evaluate`."""
        log = _LOG_FLOPS_FACTOR + 2 * np.log(inputs[self.of])
        return theta[self.coefficient] - theta[self.exponent] * log, {
            self.coefficient: 1.0,
            self.exponent: -log,
        }


@dataclass(frozen=True)
class _SaturatingError(Term):
    """eps - k exp(-g loss), continued by its tangent in log space below a twentieth of eps."""

    transforms: ClassVar[dict[str, Transform]] = {"eps": "log", "k": "log", "g": "identity"}
    inputs: ClassVar[tuple[str, ...]] = ("loss",)

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log error, [S, n]; see `Term.evaluate`."""
        # ln(k exp(-g loss) / eps), negative where the error is positive; capped, and continued by
        # the tangent, where the error would fall below a twentieth of eps.
        share = theta["k"] - theta["eps"] - theta["g"] * inputs["loss"]
        start = np.log1p(-_SMALLEST_GAP)
        inside = np.minimum(share, start)
        slope = -np.exp(inside) / -np.expm1(inside)
        log = theta["eps"] + np.log(-np.expm1(inside)) + slope * (share - inside)
        return log, {"eps": 1.0 - slope, "k": slope, "g": -slope * inputs["loss"]}


def overtraining() -> Law:
    """Loss = E + (a M^h + b M^-h) C^-h with C = 6 parameters * tokens and M = tokens / parameters.

    Returns:
        The law with inputs "parameters" (with embeddings in the paper) and "tokens", 4 parameters.

    Source: Gadre et al. 2024 (arXiv 2403.08540), equation 4.
    """
    parameters = (
        Parameter(name="a", transform="log", low=-20.0, high=60.0, starts=(3.0, 5.0, 8.0)),
        Parameter(name="b", transform="log", low=-20.0, high=60.0, starts=(3.0, 5.0, 8.0)),
        Parameter(
            name="E", transform="log", low=-7.0, high=5.0, starts=(-0.5, 0.5), prior=Prior(0.3, 1.5)
        ),
        Parameter(
            name="h",
            transform="identity",
            low=0.025,
            high=0.75,
            starts=(0.1, 0.15, 0.3),
            prior=Prior(0.18, 0.1),
        ),
    )
    term = Sum(
        (_SquaredPower("a", "h", "parameters"), _SquaredPower("b", "h", "tokens"), Constant("E"))
    )
    return Law(
        name="overtraining",
        term=term,
        parameters=parameters,
        formula="E + (a M^h + b M^-h) C^-h, C = 6 N D, M = D / N",
    )


def downstream_error() -> Law:
    """Mean error over tasks = eps - k exp(-g loss).

    Returns:
        The law with input "loss" (nats per token of one evaluation set) and a target in 0..1, 3
        parameters.

    Source: Gadre et al. 2024 (arXiv 2403.08540), equation 5.
    """
    parameters = (
        Parameter(name="eps", transform="log", low=-5.0, high=2.0, starts=(-0.4, -0.2)),
        Parameter(name="k", transform="log", low=-10.0, high=20.0, starts=(0.0, 1.0, 3.0)),
        Parameter(name="g", transform="identity", low=0.02, high=10.0, starts=(0.3, 1.0, 2.0)),
    )
    return Law(
        name="downstream_error",
        term=_SaturatingError(),
        parameters=parameters,
        formula="eps - k exp(-g L)",
    )


def predict_error(
    loss: Fit, error: Fit, inputs: Mapping[str, ArrayLike], level: float = 0.8
) -> Prediction:
    """Predict the error over tasks of runs that were not made, through their predicted loss.

    Args:
        loss: fit of the loss, such as of `overtraining`.
        error: fit of `downstream_error` on the same evaluation set's loss.
        inputs: inputs of the law of the loss, natural units, [n] or a single number.
        level: probability that a new run falls inside, 0..1.

    Returns:
        Errors, [n]; the interval adds the loss's interval, carried through, to the error law's own,
        in log space.

    Raises:
        FitError: `error` does not read a loss, or an input is missing or not positive.

    Source: Gadre et al. 2024 (arXiv 2403.08540), section 3.
    """
    if error.law.inputs != ("loss",):
        raise FitError(
            f"law {error.law.name} reads {', '.join(error.law.inputs)}, not the loss",
            hint="fit downstream_error() first",
        )
    said = loss.predict(inputs, level)
    own = error.predict({"loss": said.value}, level)
    low = error.predict({"loss": said.low}, level).value
    high = error.predict({"loss": said.high}, level).value
    # Both parts are taken as independent, so their widths add in squares.
    below = np.hypot(np.log(own.value / own.low), np.log(own.value / low))
    above = np.hypot(np.log(own.high / own.value), np.log(high / own.value))
    return Prediction(own.value, own.value * np.exp(-below), own.value * np.exp(above))
