"""Attention of one step over slabs: one dense batch, masked by original positions."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["SlabAttention"]


class SlabAttention:
    """The `attend` of one step.

    Stores new keys and values in their slots and attends to the request's whole slab.

    A row sees the live slots of its request whose token is not later than its own: cached tokens,
    and those computed in this step.

    Attributes:
        mass: float32 [B, S] attention each slot received in this step, summed over queries,
            averaged over heads and layers; zeros unless it was asked for.
    """

    def __init__(
        self,
        kv: Tensor,
        rows: np.ndarray,
        slots: np.ndarray,
        positions: np.ndarray,
        held: np.ndarray,
        *,
        count_mass: bool = False,
    ) -> None:
        """Build the mask once for all layers.

        Args:
            kv: [L, 2, B, KV, S, D] slabs of all requests.
            rows: int64 [N] request of each row of the flat batch, sorted.
            slots: int64 [N] slot of each row's key and value.
            positions: int64 [N] position of each row's token.
            held: int64 [B, S] position of each slot's token, those of this step included, -1 when
                empty.
            count_mass: add up attention per slot, which costs the fused kernel.
        """
        self.kv = kv
        self.count_mass = count_mass
        device = kv.device
        self.num_active = int(rows.max()) + 1
        counts = np.bincount(rows, minlength=self.num_active)
        ranks = np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
        self.width = int(counts.max())
        self.is_dense = bool((counts == self.width).all())
        self.rows, self.slots, self.ranks = (
            torch.from_numpy(item).to(device) for item in (rows, slots, ranks)
        )
        # A place without a row keeps the highest limit, so that it sees every token: a softmax over
        # nothing would be NaN.
        limits = np.full((self.num_active, self.width), np.iinfo(np.int64).max)
        limits[rows, ranks] = positions
        active = held[: self.num_active]
        visible = (active[:, None] >= 0) & (active[:, None] <= limits[:, :, None])
        self.visible = torch.from_numpy(visible[:, None]).to(device)
        self.mask = torch.zeros(self.visible.shape, dtype=kv.dtype, device=device).masked_fill_(
            ~self.visible, -torch.inf
        )
        self.mass = torch.zeros(held.shape, dtype=torch.float32, device=device)

    def restrict(self, allowed: np.ndarray) -> None:
        """Let every row attend only to some slots.

        Args:
            allowed: bool [B, S].
        """
        hidden = ~torch.from_numpy(allowed[: self.num_active, None, None]).to(self.mask.device)
        self.mask = self.mask.masked_fill(hidden, -torch.inf)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend in one layer, as `nn.layer.Attend` describes."""
        keys, values = self.kv[layer, :, : self.num_active]
        keys[self.rows, :, self.slots] = key.to(keys.dtype)
        values[self.rows, :, self.slots] = value.to(values.dtype)
        q = self._spread(query).transpose(1, 2)
        if self.count_mass:
            out = self._counted(q, keys, values)
        else:
            out = F.scaled_dot_product_attention(
                q, keys, values, attn_mask=self.mask, enable_gqa=q.shape[1] != keys.shape[1]
            )
        out = out.transpose(1, 2)
        return out.reshape(query.shape) if self.is_dense else out[self.rows, self.ranks]

    def _spread(self, query: Tensor) -> Tensor:
        """Lay rows out as [active, width, H, D]."""
        if self.is_dense:
            return query.view(self.num_active, self.width, *query.shape[1:])
        out = query.new_zeros(self.num_active, self.width, *query.shape[1:])
        out[self.rows, self.ranks] = query
        return out

    def _counted(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend with explicit weights and add them up per slot."""
        groups = query.shape[1] // key.shape[1]
        key, value = (item.repeat_interleave(groups, 1) for item in (key, value))
        weights = torch.softmax(
            query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + self.mask, dim=-1
        )
        used = torch.zeros(self.mask.shape[:3], dtype=weights.dtype, device=weights.device)
        used[self.rows, 0, self.ranks] = 1.0
        share = 1.0 / (query.shape[1] * self.kv.shape[0])
        self.mass[: self.num_active] += (
            torch.where(used[..., None] > 0, weights, 0).sum((1, 2)) * share
        )
        # A row of the slab without a request has no token at all and is NaN; nobody reads it.
        return weights.nan_to_num() @ value
