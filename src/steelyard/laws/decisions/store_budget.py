"""A compute budget split among a model, its training tokens and a store that it looks up in."""

from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array

__all__ = ["StoreAllocation", "allocate_store"]

_INPUTS = ("parameters", "tokens", "store_tokens")
_TRAINING_FLOPS, _ENCODING_FLOPS = 6.0, 2.0
_GRID, _ZOOMS, _SHRINK = 41, 6, 0.25
_LEAST_STORE = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreAllocation:
    """The best split of a budget.

    Attributes:
        flops: the budget, FLOP.
        parameters: best model size.
        tokens: training tokens.
        store_tokens: tokens in the store.
        store_share: share of the budget that encodes the store.
        loss: predicted loss with the store.
        loss_without: predicted loss of the best model and tokens when the store is held to
            `least_store_tokens` and the budget all trains.
        level: probability inside the intervals.
    """

    flops: float
    parameters: Estimate
    tokens: Estimate
    store_tokens: Estimate
    store_share: Estimate
    loss: Estimate
    loss_without: Estimate
    level: float


def allocate_store(
    fit: Fit,
    flops: float,
    *,
    encoder_parameters: float,
    max_store_tokens: float = np.inf,
    least_store_tokens: float = _LEAST_STORE,
    level: float = 0.8,
) -> StoreAllocation:
    """Split a budget of 6 N D + 2 N_encoder S among size N, tokens D and store S.

    Args:
        fit: fit of a law with inputs "parameters", "tokens" and "store_tokens", such as
            `law_named("powers:parameters:tokens:store_tokens")`.
        flops: budget in FLOP, positive.
        encoder_parameters: parameters of what encodes the store, each token once; above 0.
        max_store_tokens: most tokens that the store may hold, such as all text at hand.
        least_store_tokens: smallest store that the law is asked about.
        level: probability inside the intervals, 0..1.

    Returns:
        Sizes, shares and losses with bootstrap intervals.

    Raises:
        FitError: the law has other inputs, or the budget does not pay for the smallest store.

    Source: Shao et al. 2024 (arXiv 2407.12854), compute-optimal scaling: pretraining 6 N D,
        datastore 2 N_retriever D_store; a flat index adds none.
    """
    if set(fit.law.inputs) != set(_INPUTS):
        raise FitError(
            f"a law of {', '.join(fit.law.inputs)}", hint=f"fit a law of {', '.join(_INPUTS)}"
        )
    price = _ENCODING_FLOPS * encoder_parameters
    if not (price > 0 and flops > 2 * price * least_store_tokens and flops < np.inf):
        raise FitError(
            f"{flops:g} FLOP for a store of {least_store_tokens:g} tokens or more, whose encoder "
            f"takes {price:g} FLOP per token",
            hint="raise the budget, or take a smaller encoder",
        )
    ends = (least_store_tokens, min(max_store_tokens, flops / price * (1 - 1e-6)))
    best = np.array([_best(fit.law, theta, flops, price, ends) for theta in fit.thetas])
    none = (least_store_tokens, least_store_tokens)
    bare = np.array([_best(fit.law, theta, flops, price, none) for theta in fit.thetas])
    sizes, stores = np.exp(best[:, 0]), np.exp(best[:, 1])
    return StoreAllocation(
        flops=float(flops),
        parameters=Estimate.over(sizes, level),
        tokens=Estimate.over((flops - price * stores) / (_TRAINING_FLOPS * sizes), level),
        store_tokens=Estimate.over(stores, level),
        store_share=Estimate.over(price * stores / flops, level),
        loss=Estimate.over(np.exp(best[:, 2]), level),
        loss_without=Estimate.over(np.exp(bare[:, 2]), level),
        level=level,
    )


def _best(law: Law, theta: Array, flops: float, price: float, ends: tuple[float, float]) -> Array:
    """Return log size, log store and log loss of the best split, by a grid that shrinks."""
    low, high = np.log(ends[0]), np.log(ends[1])
    middle, half = np.array([np.log(flops) / 2, (low + high) / 2]), np.log(flops) / 2
    halves = np.array([half, (high - low) / 2])
    found = np.array([*middle, np.inf])
    for _ in range(_ZOOMS):
        steps = np.linspace(-1, 1, _GRID)
        sizes = middle[0] + halves[0] * steps
        stores = np.clip(middle[1] + halves[1] * steps, low, high)
        grid = np.stack(np.meshgrid(sizes, stores, indexing="ij"), axis=-1).reshape(-1, 2)
        left = flops - price * np.exp(grid[:, 1])
        tokens = left / (_TRAINING_FLOPS * np.exp(grid[:, 0]))
        inputs = {
            "parameters": np.exp(grid[:, 0]),
            "tokens": tokens,
            "store_tokens": np.exp(grid[:, 1]),
        }
        losses = law.predict(theta[None], inputs)[0]
        place = int(losses.argmin())
        found = np.array([*grid[place], losses[place]])
        # The best of a convex valley lies within a step of the grid's; a quarter is many steps.
        middle, halves = found[:2], halves * _SHRINK
    return found
