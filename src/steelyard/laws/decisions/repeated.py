"""How to spend a training budget when unique data are scarce: model size, epochs, and what the usual split would lose."""

from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.terms import Array
from steelyard.quantity import Provenance

__all__ = ["RepeatedAllocation", "allocate_repeated"]

_GRID = 1200
_INPUTS = {"parameters", "tokens", "unique_tokens"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatedAllocation:
    """The best use of a training budget on limited unique data.

    Attributes:
        flops: the budget, FLOP.
        unique_tokens: tokens at hand.
        parameters: best model size, counted as the fit's points were.
        tokens: training tokens that spend the budget at that size.
        epochs: tokens over unique tokens; below 1 the data are not used up.
        loss: predicted loss of that run.
        chinchilla_parameters: the size that the base law alone would take.
        regret_chinchilla: loss that size would add, over the fit's bootstrap; below 0 where a parameter set prefers it.
        regret_single_epoch: loss added by the size that spends the budget in exactly one epoch.
        distance: how far the run lies outside the fitted points, in factors of e; 0 inside, and for published laws.
        level: probability inside the intervals.
        provenance: of the numbers, that of the fit.
        source: of the fit.
    """

    flops: float
    unique_tokens: float
    parameters: Estimate
    tokens: Estimate
    epochs: Estimate
    loss: Estimate
    chinchilla_parameters: float
    regret_chinchilla: Estimate
    regret_single_epoch: Estimate
    distance: float
    level: float
    provenance: Provenance
    source: str


def allocate_repeated(
    fit: Fit, flops: float, unique_tokens: float, *, flops_per_parameter_token: float = 6.0, level: float = 0.8, extrapolate: bool = False
) -> RepeatedAllocation:
    """Split a training budget between model size and epochs over limited data.

    The loss is minimized over the size with tokens = budget / (c size), for the fit and each of its bootstrap optima; the regrets
    compare fixed runs under each of them.

    Args:
        fit: of a law with inputs "parameters", "tokens" and "unique_tokens", such as `data_constrained`, fitted or published.
        flops: budget in FLOP, positive.
        unique_tokens: tokens at hand, positive.
        flops_per_parameter_token: c in C = c N D, 6 for a forward and a backward pass.
        level: probability inside the intervals, 0..1.
        extrapolate: allow a run more than two decades beyond the points.

    Returns:
        Size, tokens, epochs and loss with bootstrap intervals, and the regrets; intervals without width for published laws.

    Raises:
        FitError: the law has other inputs, the budget or the unique tokens are not positive and finite, or the run lies too far
            beyond the points.

    Source: Muennighoff et al. 2023 (arXiv 2305.16264), section 5 (allocation under a fixed budget of unique data).
    """
    _check(fit, flops, unique_tokens, flops_per_parameter_token)
    log_product = float(np.log(flops) - np.log(flops_per_parameter_token))
    thetas = np.concatenate([fit.theta[None], fit.samples])
    sizes = np.exp(_best_log_sizes(fit, thetas, log_product, unique_tokens))
    tokens = np.exp(log_product) / sizes
    run = {"parameters": sizes[:1], "tokens": tokens[:1], "unique_tokens": np.array([unique_tokens])}
    said = fit.predict(run, level, extrapolate=extrapolate)
    usual = _chinchilla_size(fit, log_product)
    rivals = np.array([sizes[0], usual, np.exp(log_product) / unique_tokens])
    losses = np.exp(fit.law.predict(thetas, _runs(np.log(rivals), log_product, unique_tokens)))
    regrets = losses[:, 1:] - losses[:, :1]
    return RepeatedAllocation(
        flops=float(flops),
        unique_tokens=float(unique_tokens),
        parameters=_estimate(sizes, level),
        tokens=_estimate(tokens, level),
        epochs=_estimate(tokens / unique_tokens, level),
        loss=Estimate(float(said.value[0]), float(said.low[0]), float(said.high[0])),
        chinchilla_parameters=float(usual),
        regret_chinchilla=_estimate(regrets[:, 0], level),
        regret_single_epoch=_estimate(regrets[:, 1], level),
        distance=float(fit.distance(run)[0]),
        level=level,
        provenance=fit.provenance,
        source=fit.source,
    )


def _check(fit: Fit, flops: float, unique_tokens: float, flops_per_parameter_token: float) -> None:
    """Refuse laws without unique tokens and amounts that buy nothing."""
    if set(fit.law.inputs) != _INPUTS:
        raise FitError(
            f"law {fit.law.name} has inputs {', '.join(fit.law.inputs)}; needed are parameters, tokens and unique_tokens",
            hint="fit data_constrained(), or use allocate() where data do not repeat",
        )
    if not (np.isfinite(flops) and flops > flops_per_parameter_token > 0):
        raise FitError(f"a budget of {flops:g} FLOP cannot train one parameter on one token", hint="give the budget like 1e22")
    if not (np.isfinite(unique_tokens) and unique_tokens > 0):
        raise FitError(f"unique_tokens {unique_tokens:g} must be positive and finite", hint="count the tokens of the deduplicated data")


def _runs(log_sizes: Array, log_product: float, unique_tokens: float) -> dict[str, Array]:
    """Give the runs that spend the budget at these sizes."""
    return {
        "parameters": np.exp(log_sizes),
        "tokens": np.exp(log_product - log_sizes),
        "unique_tokens": np.full(len(log_sizes), unique_tokens),
    }


def _best_log_sizes(fit: Fit, thetas: Array, log_product: float, unique_tokens: float) -> Array:
    """Find each parameter set's best size, [S]; that of the fit itself once more on a finer grid.

    A grid, because excess parameters can make the curve bend twice.
    """
    grid = np.linspace(0.0, log_product, _GRID)
    best = _lowest(fit, thetas, grid, log_product, unique_tokens)
    step = grid[1]
    near = np.linspace(max(best[0] - step, 0.0), min(best[0] + step, log_product), 201)
    best[0] = _lowest(fit, thetas[:1], near, log_product, unique_tokens)[0]
    return best


def _lowest(fit: Fit, thetas: Array, grid: Array, log_product: float, unique_tokens: float) -> Array:
    """Find the lowest point of a grid of log sizes and go on to the vertex of the parabola through its neighbors, [S]."""
    runs = _runs(grid, log_product, unique_tokens)
    losses = np.concatenate([fit.law.predict(thetas[begin : begin + 64], runs) for begin in range(0, len(thetas), 64)])
    rows, best = np.arange(len(thetas)), losses.argmin(axis=1).clip(1, len(grid) - 2)
    left, middle, right = losses[rows, best - 1], losses[rows, best], losses[rows, best + 1]
    bend = left - 2 * middle + right
    shift = np.where(bend > 0, 0.5 * (left - right) / np.where(bend > 0, bend, 1.0), np.sign(left - right))
    return grid[best] + np.clip(shift, -1.0, 1.0) * (grid[1] - grid[0])


def _chinchilla_size(fit: Fit, log_product: float) -> float:
    """Give the size that E + A / N^alpha + B / D^beta alone would choose, G (C/c)^(beta / (alpha + beta))."""
    numbers = {**fit.law.fixed, **fit.params}
    alpha = numbers["alpha"]
    beta = numbers.get("beta", alpha)
    log_ratio = np.log(alpha * numbers["A"] / (beta * numbers["B"]))
    return float(np.exp((log_ratio + beta * log_product) / (alpha + beta)))


def _estimate(values: Array, level: float) -> Estimate:
    """Take the first value as the estimate and the rest as its bootstrap samples."""
    return Estimate.of(float(values[0]), values[1:], level)
