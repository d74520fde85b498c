"""Sink keys that move along with the window, for caches that count positions within themselves."""

import torch
from torch import Tensor

from steelyard.errors import ConfigError
from steelyard.nn.rotary import rotate, spread
from steelyard.nn.transformer import Transformer
from steelyard.serve.sparse.policies import Sinks
from steelyard.serve.sparse.slots import SlotTable

__all__ = ["SinkKeys"]


class SinkKeys:
    """Keeps the sinks' keys as first computed, and turns copies to right before the window.

    Only distances count with rotary positions, so numbering tokens by their place in the cache is
    the same as moving the sinks.

    Source: Xiao et al. 2024 (arXiv 2309.17453), section 3.2 (positions within the cache).
    """

    def __init__(self, model: Transformer, policy: Sinks, kv: Tensor) -> None:
        """Start with no sink seen.

        Args:
            model: a decoder with rotary positions.
            policy: names the sinks.
            kv: [L, 2, B, KV, S, D] slabs; keys of sinks are overwritten there.

        Raises:
            ConfigError: the model's positions are learned.
        """
        if model.position_embedding is not None:
            raise ConfigError(
                "sinks can be renumbered with rotary positions only", hint="renumber=False"
            )
        self._model = model
        self._policy = policy
        self._kv = kv
        self._raw: dict[int, Tensor] = {}

    def turn(self, table: SlotTable) -> None:
        """Move the sinks of every request whose window has left the start.

        Args:
            table: after the step's tokens got their slots.
        """
        count = self._policy.num_sinks
        for row, shift in enumerate((table.lengths - 1 - self._policy.capacity).tolist()):
            if shift <= 0 or not count:
                self._raw.pop(row, None)
                continue
            # Turned from the first keys each time: errors of repeated turns would add up.
            if row not in self._raw:
                self._raw[row] = self._kv[:, 0, row, :, :count].clone()
            angles = torch.tensor([shift], device=self._kv.device)
            rotation = spread(
                self._model.rotary_cosines[angles], self._model.rotary_sines[angles], self._kv.dtype
            )
            self._kv[:, 0, row, :, :count] = rotate(self._raw[row], *rotation)
