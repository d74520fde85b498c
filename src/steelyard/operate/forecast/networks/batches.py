"""Batches of windows to pretrain on: a pure function of their index."""

import numpy as np
import torch
from torch import Tensor

from steelyard.operate.forecast.networks.config import EncoderConfig
from steelyard.operate.series import SeriesSet, WindowSampler

__all__ = ["WindowBatches"]

_SHORTENED = 0.2


class WindowBatches:
    """Random windows: the past with its lags, and the horizon behind it.

    One window in five has its past cut off at a random place, so that a short history is nothing
    new to the model.
    """

    def __init__(self, series: SeriesSet, config: EncoderConfig, size: int, seed: int) -> None:
        """Say what is drawn.

        Args:
            series: the corpus.
            config: context, lags and horizon.
            size: windows a batch.
            seed: seed of the draws.

        Raises:
            TraceError: no series is long enough.
        """
        length = config.history_steps() + config.horizon
        shortest = config.horizon + config.context_steps // 4
        self._sampler = WindowSampler(series, length, shortest=shortest, seed=seed)
        self._seasons = np.array([series.season(row) for row in range(len(series))])
        self._config, self._size, self._seed = config, size, seed

    def batch(self, index: int, /) -> tuple[Tensor, Tensor]:
        """Return values [B, T + horizon] and steps of a day, int64 [B], of batch `index`."""
        values, rows = self._sampler.batch(index, self._size)
        rng = np.random.default_rng((self._seed, index, 1))
        horizon, context = self._config.horizon, self._config.context_steps
        cut = rng.uniform(size=self._size) < _SHORTENED
        kept = np.where(cut, 10 ** rng.uniform(0.3, np.log10(2 * context), self._size), 1e9)
        age = np.arange(values.shape[1] - 1, -1, -1) - horizon
        values = np.where(age[None] >= kept[:, None], np.nan, values)
        # A past in which nothing was observed has no scale; such a window is learned as constant 0.
        blind = ~np.isfinite(values[:, :-horizon]).any(1)
        values[blind] = 0.0
        return torch.from_numpy(values.astype(np.float32)), torch.from_numpy(self._seasons[rows])
