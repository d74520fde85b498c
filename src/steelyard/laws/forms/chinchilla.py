"""Loss by model size and training tokens, also beyond the compute-optimal count, and task error.

Bounds and priors are for losses of language models in nats or bits; they are wide, and a fit names
a parameter that ends at a bound. Coefficients are fitted by their natural log.

The law of over-training is the sum of powers with one exponent written for two other axes: with C =
6 N D and M = D / N, a M^h C^-h = a (6 N^2)^-h and b M^-h C^-h = b (6 D^2)^-h, so alpha = beta = 2
h.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.fitted import Fit, Prediction
from steelyard.laws.fitting.law import Law, Prior
from steelyard.laws.fitting.terms import Array, Constant, Derivatives, Input, Power, Product, Sum
from steelyard.laws.forms.powers import coefficient, exponent, irreducible
from steelyard.laws.forms.terms import Number, formula_law, positive, real

__all__ = [
    "chinchilla",
    "chinchilla_tied",
    "downstream_error",
    "kaplan",
    "overtraining",
    "predict_error",
]

_SMALLEST_GAP = 0.05
"""Below this share of eps the error is continued by its tangent in log space, so that no start
meets the log of 0."""


def chinchilla(*, tied: bool = False) -> Law:
    """Loss = E + A / parameters^alpha + B / tokens^beta.

    72 starts: ln A in {3, 6, 10}, ln B in {5, 8, 12}, ln E in {-.5, .5}, alpha and beta in {.3,
    .6}.

    Args:
        tied: use one exponent for both (alpha = beta); it is then called alpha.

    Returns:
        The law with inputs "parameters" and "tokens", 5 parameters (4 when tied).

    Source: Hoffmann et al. 2022 (arXiv 2203.15556), equation 10; starts after Besiroglu et al. 2024
    (arXiv 2404.10102).
    """
    beta = "alpha" if tied else "beta"
    exponents = (exponent("alpha", 0.3, 0.6), exponent("beta", 0.3, 0.6))
    return Law(
        name="chinchilla_tied" if tied else "chinchilla",
        term=Sum((Power("A", "alpha", "parameters"), Power("B", beta, "tokens"), Constant("E"))),
        parameters=(
            coefficient("A", 3.0, 6.0, 10.0),
            coefficient("B", 5.0, 8.0, 12.0),
            irreducible("E", -0.5, 0.5),
            *(exponents[:1] if tied else exponents),
        ),
        formula=f"E + A / N^alpha + B / D^{beta}",
    )


def chinchilla_tied() -> Law:
    """Return `chinchilla(tied=True)`: loss = E + A / parameters^alpha + B / tokens^alpha."""
    return chinchilla(tied=True)


def kaplan() -> Law:
    """Loss = [(Nc / parameters)^(alpha_N / alpha_D) + Dc / tokens]^alpha_D, without a floor.

    Returns:
        The law with inputs "parameters" (non-embedding in the paper) and "tokens", 4 parameters.

    Source: Kaplan et al. 2020 (arXiv 2001.08361), equation 1.5.
    """
    scales = [positive(name, -20.0, 150.0, 10.0, 20.0, 30.0) for name in ("Nc", "Dc")]
    exponents = [
        real(name, 0.01, 1.5, 0.08, 0.25, prior=Prior(0.1, 0.1)) for name in ("alpha_N", "alpha_D")
    ]
    formula = "[(Nc / N)^(alpha_N / alpha_D) + Dc / D]^alpha_D"
    inputs = ("parameters", "tokens")
    return formula_law("kaplan", _kaplan, inputs, (*scales, *exponents), formula)


def _kaplan(
    theta: Mapping[str, Array], parameters: Array, tokens: Array
) -> tuple[Array, Derivatives]:
    """Return the log loss, [S, n]; see `Term.evaluate`."""
    size = theta["Nc"] - np.log(parameters)
    data = theta["Dc"] - np.log(tokens)
    power = theta["alpha_D"]
    ratio = theta["alpha_N"] / power
    # The sum of both parts in log space: neither overflows, whatever the scales.
    total = np.logaddexp(ratio * size, data)
    share = np.exp(ratio * size - total)
    return power * total, {
        "Nc": theta["alpha_N"] * share,
        "Dc": power * (1 - share),
        "alpha_N": share * size,
        "alpha_D": total - ratio * share * size,
    }


def overtraining() -> Law:
    """Loss = E + (a M^h + b M^-h) C^-h with C = 6 parameters * tokens and M = tokens / parameters.

    Returns:
        The law with inputs "parameters" (with embeddings in the paper) and "tokens", 4 parameters.

    Source: Gadre et al. 2024 (arXiv 2403.08540), equation 4.
    """
    size, tokens = (
        Product((Number(6.0), Input(name), Input(name))) for name in ("parameters", "tokens")
    )
    return Law(
        name="overtraining",
        term=Sum((Power("a", "h", size), Power("b", "h", tokens), Constant("E"))),
        parameters=(
            coefficient("a", 3.0, 5.0, 8.0),
            coefficient("b", 3.0, 5.0, 8.0),
            irreducible("E", -0.5, 0.5),
            real("h", 0.025, 0.75, 0.1, 0.15, 0.3, prior=Prior(0.18, 0.1)),
        ),
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
        positive("eps", -5.0, 2.0, -0.4, -0.2),
        positive("k", -10.0, 20.0, 0.0, 1.0, 3.0),
        real("g", 0.02, 10.0, 0.3, 1.0, 2.0),
    )
    formula = "eps - k exp(-g L)"
    return formula_law("downstream_error", _saturating, ("loss",), parameters, formula)


def _saturating(theta: Mapping[str, Array], loss: Array) -> tuple[Array, Derivatives]:
    """Return ln(eps - k exp(-g loss)), [S, n], going on as its tangent below a twentieth of eps."""
    # ln(k exp(-g loss) / eps), negative where the error is positive; capped, and continued by the
    # tangent, where the error would fall below a twentieth of eps.
    share = theta["k"] - theta["eps"] - theta["g"] * loss
    inside = np.minimum(share, np.log1p(-_SMALLEST_GAP))
    slope = -np.exp(inside) / -np.expm1(inside)
    log = theta["eps"] + np.log(-np.expm1(inside)) + slope * (share - inside)
    return log, {"eps": 1.0 - slope, "k": slope, "g": -slope * loss}


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
