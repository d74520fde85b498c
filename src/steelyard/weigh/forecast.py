"""Forecasts of the larger model from the ladder: loss by a fitted law, time and memory by cost.

The cost models are corrected on what the ladder's own runs took.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from steelyard.catalog.parameters import count_parameters
from steelyard.cost import Machine, eager_training_memory, fit_correction, training_step
from steelyard.laws import Fit, chinchilla, fit, kaplan
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.quantity import Forecast
from steelyard.weigh.ladder import BATCH_SIZE, SEQUENCE_LENGTH, rung_architecture
from steelyard.weigh.pace import Pace, drift, joined

__all__ = [
    "RungPoint",
    "fit_laws",
    "loss_forecast",
    "predicted_memory_parts_bytes",
    "predicted_step_parts_s",
    "training_forecasts",
]


_SAME_PACE = 0.05
_STEP_SPREAD = 0.1
"""Scatter of measured step times about the corrected roofline; assumed, seen on ladders of small
models up to twice that."""

_LIBRARY_BYTES = 4e6
"""What libraries and the allocator hold; assumed, the ladder corrects it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RungPoint:
    """One finished, cooled-down run of the ladder.

    Attributes:
        hidden_size: width of the model.
        num_layers: layers of the model.
        parameters: parameters, the tied table counted once.
        steps: optimizer steps.
        tokens: tokens trained on.
        loss: held-out loss at the end, nats per token.
        step_time_s: median wall time of a step.
        step_time_spread_s: robust standard deviation of a step's time.
        peak_memory_bytes: peak memory beyond what the process held before.
        total_time_s: wall time of all steps; 0 where it was not kept.
        pace: speed of the machine while models of this shape were trained.
    """

    hidden_size: int
    num_layers: int
    parameters: int
    steps: int
    tokens: int
    loss: float
    step_time_s: float
    step_time_spread_s: float
    peak_memory_bytes: float
    total_time_s: float = 0.0
    pace: Pace = field(default_factory=Pace)

    @property
    def shape(self) -> tuple[int, int]:
        """Width and layers."""
        return self.hidden_size, self.num_layers


def fit_laws(points: Sequence[RungPoint], *, seed: int) -> list[Fit]:
    """Fit L(N, D) to the ladder's cooled-down losses in the two published forms.

    They differ where a ladder of small models lies: in Kaplan's form larger models gain more from
    data, in Chinchilla's sum all gain the same.

    Args:
        points: runs of at least two sizes and two token counts.
        seed: seed of the bootstrap.

    Returns:
        The fits with their intervals, the one with the smaller residuals first.
    """
    inputs = {
        "parameters": np.array([point.parameters for point in points], dtype=float),
        "tokens": np.array([point.tokens for point in points], dtype=float),
    }
    losses = np.array([point.loss for point in points])
    return sorted(
        (
            fit(law, inputs, losses, bootstrap=Bootstrap(seed=seed))
            for law in (chinchilla(), kaplan())
        ),
        key=lambda found: found.noise,
    )


def loss_forecast(laws: Sequence[Fit], parameters: float, tokens: float) -> Forecast:
    """Forecast the held-out loss as the geometric mean of what the forms say.

    Args:
        laws: laws fitted to the same runs.
        parameters: parameters of the model.
        tokens: tokens it is trained on.

    Returns:
        The mean; its interval adds the forms' disagreement to their mean width, in squares.
    """
    inputs = {"parameters": np.array([parameters]), "tokens": np.array([tokens])}
    said = [law.predict(inputs) for law in laws]
    value, low, high = (
        np.log([float(getattr(item, end)[0]) for item in said]) for end in ("value", "low", "high")
    )
    # Each form's interval knows only its own noise. How far the forms lie apart is an error of its
    # own, independent of that noise, so the two add as the sides of a right angle.
    below, above = (
        float(np.hypot(width.mean(), np.ptp(value) / 2)) for width in (value - low, high - value)
    )
    middle = float(value.mean())
    names = " and ".join(law.law.name for law in laws)
    count = len(laws[0].target)
    return Forecast(
        quantity="eval.loss",
        value=math.exp(middle),
        low=math.exp(middle - below),
        high=math.exp(middle + above),
        provenance="fitted",
        source=f"L(N, D), mean of the {names} forms fitted on {count} ladder runs",
    )


def predicted_step_parts_s(shape: tuple[int, int], machine: Machine) -> tuple[float, float]:
    """Return the uncorrected roofline time of a step: matrix products and attention, the rest."""
    step = training_step(
        rung_architecture(*shape),
        machine=machine,
        micro_batch=BATCH_SIZE,
        sequence_length=SEQUENCE_LENGTH,
    )
    return float(step.product_s), float(step.time_s - step.product_s)


def predicted_memory_parts_bytes(shape: tuple[int, int]) -> tuple[float, float]:
    """Return the uncorrected peak bytes of a trainer: its tensors, and what libraries hold."""
    account = eager_training_memory(
        rung_architecture(*shape), batch=BATCH_SIZE, sequence_length=SEQUENCE_LENGTH
    )
    return account.total, _LIBRARY_BYTES


def _by_shape(
    points: Sequence[RungPoint], pace: Pace
) -> dict[tuple[int, int], tuple[float, float]]:
    """Return each size's median step time at the ladder's pace, and least peak memory."""
    groups: dict[tuple[int, int], list[RungPoint]] = {}
    for point in points:
        groups.setdefault(point.shape, []).append(point)
    # Other work on the machine makes a step slower or faster than the rest, hence the median. What
    # the process held before can only add to a peak, hence the least.
    return {
        shape: (
            median(run.step_time_s for run in group) * _to_pace(group[0].pace, pace),
            min(run.peak_memory_bytes for run in group),
        )
        for shape, group in sorted(groups.items())
    }


def _to_pace(own: Pace, common: Pace) -> float:
    """Return the factor that turns a time of a shape's own pace into one of the common pace."""
    if not (own.median_s and common.median_s):
        return 1.0
    factor = common.median_s / own.median_s
    # Within what the fixed work varies by on a quiet machine, correcting would only add noise.
    return factor if abs(math.log(factor)) > _SAME_PACE else 1.0


def _stretch(points: Sequence[RungPoint]) -> float:
    """Return by how much the mean of a run's steps exceeds their median, as a factor."""
    # A run's total also counts its slow steps: the first ones, and those another process disturbed.
    known = [
        point.total_time_s / (point.steps * point.step_time_s)
        for point in points
        if point.total_time_s
    ]
    return median(known) if known else 1.0


def _widened(forecast: Forecast, relative: float, pace_s: float) -> Forecast:
    """Return a forecast of a time for a pace, its interval wider by what that pace strays."""
    above, below = (
        math.expm1(math.hypot(math.log(end), math.log1p(relative)))
        for end in (forecast.high / forecast.value, forecast.value / forecast.low)
    )
    return replace(
        forecast,
        low=forecast.value / (1 + below),
        high=forecast.value * (1 + above),
        pace_s=pace_s,
    )


def training_forecasts(
    laws: Sequence[Fit],
    points: Sequence[RungPoint],
    *,
    target: tuple[int, int],
    steps: int,
    machine: Machine,
) -> list[Forecast]:
    """Forecast the larger run before it starts.

    Times are for a machine as fast as it was on the way up the ladder, and their intervals hold how
    far its speed strayed meanwhile.

    Args:
        laws: laws fitted to the ladder's losses.
        points: the ladder's runs, whose measured times and memory correct the cost models.
        target: (hidden_size, num_layers) of the larger model.
        steps: optimizer steps of the larger model.
        machine: this machine, calibrated.

    Returns:
        eval.loss, train.step_time, train.total_time, train.peak_memory.
    """
    arch = rung_architecture(*target)
    tokens = steps * BATCH_SIZE * SEQUENCE_LENGTH
    pace = joined({point.shape: point.pace for point in points}.values())
    runs = _by_shape(points, pace)
    time = fit_correction(
        [predicted_step_parts_s(shape, machine) for shape in runs],
        [step_s for step_s, _ in runs.values()],
        expected_spread=_STEP_SPREAD,
    )
    memory = fit_correction(
        [predicted_memory_parts_bytes(shape) for shape in runs],
        [peak_bytes for _, peak_bytes in runs.values()],
    )
    said = f"corrected on {len(runs)} sizes of the ladder"
    step = time.forecast(
        "train.step_time", predicted_step_parts_s(target, machine), f"roofline, {said}"
    )
    whole = steps * _stretch(points)
    total = replace(
        step,
        quantity="train.total_time",
        value=step.value * whole,
        low=step.low * whole,
        high=step.high * whole,
    )
    return [
        loss_forecast(laws, float(count_parameters(arch).total), float(tokens)),
        _widened(step, drift(pace.windows_s), pace.median_s),
        _widened(total, drift(pace.windows_s), pace.mean_s),
        memory.forecast(
            "train.peak_memory",
            predicted_memory_parts_bytes(target),
            f"eager memory account, {said}",
        ),
    ]
