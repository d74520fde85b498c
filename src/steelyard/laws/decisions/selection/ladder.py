"""The ladder of data sizes that models are tuned on, and what it costs."""

from typing import Literal

from steelyard.errors import FitError, InfeasibleError
from steelyard.laws.decisions.selection.candidates import Measurements
from steelyard.laws.decisions.selection.racing import FULL_FIELD_RUNGS, KEPT_SHARE

__all__ = ["NUM_START", "Method", "ladder_sizes"]

Method = Literal["ats", "rectified", "vanilla", "subtuning", "zero_shot", "size", "halving"]
NUM_START = 3
"""Sizes that start a power phase without a test."""


def ladder_sizes(
    found: Measurements,
    target: int,
    most: int | None,
    least: int,
    budget_flops: float | None,
    method: Method,
) -> list[int]:
    """Choose the ladder of data sizes.

    Args:
        found: candidates, and the function or table of their losses.
        target: number of examples of the final tuning.
        most: largest size; None for the target where a budget bounds it, else for an eighth of it.
        least: smallest size.
        budget_flops: most compute for the whole ladder; None for any.
        method: way to rank, which says how many models are tuned on each size.

    Returns:
        Sizes, rising.

    Raises:
        FitError: no size lies within the bounds.
        InfeasibleError: the budget does not pay for the smallest ladder.
    """
    if method in ("zero_shot", "size"):
        return [0]
    ceiling = most or (target if budget_flops is not None else target // 8)
    ladder = _unbounded(found, least, ceiling)
    if not ladder or ceiling < least or ceiling > target:
        raise FitError(
            f"no data sizes between {least} and {ceiling} examples for a target of {target}",
            hint="sizes must not exceed the target; lower min_examples or raise max_examples",
        )
    prices = [item.cost_flops for item in found.candidates.values()]
    # A function trains at any size, so its ladder is halved as a whole and keeps its steps; a table
    # has only its own sizes, so its largest ones are given up.
    while (
        ladder
        and budget_flops is not None
        and _planned_flops(prices, ladder, method) > budget_flops
    ):
        halved = [size // 2 for size in ladder if size // 2 >= least]
        ladder = halved if callable(found.losses) else ladder[:-1]
    if not ladder:
        raise InfeasibleError(
            f"{budget_flops:.3g} FLOP do not pay for tuning {len(prices)} models on {least} "
            f"examples",
            hint=f"{least * sum(prices):.3g} FLOP is the least; drop large models or raise the "
            f"budget",
        )
    return ladder


def _unbounded(found: Measurements, least: int, ceiling: int) -> list[int]:
    """List the sizes that a budget without end would pay for, rising."""
    if not callable(found.losses):
        known = {size for name in found.candidates for size in found.losses[name]}
        return sorted(size for size in known if least <= size <= ceiling)
    ladder = [ceiling]
    while ladder[0] // 2 >= least:
        ladder.insert(0, ladder[0] // 2)
    return ladder


def _planned_flops(prices: list[float], ladder: list[int], method: Method) -> float:
    """Return what a ladder costs at most, FLOP."""
    field = sum(prices)
    if method == "subtuning":
        return field * ladder[-1]
    if method != "halving" or len(ladder) <= NUM_START:
        return field * sum(ladder)
    # The leader always goes on, so a step costs at least as much as the dearest model.
    full = max(len(ladder) - FULL_FIELD_RUNGS, NUM_START)
    raced = sum(
        max(KEPT_SHARE ** (index + 1) * field, *prices) * size
        for index, size in enumerate(ladder[full:])
    )
    return field * sum(ladder[:full]) + raced
