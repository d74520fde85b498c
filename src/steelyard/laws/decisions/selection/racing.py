"""Race models over growing data sizes: the promising half of the cost goes on."""

from collections.abc import Sequence

import numpy as np

from steelyard.laws.decisions.selection.accept_then_stop import accept_then_stop
from steelyard.laws.decisions.selection.candidates import Measurements
from steelyard.laws.fitting.terms import Array

__all__ = ["FULL_FIELD_RUNGS", "KEPT_SHARE", "error_growth", "line_forecasts", "race", "step_error"]

FULL_FIELD_RUNGS = 2
"""Doublings before the largest size at which the field is first cut."""

KEPT_SHARE = 0.5
"""Share of the field's cost per example that goes on to the next size; sizes double, so each rung
costs the same."""


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
    log_size, log_loss = np.log(sizes), np.log(loss)
    errors = []
    for index in range(num_start, len(sizes)):
        slope, intercept = np.polyfit(
            log_size[index - num_start : index], log_loss[index - num_start : index], 1
        )
        doublings = (log_size[index] - log_size[index - 1]) / np.log(2)
        errors.append(float((log_loss[index] - intercept - slope * log_size[index]) / doublings))
    return errors


def error_growth(examples: float, target: float) -> float:
    """Return m (m + 1) / 2 for m doublings, the growth of the error of one doubling.

    Fine-tuning curves keep bending the same way: one that bends by e per doubling is e off after
    one, e + 2 e after two. Slopes that wander instead would give a smaller factor, which covers too
    few of the published curves.
    """
    doublings = max(float(np.log2(target / examples)), 0.0)
    return doublings * (doublings + 1) / 2
