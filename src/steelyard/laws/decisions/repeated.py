"""Spend a training budget when unique data are scarce: model size, epochs and regrets."""

from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.decisions.allocate import Allocation, Limits, allocate
from steelyard.laws.decisions.cost_law import CostLaw
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fitted import Fit

__all__ = ["RepeatedAllocation", "allocate_repeated"]

_INPUTS = {"parameters", "tokens", "unique_tokens"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatedAllocation:
    """The best use of a budget on limited unique data, and what the usual splits would lose.

    Attributes:
        best: size, tokens, epochs and loss with intervals.
        unique_tokens: distinct tokens at hand.
        chinchilla_parameters: the size that the base law alone would take.
        regret_chinchilla: loss that size would add, over the fit's bootstrap; below 0 where a
            parameter set prefers it.
        regret_single_epoch: loss added by the size that spends the budget in exactly one epoch.
    """

    best: Allocation
    unique_tokens: float
    chinchilla_parameters: float
    regret_chinchilla: Estimate
    regret_single_epoch: Estimate


def allocate_repeated(
    fit: Fit,
    flops: float,
    unique_tokens: float,
    *,
    flops_per_parameter_token: float = 6.0,
    level: float = 0.8,
    extrapolate: bool = False,
) -> RepeatedAllocation:
    """Split a training budget between model size and epochs over limited data.

    The loss is minimized over the size with tokens = budget / (c size), for the fit and each of its
    bootstrap optima; the regrets compare fixed runs under each of them.

    Args:
        fit: fit of a law with inputs "parameters", "tokens" and "unique_tokens", such as
            `data_constrained`, fitted or published.
        flops: budget in FLOP, positive.
        unique_tokens: distinct tokens at hand, positive.
        flops_per_parameter_token: c in C = c N D, 6 for a forward and a backward pass.
        level: probability inside the intervals, 0..1.
        extrapolate: allow a run more than two decades beyond the points.

    Returns:
        Size, tokens, epochs and loss with bootstrap intervals, and the regrets; intervals without
        width for published laws.

    Raises:
        FitError: the law has other inputs, the budget or the unique tokens are not positive and
            finite, or the run lies too far beyond the points.

    Source: Muennighoff et al. 2023 (arXiv 2305.16264), section 5 (allocation under a fixed budget
        of unique data).
    """
    _check(fit, unique_tokens)
    best = allocate(
        fit,
        flops,
        limits=Limits(unique_tokens=unique_tokens),
        cost=CostLaw(flops_per_parameter_token),
        level=level,
        extrapolate=extrapolate,
    )
    product = flops / flops_per_parameter_token
    usual = _chinchilla_size(fit, float(np.log(product)))
    sizes = np.array([best.parameters.value, usual, product / unique_tokens])
    runs = {
        "parameters": sizes,
        "tokens": product / sizes,
        "unique_tokens": np.minimum(unique_tokens, product / sizes),
    }
    losses = np.exp(fit.law.predict(fit.thetas, runs))
    regrets = losses[:, 1:] - losses[:, :1]
    return RepeatedAllocation(
        best=best,
        unique_tokens=float(unique_tokens),
        chinchilla_parameters=usual,
        regret_chinchilla=Estimate.over(regrets[:, 0], level),
        regret_single_epoch=Estimate.over(regrets[:, 1], level),
    )


def _check(fit: Fit, unique_tokens: float) -> None:
    """Refuse laws without unique tokens, and amounts that are not positive."""
    if set(fit.law.inputs) != _INPUTS:
        raise FitError(
            f"law {fit.law.name} has inputs {', '.join(fit.law.inputs)}; needed are parameters, "
            f"tokens and unique_tokens",
            hint="fit data_constrained(), or use allocate() where data do not repeat",
        )
    if not (np.isfinite(unique_tokens) and unique_tokens > 0):
        raise FitError(
            f"unique_tokens {unique_tokens:g} must be positive and finite",
            hint="count the tokens of the deduplicated data",
        )


def _chinchilla_size(fit: Fit, log_product: float) -> float:
    """Return the size that E + A / N^alpha + B / D^beta alone would choose."""
    numbers = {**fit.law.fixed, **fit.params}
    alpha = numbers["alpha"]
    beta = numbers.get("beta", alpha)
    log_ratio = np.log(alpha * numbers["A"] / (beta * numbers["B"]))
    return float(np.exp((log_ratio + beta * log_product) / (alpha + beta)))
