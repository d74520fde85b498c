"""The chain behind a plan's size, tokens and loss: what a scaling law makes of a budget."""

import math
import re
from collections.abc import Mapping

from steelyard.cost.why.chain import ChainStep
from steelyard.laws.fitting.fitted import Fit
from steelyard.plan.types import AllocationLike, interval

__all__ = ["law_chain"]

_NAME = re.compile(r"[A-Za-z_]\w*")
_CLOSE = 1e-4
"""Relative distance up to which a closed formula counts as what a search found."""


def law_chain(fit: Fit, allocation: AllocationLike, flops: float) -> list[ChainStep]:
    """Show how a law turns a budget into a model's size, its tokens and its loss.

    A formula stands in the chain only where it gives the number that the plan used: a law without
    a closed optimum, a limit that binds or a size that was given leave theirs out.

    Args:
        fit: the law with its parameters.
        allocation: what it made of the budget.
        flops: the budget, FLOP.

    Returns:
        Steps named best_parameters, best_tokens and loss, as far as they can be shown.
    """
    size, tokens, loss = (
        interval(value)[0] for value in (allocation.parameters, allocation.tokens, allocation.loss)
    )
    steps = []
    if math.isclose(_least_loss_size(fit.params, flops), size, rel_tol=_CLOSE):
        steps.append(_size_step(fit, flops, size))
    if math.isclose(flops / 6 / size, tokens, rel_tol=_CLOSE):
        steps.append(_tokens_step(flops, size, tokens))
    numbers = {**fit.params, "N": size, "D": tokens}
    formula = fit.law.formula.replace("[", "(").replace("]", ")")
    if {*_NAME.findall(formula)} <= numbers.keys():
        steps.append(
            ChainStep(
                name="loss",
                formula=formula,
                numbers=numbers,
                value=loss,
                unit="nat/token",
                source=f"{fit.source}; N parameters, D tokens",
            )
        )
    return steps


def _least_loss_size(params: Mapping[str, float], flops: float) -> float:
    """Return the size of least loss of a sum of two powers; NaN for another form."""
    if {"A", "B", "alpha", "beta"} - params.keys():
        return math.nan
    alpha, beta = params["alpha"], params["beta"]
    scale = alpha * params["A"] / (beta * params["B"])
    return scale ** (1 / (alpha + beta)) * (flops / 6) ** (beta / (alpha + beta))


def _size_step(fit: Fit, flops: float, size: float) -> ChainStep:
    """Show the size of least loss."""
    names = ("alpha", "beta", "A", "B")
    return ChainStep(
        name="best_parameters",
        formula="(alpha x A / (beta x B)) ^ (1 / (alpha + beta)) "
        "x (budget / 6) ^ (beta / (alpha + beta))",
        numbers={name: fit.params[name] for name in names} | {"budget": flops},
        value=size,
        unit="parameter",
        source=f"least loss where 6 x parameters x tokens is the budget (arXiv 2203.15556, "
        f"equation 4); {fit.source}",
    )


def _tokens_step(flops: float, size: float, tokens: float) -> ChainStep:
    """Show the tokens that the rest of the budget pays."""
    return ChainStep(
        name="best_tokens",
        formula="budget / (6 x best_parameters)",
        numbers={"budget": flops, "best_parameters": size},
        value=tokens,
        unit="token",
        source="6 FLOP per parameter and token (arXiv 2001.08361, section 2.1)",
    )
