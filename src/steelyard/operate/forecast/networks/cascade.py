"""A network that reads all series of a hierarchy at once, level by level, and their joint law."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.nn.attention import Attend, attend_masked
from steelyard.nn.initial.fill import fill
from steelyard.nn.layer import DecoderLayer
from steelyard.operate.forecast.bounds import LEVELS
from steelyard.operate.forecast.networks.config import EncoderConfig
from steelyard.operate.forecast.networks.real_nvp import RealNVP
from steelyard.operate.forecast.networks.tokens import Scaled, recent_quantiles, scale_windows
from steelyard.train.batches import Batch

__all__ = ["CascadeNetwork", "Outlook", "cascade", "joint_loss"]

_MIN_SCALE = 1e-3
_FARTHEST = 30.0
"""Largest scaled value of a target: far beyond it a likelihood says nothing more."""


class Outlook(NamedTuple):
    """What the network says of the next steps, before any of them is seen.

    Attributes:
        center: means of the base law [B, S x M], a step's series side by side.
        scale: its deviations.
        context: what steers the flow [B, C].
        unit: unit of each window, with rows [B x N].
    """

    center: Tensor
    scale: Tensor
    context: Tensor
    unit: Scaled


class CascadeNetwork(nn.Module):
    """Each series' whole window is one token; attention goes from level to level.

    Attributes:
        config: context, horizon, width; its head is "gaussian" or "flow".
        flow: joint map of all steps and series, None with a Gaussian head.
        levels: level of each token, 0 for those of the time, int64 [N + 4].

    Source: Luo et al. 2024 (arXiv 2408.01000): tokens, cascade and flow. Here the norms stand
        before attention and MLP, tokens know which series they are, the time is told by sines of
        day and week, and the flow reads the encoder too.
    """

    levels: Tensor
    forecast: Tensor

    def __init__(self, config: EncoderConfig, levels: list[int], forecast: list[int]) -> None:
        """Lay out and draw the weights.

        Args:
            config: shape and seed.
            levels: level of each series, from 1.
            forecast: places of the M series that are forecast, two or more.
        """
        super().__init__()
        self.config = config
        arch, width = config.architecture, config.hidden_size
        self.register_buffer("levels", torch.tensor([*levels, 0, 0, 0, 0]), persistent=False)
        self.register_buffer("forecast", torch.tensor(forecast), persistent=False)
        self.embed = nn.Linear(config.context_steps, width)
        # Attention cannot tell tokens by their place: what a series is has to be part of it.
        self.identity = nn.Parameter(torch.zeros(len(self.levels), width))
        self.layers = nn.ModuleList(DecoderLayer(arch, index) for index in range(arch.num_layers))
        self.final_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 2 * config.horizon)
        fill(self, arch, torch.Generator().manual_seed(config.seed))
        nn.init.zeros_(self.head.weight)
        self.flow = None
        if config.head == "flow":
            with torch.random.fork_rng():
                torch.manual_seed(config.seed)
                self.flow = RealNVP(config.horizon * len(forecast), width, width)

    def forward(self, past: Tensor, marks: Tensor) -> Outlook:
        """Read windows of the past.

        Args:
            past: values [B, N, T] of all series; NaN before the first one.
            marks: the time as `time_marks` tells it [B, 4, T].

        Returns:
            The base law, what steers the flow, and the windows' units.
        """
        rows = past.flatten(0, 1).double()
        unit = scale_windows(rows, self.config)
        context = self.config.context_steps
        read = unit.values[:, -context:].float().nan_to_num(0.0)
        read = F.pad(read, (context - read.shape[1], 0)).unflatten(0, past.shape[:2])
        time = F.pad(marks.float()[..., -context:], (max(context - marks.shape[-1], 0), 0))
        hidden = self.embed(torch.cat((read, time), 1)) + self.identity
        attend = cascade(self.levels)
        for layer in self.layers:
            hidden = layer(hidden, None, attend)
        hidden = self.final_norm(hidden)[:, self.forecast]
        center, spread = self.head(hidden).transpose(1, 2).float().chunk(2, 1)  # [B, S, M]
        if self.config.anchored:
            median = recent_quantiles(rows, unit)[:, len(LEVELS) // 2]
            center = center + median.unflatten(0, past.shape[:2])[:, None, self.forecast]
        scale = F.softplus(spread) + _MIN_SCALE
        return Outlook(center.flatten(1), scale.flatten(1), hidden.mean(1), unit)

    def log_density(self, outlook: Outlook, target: Tensor) -> Tensor:
        """Return the logarithm of the density of what came.

        Args:
            outlook: what was said.
            target: what came, in the windows' units [B, S x M]; finite.

        Returns:
            Nats [B].
        """
        inner = target.new_zeros(len(target))
        if self.flow is not None:
            target, inner = self.flow.inverse(target, outlook.context)
        law = torch.distributions.Normal(outlook.center, outlook.scale)
        return law.log_prob(target).sum(-1) + inner

    def scaled_target(self, outlook: Outlook, target: Tensor) -> Tensor:
        """Return what came [B, N, S] in the windows' units, [B, S x M] of the series forecast."""
        scaled = outlook.unit.forward(target.flatten(0, 1).double()).float()
        wanted = scaled.unflatten(0, target.shape[:2])[:, self.forecast]
        return wanted.clamp(-_FARTHEST, _FARTHEST).transpose(1, 2).flatten(1)

    def draw(self, outlook: Outlook, noise: Tensor) -> Tensor:
        """Return samples.

        Args:
            outlook: what is said.
            noise: standard normal numbers [K, S x M], the same for each window.

        Returns:
            float64 [B, K, S, M], in the series' own units.
        """
        batch, size = outlook.center.shape
        made = outlook.center[:, None] + outlook.scale[:, None] * noise
        if self.flow is not None:
            context = outlook.context[:, None].expand(-1, len(noise), -1)
            made, _ = self.flow(made.flatten(0, 1), context.flatten(0, 1))
        per_series = made.view(batch, -1, size // len(self.forecast), len(self.forecast))
        kept = (batch, -1, 1)
        center, scale = (
            part.view(kept)[:, self.forecast, 0][:, None, None]
            for part in (outlook.unit.center, outlook.unit.scale)
        )
        unit = Scaled(per_series, center, scale, outlook.unit.is_asinh)
        return unit.inverse(per_series)


def cascade(levels: Tensor) -> Attend:
    """Return attention that goes from level to level.

    Tokens of a level attend to their own level and the one above, with what that found, and never
    to lower ones; tokens of level 0 belong to every level.

    Args:
        levels: level of each token, int64 [N]; all on one level are ordinary attention.

    Returns:
        Attention as `DecoderLayer` asks for it.

    Source: Luo et al. 2024 (arXiv 2408.01000), cascading hierarchical attention. Tokens outside a
        level are masked as keys, where zeros in their place would take a share of the softmax; and
        what the level above found is added to what its tokens are, not put in its place.
    """
    count = int(levels.max())

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        del layer
        parts = [part.transpose(1, 2) for part in (queries, keys, values)]
        total = found = torch.zeros_like(parts[0])
        for level in range(1, count + 1):
            own = (levels == level) | (levels == 0)
            seen = own | (levels == level - 1)
            inside = own[:, None].to(found.dtype)
            # What the level above found is added to what its tokens are.
            mixed = [part + found for part in parts]
            found = attend_masked(*mixed, seen[None, None, None]) * inside
            total = total + found
        return total.transpose(1, 2)

    return attend


def joint_loss(network: nn.Module, batch: Batch) -> Tensor:
    """Return the mean negative log-likelihood of a batch of `JointWindows`, in nats a number."""
    assert isinstance(network, CascadeNetwork) and isinstance(batch, tuple)
    past, marks, target = batch
    outlook = network(past, marks)
    wanted = network.scaled_target(outlook, target)
    return -network.log_density(outlook, wanted).mean() / wanted.shape[1]
