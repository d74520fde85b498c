"""Published joules per token of chat on H100s, and models fitted to one of two served models."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from steelyard import catalog
from steelyard.cost.efficiency import Efficiencies
from steelyard.cost.power import EnergyModel, PowerCurve, prompt_features, token_features
from steelyard.cost.step_time import FEATURES, ServeStepTime, relative_nnls

Array = NDArray[np.float64]
_RATED_W = 700.0
_PROMPT, _OUTPUT = 200.0, 500.0
"""Lengths of a chat; the leaderboard does not print those of each run. Halving or doubling either
moves the errors by few per cent."""


@dataclass(frozen=True)
class Served:
    """Rows of one model: batch, joules per output token, watts of all accelerators."""

    model: str
    width: int
    batch: Array
    joules: Array
    watts: Array

    @property
    def step_s(self) -> Array:
        """Mean seconds of a step, prompts in between included."""
        return self.batch * self.joules / self.watts


SMALL = Served(
    "llama-3.1-8b",
    1,
    np.array([8.0, 32, 128, 512, 691]),
    np.array([0.455, 0.165, 0.095, 0.070, 0.071]),
    np.array([486.0, 560, 669, 688, 685]),
)
LARGE = Served(
    "llama-3.1-70b",
    4,
    np.array([8.0, 32, 128, 512, 898]),
    np.array([3.76, 1.21, 0.563, 0.421, 0.373]),
    np.array([1765.0, 1794, 2184, 2493, 2548]),
)
"""ML.ENERGY leaderboard v3, chat on H100s (ml.energy/leaderboard)."""


def counter(served: Served) -> EnergyModel:
    """Return a model that counts FLOPs and bytes; it has no times yet."""
    chip = catalog.accelerator("H100-SXM5-80GB")
    return EnergyModel(
        arch=catalog.architecture_by_name(served.model),
        accelerator=chip,
        tensor_parallel=served.width,
        step_time=ServeStepTime(coefficients=(1.0,) * len(FEATURES), relative_spread=0, count=0),
        curve=PowerCurve(
            rated_w=700, idle=0.1, static=0, compute=0, memory=0, top=1, ramp_tokens=1, ramp_power=1
        ),
    )


def step(batch: float) -> Array:
    """Return what a step holds in the steady state: tokens of all, and the prompts that come in."""
    prompts = batch / _OUTPUT
    return token_features(_PROMPT + _OUTPUT / 2, batch) + prompts * prompt_features(_PROMPT) * (
        np.array([name != "steps" for name in FEATURES])
    )


def at_peak_s(served: Served) -> Array:
    """Return the seconds that bytes and FLOPs of each step take at the peaks, [rows, 2]."""
    model = counter(served)
    held = np.array([step(batch) for batch in served.batch.tolist()])
    compute, memory = model.uses(held, np.ones(len(held)))
    return np.column_stack([memory, compute])


def overheads(served: Served) -> Array:
    """Return what could make a step longer than its roofline: layers and sequences, [rows, 2]."""
    layers = catalog.architecture_by_name(served.model).num_layers
    return np.column_stack([np.full(len(served.batch), layers), served.batch])


def roofline_s(served: Served) -> Array:
    """Return the seconds of each step at the shares of the peaks that the package assumes."""
    typical = Efficiencies.typical(counter(served).peak_flops_per_s)
    return at_peak_s(served) @ np.array([1 / typical.memory, 1 / typical.matmul])


def predicted_joules(fitted: Served, other: Served) -> Array:
    """Fit overheads and power to one model and return the joules per token of another, [rows].

    Batch and FLOPs rise together within one model, so rates fitted to it alone would charge the
    other's FLOPs with what each sequence costs the host: those are taken as the package assumes.
    """
    left = np.maximum(fitted.step_s - roofline_s(fitted), 0.0) / fitted.step_s
    extra = nnls(overheads(fitted) / fitted.step_s[:, None], left)[0]
    uses = at_peak_s(fitted) / fitted.step_s[:, None]
    columns = np.column_stack([np.ones(len(uses)), uses])
    shares = relative_nnls(columns, fitted.watts / (_RATED_W * fitted.width))
    seconds = roofline_s(other) + overheads(other) @ extra
    power = np.column_stack([np.ones(len(seconds)), at_peak_s(other) / seconds[:, None]]) @ shares
    return np.minimum(power, 1.0) * _RATED_W * other.width * seconds / other.batch
