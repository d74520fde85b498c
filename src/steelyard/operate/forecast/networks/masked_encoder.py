"""The masked encoder: context tokens and masked queries in one pass, both ways."""

import torch
from torch import Tensor, nn

from steelyard.nn.attention import attend_masked
from steelyard.nn.initial.fill import fill
from steelyard.nn.layer import DecoderLayer
from steelyard.nn.rotary import rotary_tables, spread
from steelyard.operate.forecast.bounds import LEVELS
from steelyard.operate.forecast.networks.config import EncoderConfig
from steelyard.operate.forecast.networks.heads import Head, head_width
from steelyard.operate.forecast.networks.tokens import (
    Scaled,
    recent_quantiles,
    scale_windows,
    tokens,
)

__all__ = ["MaskedEncoder"]


class MaskedEncoder(nn.Module):
    """Tokens of the past and learned masks for what is to come, read by one bidirectional encoder.

    Attributes:
        config: its shape.
        head_kind: kind of its head.

    Source: Woo et al. 2023 (arXiv 2310.05063), section 5.
    """

    head_kind: Head
    cosines: Tensor
    sines: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        """Lay out and draw the weights; with an anchor the last map begins at 0.

        Args:
            config: shape and seed.
        """
        super().__init__()
        self.config = config
        self.head_kind = config.head
        arch, width = config.architecture, config.hidden_size
        features = 2 * config.patch * (1 + len(config.seasons)) + len(LEVELS) + 1
        self.embed = nn.Linear(features, width)
        self.mask = nn.Parameter(torch.zeros(1, width))
        self.layers = nn.ModuleList(DecoderLayer(arch, index) for index in range(arch.num_layers))
        self.final_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, config.patch * head_width(config.head))
        fill(self, arch, torch.Generator().manual_seed(config.seed))
        if config.anchored:
            nn.init.zeros_(self.head.weight)
        cosines, sines = rotary_tables(arch.max_positions, arch.head_dim, arch.rope_theta)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)

    def forward(self, past: Tensor, seasons: Tensor) -> tuple[Tensor, Scaled]:
        """Read windows of the past.

        Args:
            past: values [B, T], NaN where nothing was observed; each row has an observed value.
            seasons: steps of a day of each, int64 [B].

        Returns:
            Outputs of the head [B, horizon, width] in the windows' own unit, and that unit.
        """
        config = self.config
        scaled = scale_windows(past.double(), config)
        features, seen = tokens(scaled.values.float(), seasons, config)
        anchor = recent_quantiles(past.double(), scaled)
        size = (scaled.scale / (scaled.center.abs() + scaled.scale)).log().float()
        side = torch.cat((anchor, size), 1).unsqueeze(1).expand(-1, features.shape[1], -1)
        hidden = self.embed(torch.cat((features, side), -1))
        queries = config.horizon // config.patch
        hidden = torch.cat((hidden[:, :-queries], hidden[:, -queries:] + self.mask), 1)
        hidden = self._encode(hidden, seen)[:, -queries:]
        outputs = self.head(hidden).unflatten(-1, (config.patch, -1)).flatten(1, 2).float()
        if config.anchored:
            outputs = outputs + self._raised(anchor)
        return outputs, scaled

    def _encode(self, hidden: Tensor, seen: Tensor) -> Tensor:
        """Apply the layers; tokens of which nothing is known are not attended."""
        rotation = spread(self.cosines, self.sines, hidden.dtype)
        mask = seen[:, None, None, :]

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            query, key, value = (part.transpose(1, 2) for part in (queries, keys, values))
            return attend_masked(query, key, value, mask).transpose(1, 2)

        for layer in self.layers:
            hidden = layer(hidden, rotation, attend)
        return self.final_norm(hidden)

    def _raised(self, anchor: Tensor) -> Tensor:
        """Return what the anchor adds to the head's outputs [B, 1, width]."""
        if self.config.head == "quantile":
            return anchor.unsqueeze(1)
        added = anchor.new_zeros(len(anchor), 1, head_width(self.config.head))
        added[..., 0] = anchor[:, len(LEVELS) // 2, None]
        return added
