"""Attention of one step over the paged cache: decoding sequences together, prompts one by one."""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from steelyard.serve.scheduling.step import StepPlan

__all__ = ["StepAttention", "decode_gathered"]


def decode_gathered(query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, contexts: Tensor, block_size: int) -> Tensor:
    """Attend from one query per sequence to its context, gathered into a padded batch.

    Args:
        query: [S, H, D].
        keys: [slots, KV, D].
        values: [slots, KV, D].
        tables: int64 [S, M].
        contexts: int64 [S].
        block_size: slots per block.

    Returns:
        [S, H, D].
    """
    offsets = torch.arange(block_size, device=tables.device)
    slots = (tables[:, :, None] * block_size + offsets).flatten(1)
    mask = torch.arange(slots.shape[1], device=tables.device) < contexts[:, None]
    gathered_k, gathered_v = keys[slots].transpose(1, 2), values[slots].transpose(1, 2)
    out = F.scaled_dot_product_attention(query[:, :, None], gathered_k, gathered_v, attn_mask=mask[:, None, None], enable_gqa=True)
    return out[:, :, 0]


class _Chunk:
    """Where one prompt chunk stands in the flat batch and in the pool."""

    def __init__(self, start: int, stop: int, context: int, slots: Tensor | None) -> None:
        """Build the causal mask once for all layers.

        Args:
            start: first row in the flat batch.
            stop: row after the last.
            context: tokens to attend for the last row.
            slots: pool slots of the context, or None when the chunk is the whole context.
        """
        self.rows = slice(start, stop)
        self.slots = slots
        self.mask: Tensor | None = None
        if slots is not None:
            rows = torch.arange(context - (stop - start), context, device=slots.device)
            self.mask = torch.arange(context, device=slots.device) <= rows[:, None]


class StepAttention:
    """The `attend` of one step: stores new keys and values in the pool and attends to it.

    Instances are made by the runner, one per step, and called once per layer.
    """

    def __init__(
        self, plan: StepPlan, keys: list[Tensor], values: list[Tensor], block_size: int, *, compiled: bool, helpers: Executor | None = None
    ) -> None:
        """Turn the plan's index arrays into what each layer needs.

        Args:
            plan: the step.
            keys: per layer [slots, KV, D].
            values: per layer [slots, KV, D].
            block_size: slots per block.
            compiled: decode with the numba kernel (float32 on the CPU) instead of a gathered batch.
            helpers: threads that share the kernel's rows.
        """
        device = keys[0].device
        self.helpers, self.threads = helpers, torch.get_num_threads()
        self.keys, self.values, self.block_size, self.compiled = keys, values, block_size, compiled
        self.slots = torch.from_numpy(plan.slot_mapping).to(device)
        count = self.num_decodes = plan.num_decodes
        self.tables = plan.block_tables[:count]
        self.contexts = plan.context_lengths[:count]
        if count and not compiled:
            width = -(-int(self.contexts.max()) // block_size)
            self.device_tables = torch.from_numpy(np.ascontiguousarray(self.tables[:, :width])).to(device)
            self.device_contexts = torch.from_numpy(self.contexts).to(device)
        starts = plan.query_starts.tolist()
        self.chunks = [self._chunk(plan, row, starts, device) for row in range(count, len(plan.request_ids))]

    def _chunk(self, plan: StepPlan, row: int, starts: list[int], device: torch.device) -> _Chunk:
        """Describe one prompt chunk."""
        context = int(plan.context_lengths[row])
        slots = None
        if context > starts[row + 1] - starts[row]:
            table = plan.block_tables[row, : -(-context // self.block_size)]
            flat = (table[:, None] * self.block_size + np.arange(self.block_size)).reshape(-1)[:context]
            slots = torch.from_numpy(flat).to(device)
        return _Chunk(starts[row], starts[row + 1], context, slots)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend in one layer.

        Args:
            layer: its index.
            query: [T, H, D].
            key: [T, KV, D].
            value: [T, KV, D].

        Returns:
            [T, H, D].
        """
        keys, values = self.keys[layer], self.values[layer]
        keys.index_copy_(0, self.slots, key)
        values.index_copy_(0, self.slots, value)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if self.num_decodes:
            self._decode(query[: self.num_decodes], keys, values, out)
        for chunk in self.chunks:
            k = key[chunk.rows] if chunk.slots is None else keys[chunk.slots]
            v = value[chunk.rows] if chunk.slots is None else values[chunk.slots]
            q, k, v = (part.transpose(0, 1)[None] for part in (query[chunk.rows], k, v))
            grouped = q.shape[1] != k.shape[1]
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=chunk.mask, is_causal=chunk.mask is None, enable_gqa=grouped)
            out[chunk.rows] = attended[0].transpose(0, 1)
        return out

    def _decode(self, query: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        """Fill the decoding rows of `out`."""
        if not self.compiled:
            out[: self.num_decodes] = decode_gathered(query, keys, values, self.device_tables, self.device_contexts, self.block_size)
            return
        from steelyard.serve.running.kernels import paged_decode

        rows = out[: self.num_decodes].numpy()
        arrays = query.contiguous().numpy(), keys.numpy(), values.numpy(), self.tables, self.contexts
        paged_decode(*arrays, self.block_size, rows, helpers=self.helpers, threads=self.threads)
