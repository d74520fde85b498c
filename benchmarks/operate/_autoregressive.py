"""A decoder that forecasts step by step: the masked encoder's rival of equal size.

Same tokens, layers and Student-T head; attention is causal, each token knows the value before its
step, and a forecast is a hundred sampled paths, as in DeepAR (Salinas et al. 2020) and the
autoregressive variant of Woo et al. 2023 (arXiv 2310.05063), section 5.1. Keys and values are kept
from step to step, and paths of one window share those of its context.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from steelyard.nn.attention import causal_attention
from steelyard.nn.initial.fill import fill
from steelyard.nn.layer import DecoderLayer
from steelyard.nn.rotary import rotary_tables, spread
from steelyard.operate.forecast import SampleForecast
from steelyard.operate.forecast.bounds import LEVELS, forecast_all
from steelyard.operate.forecast.networks import EncoderConfig
from steelyard.operate.forecast.networks.heads import head_loss, head_width
from steelyard.operate.forecast.networks.tokens import recent_quantiles, scale_windows, tokens
from steelyard.operate.forecast.networks.training import ends_together
from steelyard.operate.series import SeriesSet
from steelyard.train.batches import Batch

__all__ = ["DecoderForecaster", "StepDecoder", "decoder_loss"]

_PATHS = 100
_BATCH = 32
_FARTHEST = 30.0
"""Largest scaled value of a target, as for the masked encoder."""


class StepDecoder(nn.Module):
    """Tokens of the past and of the steps forecast so far, each read after those before it."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        """Lay out and draw the weights.

        Args:
            config: shape and seed; tokens are of one step, and the head is a Student-T.
        """
        super().__init__()
        assert config.patch == 1 and config.head == "student-t" and not config.anchored
        self.config = config
        arch, width = config.architecture, config.hidden_size
        features = 2 * (1 + len(config.seasons)) + len(LEVELS) + 1
        self.embed = nn.Linear(features, width)
        self.layers = nn.ModuleList(DecoderLayer(arch, index) for index in range(arch.num_layers))
        self.final_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, head_width("student-t"))
        fill(self, arch, torch.Generator().manual_seed(config.seed))
        cosines, sines = rotary_tables(arch.max_positions, arch.head_dim, arch.rope_theta)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)

    def inputs(self, past: Tensor, ahead: Tensor, seasons: Tensor):
        """Return features [B, context + H - 1, F] of the steps read, and the windows' unit.

        Args:
            past: values [B, T].
            ahead: values of the horizon [B, H], NaN where they are not known yet.
            seasons: steps of a day [B].
        """
        unit = scale_windows(past.double(), self.config)
        features, _ = tokens(unit.values.float(), seasons, self.config)
        count = 1 + len(self.config.seasons)
        came = unit.forward(ahead.double()).float().clamp(-_FARTHEST, _FARTHEST)
        own = features[..., 0].clone(), features[..., count].clone()
        first = self.config.context_steps
        own[0][:, first:], own[1][:, first:] = came.nan_to_num(0.0), came.isfinite().float()
        # A token has the value of one step and the lags of the next, which it says something of.
        later = features[:, 1:].clone()
        later[..., 0], later[..., count] = own[0][:, :-1], own[1][:, :-1]
        anchor = recent_quantiles(past.double(), unit)
        size = (unit.scale / (unit.center.abs() + unit.scale)).log().float()
        side = torch.cat((anchor, size), 1).unsqueeze(1).expand(-1, later.shape[1], -1)
        return torch.cat((later, side), -1), unit

    def forward(self, past: Tensor, ahead: Tensor, seasons: Tensor):
        """Return outputs [B, H, 3] of each step ahead, the true ones before it known; the unit."""
        read, unit = self.inputs(past, ahead, seasons)
        hidden = self.embed(read)
        rotation = spread(
            self.cosines[: hidden.shape[1]], self.sines[: hidden.shape[1]], torch.float32
        )
        for layer in self.layers:
            hidden = layer(hidden, rotation, causal_attention)
        return self.head(self.final_norm(hidden[:, self.config.context_steps - 1 :])), unit

    @torch.no_grad()
    def paths(self, past: Tensor, seasons: Tensor, horizon: int, generator: torch.Generator):
        """Return sampled paths [B, 100, horizon] in the windows' unit, and that unit."""
        blank = past.new_full((len(past), self.config.horizon), torch.nan)
        read, unit = self.inputs(past, blank, seasons)
        first, count = self.config.context_steps, 1 + len(self.config.seasons)
        caches = [_Cache() for _ in self.layers]
        outputs = self._advance(read[:, :first], 0, caches)[:, -1:].expand(-1, _PATHS, -1)
        made = []
        for step in range(horizon):
            value = _drawn(outputs, generator)
            made.append(value)
            if step + 1 < horizon:
                token = read[:, first + step, None].repeat(1, _PATHS, 1)
                token[..., 0], token[..., count] = value, 1.0
                outputs = self._advance(token, first + step, caches)
        return torch.stack(made, -1), unit

    def _advance(self, read: Tensor, position: int, caches: "list[_Cache]") -> Tensor:
        """Read the context [B, T, F], or one more step of all paths [B, 100, F] of one position."""
        steps = slice(0, read.shape[1]) if position == 0 else slice(position, position + 1)
        rotation = spread(self.cosines[steps], self.sines[steps], torch.float32)
        hidden = self.embed(read)
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden = layer(hidden, rotation, cache.attend)
        return self.head(self.final_norm(hidden))


class _Cache:
    """Keys and values of one layer: of the context once a window, of the paths step by step."""

    def __init__(self) -> None:
        self._context: tuple[Tensor, Tensor] | None = None
        self._own: tuple[Tensor, Tensor] | None = None

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend causally; the first call is of the context [B, T, H, D], later ones of paths."""
        if self._context is None:
            self._context = keys.transpose(1, 2), values.transpose(1, 2)  # [B, H, T, D]
            return causal_attention(layer, queries, keys, values)
        new = keys.unsqueeze(3), values.unsqueeze(3)  # [B, P, H, 1, D]
        old = self._own
        self._own = (
            new if old is None else (torch.cat((old[0], new[0]), 3), torch.cat((old[1], new[1]), 3))
        )
        shared_keys, shared_values = self._context
        query = queries.transpose(1, 2) * queries.shape[-1] ** -0.5  # [B, H, P, D]
        own_keys, own_values = self._own
        shared = query @ shared_keys.transpose(-2, -1)  # [B, H, P, T]
        own = (own_keys @ query.transpose(1, 2).unsqueeze(-1)).squeeze(-1).transpose(1, 2)
        shares = torch.cat((shared, own), -1).softmax(-1)
        length = shared.shape[-1]
        found = shares[..., :length] @ shared_values
        rest = shares[..., length:].transpose(1, 2).unsqueeze(-2) @ own_values  # [B, P, H, 1, D]
        return found.transpose(1, 2) + rest.squeeze(-2)


def _drawn(outputs: Tensor, generator: torch.Generator) -> Tensor:
    """Draw from Student-T laws [..., 3]: a normal over the root of a scaled chi-square."""
    center = outputs[..., 0]
    scale = nn.functional.softplus(outputs[..., 1]) + 1e-3
    freedom = 2 + nn.functional.softplus(outputs[..., 2])
    normal = torch.randn(center.shape, generator=generator)
    chi = 2 * torch._standard_gamma(freedom / 2, generator=generator)  # pyright: ignore[reportPrivateImportUsage]
    drawn = center + scale * normal * (freedom / chi).sqrt()
    # A path that left every scale would be all that the next steps read.
    return drawn.clamp(-_FARTHEST, _FARTHEST)


def decoder_loss(network: nn.Module, batch: Batch) -> Tensor:
    """Return the mean negative log-likelihood over observed steps of the horizon."""
    assert isinstance(batch, tuple) and isinstance(network, StepDecoder)
    values, seasons = batch
    horizon = network.config.horizon
    ahead = values[:, -horizon:]
    outputs, unit = network(values[:, :-horizon], ahead, seasons)
    wanted = unit.forward(ahead.double()).float()
    came = wanted.isfinite()
    filled = wanted.nan_to_num(0.0).clamp(-_FARTHEST, _FARTHEST)
    losses = head_loss("student-t", outputs, filled)
    return (losses * came).sum() / came.sum().clamp(min=1)


class DecoderForecaster:
    """Forecasts with a `StepDecoder`, which is trained elsewhere."""

    def __init__(self, network: StepDecoder, seed: int = 0) -> None:
        """Set the network and the seed of its paths."""
        self.name = "StepDecoder"
        self.network = network
        self._seed = seed

    def fit(self, series: SeriesSet) -> None:
        """Learn nothing."""

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does."""
        return forecast_all(context, horizon, self.name, partial(self._quantiles))

    def _quantiles(
        self, rows: list[np.ndarray], horizon: int, seasons: np.ndarray
    ) -> list[np.ndarray]:
        """Return quantiles of sampled paths."""
        generator = torch.Generator().manual_seed(self._seed)
        longest = self.network.config.history_steps()
        found: list[np.ndarray] = []
        for first in range(0, len(rows), _BATCH):
            past = ends_together([row[-longest:] for row in rows[first : first + _BATCH]])
            days = torch.from_numpy(seasons[first : first + _BATCH])
            paths, unit = self.network.paths(past, days, horizon, generator)
            values = unit.inverse(paths.flatten(1)).unflatten(1, paths.shape[1:]).numpy()
            found += list(np.quantile(values, LEVELS, axis=1).swapaxes(0, 1))
        return found
