"""Small networks that are trained on a user's own series: a linear map and a recurrent one."""

import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.operate.forecast.bounds import LEVELS, forecast_all
from steelyard.operate.forecast.networks.config import EncoderConfig
from steelyard.operate.forecast.networks.heads import Head
from steelyard.operate.forecast.networks.tokens import Scaled, recent_quantiles, scale_windows
from steelyard.operate.forecast.networks.training import (
    network_quantiles,
    pretraining_budget,
    train_network,
)
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet

__all__ = ["DLinearForecaster", "GRUForecaster"]

_AVERAGED = 25
"""Steps of the moving average that splits trend and remainder, as in the paper."""


class DLinear(nn.Module):
    """Trend and remainder of the context, each through one linear map to all steps ahead.

    Attributes:
        config: context and horizon.
        head_kind: "quantile".

    Source: Zeng et al. 2023 (arXiv 2205.13504), section 4; here the maps answer with quantiles,
        added to those of the last values.
    """

    head_kind: Head = "quantile"

    def __init__(self, config: EncoderConfig) -> None:
        """Lay out both maps; they begin at 0, so that an untrained one says recent quantiles.

        Args:
            config: context, horizon and scaling.
        """
        super().__init__()
        self.config = config
        outputs = config.horizon * len(LEVELS)
        self.trend = nn.Linear(config.context_steps, outputs)
        self.remainder = nn.Linear(config.context_steps, outputs)
        for part in (self.trend, self.remainder):
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)

    def forward(self, past: Tensor, seasons: Tensor) -> tuple[Tensor, Scaled]:
        """Return quantiles [B, horizon, K] in the windows' own unit, and that unit."""
        context, anchor, scaled = _context(past, self.config)
        half = _AVERAGED // 2
        # Zeros beyond the ends would bend the trend just where the forecast begins.
        padded = F.pad(context.unsqueeze(1), (half, half), mode="replicate")
        trend = F.avg_pool1d(padded, _AVERAGED, stride=1).squeeze(1)
        made = self.trend(trend) + self.remainder(context - trend)
        return made.unflatten(1, (self.config.horizon, -1)) + anchor.unsqueeze(1), scaled


class RecurrentQuantiles(nn.Module):
    """A GRU reads the context, and one map answers with the quantiles of all steps.

    Attributes:
        config: context, horizon and width.
        head_kind: "quantile".

    Source: Wen et al. 2017 (arXiv 1711.11053), section 3, with one map as decoder.
    """

    head_kind: Head = "quantile"

    def __init__(self, config: EncoderConfig) -> None:
        """Lay out the weights.

        Args:
            config: context, horizon, width and seed.
        """
        super().__init__()
        self.config = config
        # A GRU draws from torch's own generator, whose state belongs to the caller.
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.reader = nn.GRU(1, config.hidden_size, batch_first=True)
        self.answer = nn.Linear(config.hidden_size, config.horizon * len(LEVELS))
        nn.init.zeros_(self.answer.weight)
        nn.init.zeros_(self.answer.bias)

    def forward(self, past: Tensor, seasons: Tensor) -> tuple[Tensor, Scaled]:
        """Return quantiles [B, horizon, K] in the windows' own unit, and that unit."""
        context, anchor, scaled = _context(past, self.config)
        _, last = self.reader(context.unsqueeze(-1))
        made = self.answer(last[-1]).unflatten(1, (self.config.horizon, -1))
        return made + anchor.unsqueeze(1), scaled


def _context(past: Tensor, config: EncoderConfig) -> tuple[Tensor, Tensor, Scaled]:
    """Return the scaled context [B, C] without holes, its recent quantiles, and its unit."""
    past = past.double()
    scaled = scale_windows(past, config)
    # 0 is the centre of the windows' unit: what a hole says when nothing tells holes from values.
    context = scaled.values[:, -config.context_steps :].float().nan_to_num(0.0)
    context = F.pad(context, (config.context_steps - context.shape[1], 0))
    return context, recent_quantiles(past, scaled), scaled


class _OwnForecaster:
    """A network that `fit` trains on series of one's own, and that knows nothing before."""

    def __init__(self, network: DLinear | RecurrentQuantiles, name: str, steps: int) -> None:
        self.name = name
        self.network = network
        self._steps = steps

    def fit(self, series: SeriesSet) -> None:
        """Train on series, as `Forecaster.fit` says."""
        budget = pretraining_budget(self._steps, batch_size=64, learning_rate=1e-3)
        # A folder for this call alone: that of another fit would be gone on with.
        with tempfile.TemporaryDirectory() as folder:
            train_network(self.network, series, budget, Path(folder))

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does."""
        self.network.eval()
        return forecast_all(context, horizon, self.name, partial(network_quantiles, self.network))


class DLinearForecaster(_OwnForecaster):
    """Forecasts with `DLinear`, trained by `fit` on a user's own series."""

    def __init__(self, *, context_steps: int = 192, horizon: int = 48, steps: int = 300) -> None:
        """Set its size.

        Args:
            context_steps: last steps that are read, at least 24.
            horizon: steps forecast at once.
            steps: optimizer steps of `fit`.
        """
        config = _shape(context_steps, horizon, 32)
        super().__init__(DLinear(config), "DLinear", steps)


class GRUForecaster(_OwnForecaster):
    """Forecasts with a small GRU, trained by `fit` on a user's own series."""

    def __init__(self, *, context_steps: int = 96, horizon: int = 48, steps: int = 200) -> None:
        """Set its size.

        Args:
            context_steps: last steps that are read, at least 24.
            horizon: steps forecast at once.
            steps: optimizer steps of `fit`.
        """
        config = _shape(context_steps, horizon, 32)
        super().__init__(RecurrentQuantiles(config), "GRU", steps)


def _shape(context_steps: int, horizon: int, width: int) -> EncoderConfig:
    """Return the context, horizon and width of a network that reads no lags."""
    return EncoderConfig(
        context_steps=context_steps, horizon=horizon, patch=1, seasons=(), hidden_size=width
    )
