"""From a fitted law and a compute budget to the best model size and token count."""

from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array
from steelyard.quantity import Provenance

__all__ = ["Allocation", "allocate", "optimal_log_parameters"]

_GOLDEN = (5**0.5 - 1) / 2
_LOG_RANGE = (0.0, 46.0)
"""Model sizes searched where no closed form is known: 1 to 1e20 parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """The best use of a training budget.

    Attributes:
        flops: the budget, FLOP.
        parameters: best model size, counted as the fit's points were.
        tokens: training tokens that spend the budget at that size.
        loss: predicted loss of that run.
        distance: how far it lies outside the fitted points, in factors of e; 0 inside, and for published laws.
        level: probability inside the intervals.
        provenance: of the numbers, that of the fit.
        source: of the fit.
    """

    flops: float
    parameters: Estimate
    tokens: Estimate
    loss: Estimate
    distance: float
    level: float
    provenance: Provenance
    source: str


def optimal_log_parameters(law: Law, theta: Array, flops: float, *, flops_per_parameter_token: float = 6.0) -> Array:
    """Find the model size of least loss under a budget.

    Closed form for sums of a power of parameters and one of tokens: G (C/c)^(beta/(alpha+beta)) with
    G = (alpha A / (beta B))^(1/(alpha+beta)); a golden-section search, all parameter sets at once, for other laws.

    Args:
        law: with inputs "parameters" and "tokens".
        theta: fitted coordinates, [S, P].
        flops: budget in FLOP.
        flops_per_parameter_token: c in C = c N D.

    Returns:
        Log of the best parameter counts, [S].

    Source: Hoffmann et al. 2022 (arXiv 2203.15556), equation 4.
    """
    log_product = np.log(flops) - np.log(flops_per_parameter_token)
    column = {name: theta[:, index] for index, name in enumerate(law.names)}
    if law.name in ("chinchilla", "chinchilla_tied"):
        alpha = column["alpha"]
        beta = column.get("beta", alpha)
        return (np.log(alpha / beta) + column["A"] - column["B"] + beta * log_product) / (alpha + beta)
    return _golden_section(law, theta, float(log_product))


def _golden_section(law: Law, theta: Array, log_product: float) -> Array:
    """Minimize the loss over log parameters with tokens = product / parameters, [S]."""
    low, high = np.full(len(theta), _LOG_RANGE[0]), np.full(len(theta), min(_LOG_RANGE[1], log_product))
    for _ in range(80):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        is_left = _loss(law, theta, left, log_product) < _loss(law, theta, right, log_product)
        low, high = np.where(is_left, low, left), np.where(is_left, right, high)
    return (low + high) / 2


def _loss(law: Law, theta: Array, log_parameters: Array, log_product: float) -> Array:
    """Give the log loss of parameter set s at its own size s, [S]."""
    inputs = {"parameters": np.exp(log_parameters), "tokens": np.exp(log_product - log_parameters)}
    return np.diagonal(law.predict(theta, inputs)) if len(theta) <= 512 else _rowwise(law, theta, inputs)


def _rowwise(law: Law, theta: Array, inputs: dict[str, Array]) -> Array:
    """Give the diagonal of a large prediction without making all of it, [S]."""
    parts = [slice(begin, begin + 512) for begin in range(0, len(theta), 512)]
    return np.concatenate([np.diagonal(law.predict(theta[part], {k: v[part] for k, v in inputs.items()})) for part in parts])


def allocate(fit: Fit, flops: float, *, flops_per_parameter_token: float = 6.0, level: float = 0.8) -> Allocation:
    """Split a training budget between model size and tokens.

    Args:
        fit: of a law with inputs "parameters" and "tokens", fitted or published.
        flops: budget in FLOP, positive.
        flops_per_parameter_token: FLOP per parameter and token, 6 for a forward and a backward pass.
        level: probability inside the intervals, 0..1.

    Returns:
        Size, tokens and loss with bootstrap intervals; intervals without width for published laws.

    Raises:
        FitError: the law has other inputs, or the budget is not positive and finite.
    """
    if set(fit.law.inputs) != {"parameters", "tokens"}:
        raise FitError(f"law {fit.law.name} has inputs {', '.join(fit.law.inputs)}; an allocation needs parameters and tokens")
    if not (np.isfinite(flops) and flops > flops_per_parameter_token > 0):
        raise FitError(f"a budget of {flops:g} FLOP cannot train one parameter on one token", hint="give the budget like 1e22")
    thetas = np.concatenate([fit.theta[None], fit.samples])
    sizes = np.exp(optimal_log_parameters(fit.law, thetas, flops, flops_per_parameter_token=flops_per_parameter_token))
    tokens = flops / flops_per_parameter_token / sizes
    best = {"parameters": sizes[:1], "tokens": tokens[:1]}
    said = fit.predict(best, level)
    return Allocation(
        flops=float(flops),
        parameters=Estimate.of(float(sizes[0]), sizes[1:], level),
        tokens=Estimate.of(float(tokens[0]), tokens[1:], level),
        loss=Estimate(float(said.value[0]), float(said.low[0]), float(said.high[0])),
        distance=float(fit.distance(best)[0]),
        level=level,
        provenance=fit.provenance,
        source=fit.source,
    )
