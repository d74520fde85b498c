"""What all networks share: their windows' loss, their training on the one loop, their forecasts."""

from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from steelyard.laws.forms.schedules import multipliers
from steelyard.operate.forecast.networks.batches import WindowBatches
from steelyard.operate.forecast.networks.config import EncoderConfig
from steelyard.operate.forecast.networks.heads import Head, head_loss, head_quantiles
from steelyard.operate.forecast.networks.tokens import Scaled
from steelyard.operate.series import SeriesSet
from steelyard.train.batches import Batch
from steelyard.train.estimator import Estimator
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.result import EstimatorResult, OnStep

__all__ = [
    "WindowNetwork",
    "ends_together",
    "network_quantiles",
    "pretraining_budget",
    "train_network",
    "window_loss",
]

_BATCH = 256
_FARTHEST = 30.0
"""Largest scaled value of a target: far beyond it a loss says nothing more."""


@runtime_checkable
class WindowNetwork(Protocol):
    """A module that reads windows of the past and answers with a head's outputs."""

    config: EncoderConfig
    head_kind: Head

    def __call__(self, past: Tensor, seasons: Tensor) -> tuple[Tensor, Scaled]:
        """Return outputs [B, horizon, width] in the windows' own unit, and that unit."""
        ...


def window_loss(network: nn.Module, batch: Batch) -> Tensor:
    """Return the mean loss of a batch of `WindowBatches`, over observed steps of the horizon."""
    assert isinstance(batch, tuple) and isinstance(network, WindowNetwork)
    values, seasons = batch
    horizon = network.config.horizon
    outputs, scaled = network(values[:, :-horizon], seasons)
    wanted = scaled.forward(values[:, -horizon:].double()).float()
    came = wanted.isfinite()
    # Holes are filled before the loss: NaN times 0 in the backward pass would stay NaN.
    filled = wanted.nan_to_num(0.0).clamp(-_FARTHEST, _FARTHEST)
    losses = head_loss(network.head_kind, outputs, filled)
    return (losses * came).sum() / came.sum().clamp(min=1)


def pretraining_budget(
    steps: int, *, batch_size: int = 128, learning_rate: float = 2e-3, seed: int = 0
) -> EstimatorConfig:
    """Return how a network is trained on the one training loop.

    Args:
        steps: optimizer steps.
        batch_size: windows a step.
        learning_rate: peak rate.
        seed: seed of the order of windows.

    Returns:
        AdamW with betas (.9, .98) and decay .1 of matrices; a warm-up of 14 % of the steps, then
        the beginning of a cosine that is 5 / 3 as long as the run, and in the run's second half a
        linear fall to 0.

    Source: Woo et al. 2023 (arXiv 2310.05063), appendix B; rate and warm-up are scaled to runs
        that are a hundred times shorter.
    """
    whole = max(round(steps * 5 / 3), 2)
    rise = multipliers.cosine(whole, warmup=whole // 12, final=0.02)[:steps]
    fall = np.minimum((steps - np.arange(steps)) / max(steps - steps // 2, 1), 1.0)
    return EstimatorConfig(
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        schedule=tuple(float(part) for part in rise * fall),
        weight_decay=0.1,
        betas=(0.9, 0.98),
        clip=1.0,
        seed=seed,
        checkpoint_every=max(steps // 20, 50),
    )


def train_network(
    network: nn.Module,
    series: SeriesSet,
    budget: EstimatorConfig,
    directory: Path,
    *,
    on_step: OnStep | None = None,
) -> EstimatorResult:
    """Train on windows of series; a killed call goes on to the same weights bit for bit.

    Args:
        network: a `WindowNetwork`.
        series: what is learned from.
        budget: steps, batch and rate.
        directory: folder of checkpoints.
        on_step: called after each step.

    Returns:
        What the training loop measured; the network is left in evaluation mode.

    Raises:
        TraceError: no series is long enough.
        ConfigError: the folder holds another run.
    """
    assert isinstance(network, WindowNetwork)
    batches = WindowBatches(series, network.config, budget.batch_size, budget.seed)
    result = Estimator(network, window_loss, budget).fit(batches, Path(directory), on_step=on_step)
    network.eval()
    return result


def ends_together(rows: list[np.ndarray]) -> Tensor:
    """Stack values [T] of different lengths so that they end together, NaN before the shorter."""
    past = np.full((len(rows), max(map(len, rows))), np.nan)
    for place, row in enumerate(rows):
        past[place, past.shape[1] - len(row) :] = row
    return torch.from_numpy(past)


@torch.no_grad()
def network_quantiles(
    network: WindowNetwork, rows: list[np.ndarray], horizon: int, seasons: np.ndarray
) -> list[np.ndarray]:
    """Forecast contexts, as `bounds.forecast_all` asks for it.

    Args:
        network: trained.
        rows: values of each context [T].
        horizon: steps ahead; those beyond the network's horizon are like its last.
        seasons: steps of a day of each, int64 [n].

    Returns:
        Quantiles [len(LEVELS), horizon] of each context.
    """
    longest = network.config.history_steps()
    steps = np.minimum(np.arange(horizon), network.config.horizon - 1)
    found: list[np.ndarray] = []
    for first in range(0, len(rows), _BATCH):
        past = ends_together([row[-longest:] for row in rows[first : first + _BATCH]])
        outputs, scaled = network(past, torch.from_numpy(seasons[first : first + _BATCH]))
        levels = head_quantiles(network.head_kind, outputs)
        values = scaled.inverse(levels.flatten(1)).unflatten(1, levels.shape[1:])
        found += list(values.transpose(1, 2)[..., steps].numpy())
    return found
