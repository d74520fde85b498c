"""The best model size, token count and epochs for a compute budget under a fitted law."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.decisions.cost_law import SIX_N_D, CostLaw
from steelyard.laws.decisions.fit_trouble import refuse_blind_allocation, residual_trouble
from steelyard.laws.decisions.training_budget import (
    Limits,
    TrainingBudget,
    best_log_sizes,
)
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.terms import Array
from steelyard.laws.tables.trouble import Trouble
from steelyard.quantity import Provenance

__all__ = ["Allocation", "Limits", "allocate", "follow_recipe"]

_GRID = 257
_EDGE = 1.1
"""Tokens per parameter a tenth beyond those of the points are still theirs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """The best use of a budget.

    Attributes:
        flops: the budget, FLOP.
        training_flops: what training at the best size spends of it; the rest serves, or is left
            over where limits bind.
        parameters: best model size, counted as the fit's points were.
        tokens: training tokens, repeats counted.
        epochs: passes over the unique tokens, below 1 when not all are used; None when their number
            was not given.
        loss: predicted loss of that run.
        recipe: what the laws of the recipe say for that run, such as its batch and learning rate,
            in their units.
        binding: limits that hold the optimum back: "max_parameters", "max_tokens", both, or none.
        distance: how far it lies outside the fitted points, in factors of e; 0 inside, and for
            published laws.
        level: probability inside the intervals.
        provenance: provenance of the numbers, that of the fit.
        source: source of the fit.
        trouble: what makes the answer doubtful, in words; where the best tokens per parameter lie
            beyond those of the points, size and tokens reach to the nearest that was measured.
        cost: what training was taken to cost.
    """

    flops: float
    training_flops: float
    parameters: Estimate
    tokens: Estimate
    epochs: Estimate | None
    loss: Estimate
    recipe: dict[str, Estimate] = field(default_factory=dict)
    binding: tuple[str, ...] = ()
    distance: float
    level: float
    provenance: Provenance
    source: str
    trouble: tuple[Trouble, ...] = ()
    cost: CostLaw = SIX_N_D


def allocate(
    fit: Fit,
    flops: float,
    *,
    limits: Limits | None = None,
    recipe: Mapping[str, Fit] | None = None,
    cost: CostLaw = SIX_N_D,
    level: float = 0.8,
    extrapolate: bool = False,
) -> Allocation:
    """Split a budget between model size and tokens.

    Args:
        fit: fit of a law with inputs "parameters" and "tokens", and "unique_tokens" for laws of
            repetition; fitted or published.
        flops: budget in FLOP, positive; of training, and of serving where `limits` has inference
            tokens.
        limits: limits on size and tokens; None for none.
        recipe: laws by the name of what they predict, such as {"batch": ..., "learning_rate": ...};
            each may use parameters, tokens, unique_tokens and what those before it predict.
        cost: what training costs, such as `CostLaw.fit(table)` where 6 FLOP per parameter and token
            are wrong.
        level: probability inside the intervals, 0..1.
        extrapolate: allow a run more than two decades beyond the points.

    Returns:
        Size, tokens, epochs and loss with bootstrap intervals; intervals without width for
        published laws.

    Raises:
        FitError: the law has other inputs, the budget is not positive and finite, a law of the
            recipe needs what is not known, the run lies too far beyond the points, or the points do
            not tell what size and tokens are worth.

    Source: Hoffmann et al. 2022 (arXiv 2203.15556), section 3.3; inference in the budget: Sardana
        et al. 2024 (arXiv 2401.00448).
    """
    limits = limits or Limits()
    _check(fit, limits)
    budget = TrainingBudget(flops, cost, limits)
    sizes = np.exp(best_log_sizes(fit.law, fit.thetas, budget))
    tokens = budget.tokens(sizes)
    best = budget.runs(fit.law, sizes[:1])
    said = fit.predict(best, level, extrapolate=extrapolate)
    binding = budget.binding(float(sizes[0]), float(tokens[0]))
    parameters, fed = Estimate.over(sizes, level), Estimate.over(tokens, level)
    edges = () if binding else _at_edge(fit, parameters.value, fed.value)
    for edge in edges:
        parameters, fed = _widened(budget, parameters, fed, edge)
    return Allocation(
        flops=float(flops),
        training_flops=float(cost.flops(sizes[0], tokens[0])),
        parameters=parameters,
        tokens=fed,
        epochs=Estimate.over(tokens / limits.unique_tokens, level)
        if np.isfinite(limits.unique_tokens)
        else None,
        loss=said.first,
        recipe=follow_recipe(recipe or {}, best, level, extrapolate),
        binding=binding,
        distance=float(fit.distance(best)[0]),
        level=level,
        provenance=fit.provenance,
        source=fit.source,
        trouble=(*residual_trouble(fit), *(_edge_trouble(fit, best, edge) for edge in edges)),
        cost=cost,
    )


def _at_edge(fit: Fit, size: float, tokens: float) -> tuple[float, ...]:
    """Return the points' tokens per parameter nearest to the optimum's; nothing when within."""
    if not fit.num_points:
        return ()
    used = fit.weights > 0
    known = (fit.inputs["tokens"] / fit.inputs["parameters"])[used]
    ratio, low, high = tokens / size, float(known.min()), float(known.max())
    if low / _EDGE <= ratio <= high * _EDGE:
        return ()
    return (low,) if ratio < low else (high,)


def _widened(
    budget: TrainingBudget, size: Estimate, tokens: Estimate, ratio: float
) -> tuple[Estimate, Estimate]:
    """Let both intervals reach the run whose tokens per parameter were measured."""
    # The bootstrap knows the form only where runs lie; that the optimum is not at their edge is the
    # form's word alone.
    grid = np.linspace(*budget.log_range, _GRID)
    fed = np.log(budget.tokens(np.exp(grid)))
    at = float(np.interp(-np.log(ratio), grid - fed, grid))
    near, with_it = float(np.exp(at)), float(budget.tokens(np.exp(np.array([at])))[0])
    return (
        Estimate(size.value, min(size.low, near), max(size.high, near)),
        Estimate(tokens.value, min(tokens.low, with_it), max(tokens.high, with_it)),
    )


def _edge_trouble(fit: Fit, best: Mapping[str, Array], ratio: float) -> Trouble:
    """Say that the best run is unlike every run that was measured."""
    known = fit.inputs["tokens"] / fit.inputs["parameters"]
    wanted = float(best["tokens"][0] / best["parameters"][0])
    return Trouble(
        kind="edge",
        sentence=f"the best {wanted:.3g} tokens per parameter lie beyond those of the runs, "
        f"{known.min():.3g} to {known.max():.3g}; the intervals reach to {ratio:.3g}",
        advice="add runs with about as many tokens per parameter before believing the split",
        columns=("parameters", "tokens"),
    )


def _check(fit: Fit, limits: Limits) -> None:
    """Refuse laws without size and tokens, and fits that do not tell what they are worth."""
    if set(fit.law.inputs) - {"unique_tokens"} != {"parameters", "tokens"}:
        raise FitError(
            f"law {fit.law.name} has inputs {', '.join(fit.law.inputs)}; an allocation needs "
            f"parameters and tokens"
        )
    if "unique_tokens" in fit.law.inputs and not np.isfinite(limits.unique_tokens):
        raise FitError(
            f"law {fit.law.name} needs to know the unique tokens at hand",
            hint="give Limits(unique_tokens=...) (--unique-tokens)",
        )
    refuse_blind_allocation(fit)


def follow_recipe(
    recipe: Mapping[str, Fit], run: Mapping[str, Array], level: float, extrapolate: bool
) -> dict[str, Estimate]:
    """Ask each law of the recipe about the run; later ones may use what earlier ones said.

    Args:
        recipe: laws by the name of what they predict.
        run: inputs of one run.
        level: probability inside the intervals, 0..1.
        extrapolate: allow a run more than two decades beyond the points of a law.

    Returns:
        What each law says, by name.
    """
    known = dict(run)
    said = {}
    for name, law in recipe.items():
        answer = law.predict(
            {key: known[key] for key in law.law.inputs if key in known},
            level,
            extrapolate=extrapolate,
        )
        known[name] = answer.value
        said[name] = answer.first
    return said
