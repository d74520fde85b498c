"""Forecasts of the larger model's run from the ladder: loss by the fitted law, time and memory by corrected cost models."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.catalog.parameters import count_parameters
from steelyard.cost import Machine, eager_training_memory, fit_correction, training_step
from steelyard.laws import Fit, chinchilla, fit, kaplan
from steelyard.quantity import Forecast
from steelyard.weigh.ladder import BATCH_SIZE, SEQUENCE_LENGTH, rung_architecture

__all__ = ["RungPoint", "fit_law", "predicted_memory_bytes", "predicted_step_parts_s", "training_forecasts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RungPoint:
    """One finished, cooled-down run of the ladder.

    Attributes:
        hidden_size: width of the model.
        num_layers: its layers.
        parameters: all of them, the tied table once.
        steps: optimizer steps.
        tokens: trained on.
        loss: held-out loss at the end, nats per token.
        step_time_s: median wall time of a step.
        step_time_spread_s: its robust standard deviation.
        peak_memory_bytes: beyond what the process held before.
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

    @property
    def shape(self) -> tuple[int, int]:
        """Width and layers."""
        return self.hidden_size, self.num_layers


def fit_law(points: Sequence[RungPoint], *, seed: int) -> Fit:
    """Fit L(N, D) to the ladder's cooled-down losses, in the published form that leaves the smaller residuals.

    Small models trained on few tokens gain more from data the larger they are. Kaplan's form has this, Chinchilla's sum has not.

    Args:
        points: of at least two sizes and two token counts.
        seed: of the bootstrap.

    Returns:
        The fit with its intervals.
    """
    inputs = {
        "parameters": np.array([point.parameters for point in points], dtype=float),
        "tokens": np.array([point.tokens for point in points], dtype=float),
    }
    losses = np.array([point.loss for point in points])
    return min((fit(law, inputs, losses, seed=seed) for law in (chinchilla(), kaplan())), key=lambda found: found.noise)


def predicted_step_parts_s(shape: tuple[int, int], machine: Machine) -> tuple[float, float]:
    """Give the uncorrected roofline time of one optimizer step of a rung: matrix products and attention, all else."""
    step = training_step(rung_architecture(*shape), machine=machine, micro_batch=BATCH_SIZE, sequence_length=SEQUENCE_LENGTH)
    return float(step.product_s), float(step.time_s - step.product_s)


def predicted_memory_bytes(shape: tuple[int, int]) -> float:
    """Give the uncorrected peak memory of a rung's trainer."""
    return eager_training_memory(rung_architecture(*shape), batch=BATCH_SIZE, sequence_length=SEQUENCE_LENGTH).total


def _one_per_size(points: Sequence[RungPoint]) -> list[RungPoint]:
    """Keep the longest run of each size; its medians rest on the most steps."""
    longest: dict[tuple[int, int], RungPoint] = {}
    for point in points:
        if point.shape not in longest or point.steps > longest[point.shape].steps:
            longest[point.shape] = point
    return list(longest.values())


def training_forecasts(law: Fit, points: Sequence[RungPoint], *, target: tuple[int, int], steps: int, machine: Machine) -> list[Forecast]:
    """Forecast the larger run before it starts.

    Args:
        law: fitted to the ladder's losses.
        points: the ladder's runs, whose measured times and memory correct the cost models.
        target: (hidden_size, num_layers) of the larger model.
        steps: its optimizer steps.
        machine: this machine, calibrated.

    Returns:
        eval.loss, train.step_time, train.total_time, train.peak_memory.
    """
    arch = rung_architecture(*target)
    tokens = steps * BATCH_SIZE * SEQUENCE_LENGTH
    loss = law.predict({"parameters": np.array([float(count_parameters(arch).total)]), "tokens": np.array([float(tokens)])})
    runs = _one_per_size(points)
    time = fit_correction([predicted_step_parts_s(run.shape, machine) for run in runs], [run.step_time_s for run in runs])
    memory = fit_correction([predicted_memory_bytes(run.shape) for run in runs], [run.peak_memory_bytes for run in runs])
    said = f"corrected on {len(runs)} ladder runs"
    step = time.forecast("train.step_time", predicted_step_parts_s(target, machine), f"roofline, {said}")
    return [
        Forecast(
            quantity="eval.loss",
            value=float(loss.value[0]),
            low=float(loss.low[0]),
            high=float(loss.high[0]),
            provenance="fitted",
            source=f"L(N, D), {law.law.name} form, fitted on {len(points)} ladder runs",
        ),
        step,
        Forecast(
            quantity="train.total_time",
            value=step.value * steps,
            low=step.low * steps,
            high=step.high * steps,
            provenance=step.provenance,
            source=step.source,
        ),
        memory.forecast("train.peak_memory", predicted_memory_bytes(target), f"eager memory account, {said}"),
    ]
