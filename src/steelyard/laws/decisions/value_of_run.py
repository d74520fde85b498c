"""What a further run would save in the plan that is waiting for it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.decisions.allocate import Limits, allocate
from steelyard.laws.decisions.cost_law import SIX_N_D, CostLaw
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.points import check_inputs
from steelyard.laws.fitting.terms import Array

__all__ = ["RunValue", "value_of_runs"]

_FEWEST_DRAWS = 50
_REACH = np.log(8.0)
_GRID = 65
_NODES = ((-np.sqrt(3.0), 1 / 6), (0.0, 2 / 3), (np.sqrt(3.0), 1 / 6))
"""Gauss-Hermite: places of a standard normal number and their weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunValue:
    """What candidate runs save in a plan of one budget.

    Attributes:
        budget: compute of the plan, FLOP.
        saved_flops: compute that the plan saves at equal expected loss once a candidate is
            measured, [m]; 0 where it would not change the plan.
        most_flops: what knowing the law exactly would save.
    """

    budget: float
    saved_flops: Array
    most_flops: float


def value_of_runs(
    fit: Fit,
    candidates: Mapping[str, ArrayLike],
    budget: float,
    *,
    cost: CostLaw = SIX_N_D,
) -> RunValue:
    """Say what each candidate run would save in a plan that splits a budget by this law.

    The bootstraps stand for what the law may be. Each is weighed anew by how well it agrees with
    what a candidate may measure; the plan then takes the size of least expected loss. How much that
    lowers the expected loss, over all that may be measured, is turned into the compute that buys as
    much.

    Args:
        fit: fit of a law of parameters and tokens, with at least 50 bootstraps.
        candidates: per input of the law its values, [m].
        budget: compute of the plan, FLOP.
        cost: what training costs.

    Returns:
        The compute saved by each candidate.

    Raises:
        FitError: too few bootstraps, other inputs, or a law that cannot split a budget.

    Source: Raiffa and Schlaifer 1961, expected value of sample information.
    """
    if len(fit.samples) < _FEWEST_DRAWS:
        raise FitError(
            f"{len(fit.samples)} bootstraps cannot tell what a run would be worth",
            hint=f"fit with {_FEWEST_DRAWS} or more",
        )
    middle = np.log(allocate(fit, budget, cost=cost, extrapolate=True).parameters.value)
    losses = _losses(fit, np.exp(middle + np.linspace(-_REACH, _REACH, _GRID)), budget, cost)
    now = float(losses.mean(axis=0).min())
    more = allocate(fit, 1.2 * budget, limits=Limits(), cost=cost, extrapolate=True).loss.value
    here = allocate(fit, budget, cost=cost, extrapolate=True).loss.value
    slope = max((here - more) / np.log(1.2), 1e-12)
    columns = check_inputs(fit.law, candidates)
    said = fit.law.predict(fit.samples, columns)
    gains = np.array([now - _after(losses, log, fit.noise) for log in said.T])

    def flops(gain: Array | float) -> Array:
        return budget * -np.expm1(-np.maximum(gain, 0.0) / slope)

    return RunValue(
        budget=budget,
        saved_flops=flops(gains),
        most_flops=float(flops(now - float(losses.min(axis=1).mean()))),
    )


def _losses(fit: Fit, sizes: Array, budget: float, cost: CostLaw) -> Array:
    """Return the loss of each bootstrap at each size that spends the budget, [B, G]."""
    return np.exp(
        fit.law.predict(fit.samples, {"parameters": sizes, "tokens": cost.tokens(sizes, budget)})
    )


def _after(losses: Array, said: Array, noise: float) -> float:
    """Return the least expected loss once a run was measured, over what it may measure."""
    # Few draws lie apart from one another, so that an exact measurement would leave a single one;
    # a kernel of the usual width keeps their neighbors.
    width = 1.06 * float(said.std()) * len(said) ** -0.2
    sd = float(np.hypot(max(noise, 1e-6), width))
    total = 0.0
    for place, weight in _NODES:
        measured = said + place * sd
        agree = np.exp(-0.5 * ((said[None, :] - measured[:, None]) / sd) ** 2)
        expected = (agree @ losses) / agree.sum(axis=1, keepdims=True)
        total += weight * float(expected.min(axis=1).mean())
    return total
