"""The ladder of data sizes, the race of models over it, and the line that forecasts them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from steelyard.errors import FitError, InfeasibleError
from steelyard.laws.decisions.selection.candidates import Measurements
from steelyard.laws.fitting.terms import Array

__all__ = [
    "FULL_FIELD_RUNGS",
    "KEPT_SHARE",
    "NUM_START",
    "Method",
    "PowerPhase",
    "accept_then_stop",
    "error_growth",
    "ladder_sizes",
    "line_forecasts",
    "race",
    "step_error",
]

Method = Literal["ats", "rectified", "vanilla", "subtuning", "zero_shot", "size", "halving"]
NUM_START = 3
"""Sizes that start a power phase without a test."""
FULL_FIELD_RUNGS = 2
"""Doublings before the largest size at which the field is first cut."""
KEPT_SHARE = 0.5
"""Share of the field's cost per example that goes on to the next size; sizes double, so each rung
costs the same."""
_SMALLEST_SD = 1e-4
"""Three points can lie on a line by accident; a residual below this is below the noise of any
evaluation."""


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


@dataclass(frozen=True, slots=True)
class PowerPhase:
    """A straight line in log-log space through the sizes of the power phase.

    Attributes:
        slope: slope of log loss over log examples.
        intercept: log loss at one example.
        first_examples: smallest size that was accepted.
        num_points: accepted sizes.
        residual_sd: standard deviation of the log residuals, divisor n.
    """

    slope: float
    intercept: float
    first_examples: float
    num_points: int
    residual_sd: float

    def log_loss(self, examples: float) -> float:
        """Extend the line to a data size."""
        return self.intercept + self.slope * float(np.log(examples))


def accept_then_stop(
    examples: Array, loss: Array, *, num_start: int = 3, threshold: float = 5.0
) -> PowerPhase:
    """Fit a line to the largest sizes and accept smaller ones until one lies off it.

    A size that lies more than `threshold` residual standard deviations off belongs to the flat
    phase before the power law. The smallest size is only ever tested against, never fitted, as in
    the authors' published runs.

    Args:
        examples: data sizes, [n], rising; n is at least `num_start`.
        loss: loss at each of them, [n], positive.
        num_start: sizes accepted without a test, at least 2.
        threshold: distance that rejects a size, in residual standard deviations of the sizes
            accepted so far, divisor n.

    Returns:
        The line.

    Source: Lin et al. 2024 (arXiv 2402.02314), algorithm 1.
    """
    log_size, log_loss = np.log(examples[::-1]), np.log(loss[::-1])
    count = num_start
    while True:
        slope, intercept = np.polyfit(log_size[:count], log_loss[:count], 1)
        spread = float(np.std(log_loss[:count] - intercept - slope * log_size[:count]))
        if count >= len(log_size) - 1:
            break
        if abs(log_loss[count] - intercept - slope * log_size[count]) > threshold * max(
            spread, _SMALLEST_SD
        ):
            break
        count += 1
    return PowerPhase(float(slope), float(intercept), float(examples[-count]), count, spread)


def race(
    found: Measurements,
    sizes: Sequence[int],
    target: int,
    *,
    num_start: int,
    threshold: float,
    quantile: float,
) -> dict[str, int]:
    """Measure models on growing sizes and drop the unpromising.

    At each size every model's loss at the target is forecast from its power phase. A model goes on
    when its optimistic bound is below the leader's pessimistic one and the models with better
    forecasts leave room in half of the field's cost per example; the leader always goes on.

    Args:
        found: measurements, which are read and added to.
        sizes: data sizes, rising.
        target: number of examples of the final tuning.
        num_start: sizes that start a power phase.
        threshold: threshold of `accept_then_stop`.
        quantile: quantile of the normal distribution that makes a bound, such as 1.28 for 80 %
            intervals.

    Returns:
        Largest size each dropped model was measured at, by name.
    """
    # Cheap sizes are measured for the whole field: a line needs `num_start` of them, and dropping
    # models there would save almost nothing.
    full = max(len(sizes) - FULL_FIELD_RUNGS, num_start)
    for size in sizes[:full]:
        found.measure(found.alive, size)
    field = found.alive
    dropped: dict[str, int] = {}
    for last, following in zip(sizes[full - 1 :], sizes[full:], strict=False):
        kept = _survivors(found, field, target, num_start, threshold, quantile)
        dropped |= {name: last for name in field if name not in kept}
        found.measure(kept, following)
        # Where all that went on diverged, the race goes on with those that had been dropped.
        field = [name for name in kept if name not in found.failed] or [
            name for name in field if name not in found.failed
        ]
    return {name: size for name, size in dropped.items() if name not in field}


def _survivors(
    found: Measurements,
    field: list[str],
    target: int,
    num_start: int,
    threshold: float,
    quantile: float,
) -> list[str]:
    """Choose the models that go on, best forecast first."""
    forecasts = line_forecasts(found, field, target, num_start=num_start, threshold=threshold)
    error = step_error(found, list(forecasts), num_start)
    bound = {
        name: quantile * error * error_growth(found.curve(name)[0][-1], target)
        for name in forecasts
    }
    order = sorted(forecasts, key=lambda name: forecasts[name])
    # Dropped is what even at its best is worse than the leader at its worst, or too dear beside
    # models with better forecasts.
    limit = forecasts[order[0]] + bound[order[0]] if order else 0.0
    room = KEPT_SHARE * sum(found.candidates[name].cost_flops for name in forecasts)
    kept = []
    for name in order:
        cost = found.candidates[name].cost_flops
        if not kept or (cost <= room and forecasts[name] - bound[name] <= limit):
            kept.append(name)
            room -= cost
    return kept


def line_forecasts(
    found: Measurements, names: Sequence[str], target: int, *, num_start: int, threshold: float
) -> dict[str, float]:
    """Forecast log losses at the target for the models with at least `num_start` sizes."""
    curves = {name: found.curve(name) for name in names if name not in found.failed}
    return {
        name: accept_then_stop(sizes, loss, num_start=num_start, threshold=threshold).log_loss(
            target
        )
        for name, (sizes, loss) in curves.items()
        if len(sizes) >= num_start
    }


def step_error(found: Measurements, names: Sequence[str], num_start: int) -> float:
    """Return the rms error of forecasting the next size, in log units per doubling.

    The errors of all models are pooled, since one curve has too few sizes to know its own.
    """
    errors = [error for name in names for error in _step_errors(*found.curve(name), num_start)]
    return float(np.sqrt(np.mean(np.square(errors)))) if errors else 0.0


def _step_errors(sizes: Array, loss: Array, num_start: int) -> list[float]:
    """Return the errors of a line through the sizes just below, log units per doubling."""
    x, y = np.log(sizes), np.log(loss)
    below = [slice(at - num_start, at) for at in range(num_start, len(sizes))]
    lines = np.array([np.polyfit(x[rows], y[rows], 1) for rows in below]).reshape(-1, 2)
    errors = y[num_start:] - lines[:, 1] - lines[:, 0] * x[num_start:]
    return (errors / (np.diff(x)[num_start - 1 :] / np.log(2))).tolist()


def error_growth(examples: float, target: float) -> float:
    """Return m (m + 1) / 2 for m doublings, the growth of the error of one doubling.

    Fine-tuning curves keep bending the same way: one that bends by e per doubling is e off after
    one, e + 2 e after two. Slopes that wander instead would give a smaller factor, which covers too
    few of the published curves.
    """
    doublings = max(float(np.log2(target / examples)), 0.0)
    return doublings * (doublings + 1) / 2
