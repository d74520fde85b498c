"""Attention of one step over the paged cache.

Decoding sequences attend together, prompt chunks one by one: a chunk is a large product by itself,
and padding chunks to one length would cost more than the calls.
"""

from concurrent.futures import Executor

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from steelyard.catalog.architecture import Architecture
from steelyard.nn.attention import attend_masked, attend_tail
from steelyard.serve.running.pool import KVPool
from steelyard.serve.scheduling.step import StepPlan

__all__ = ["StepAttention", "decode_gathered"]


def decode_gathered(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    contexts: Tensor,
    *,
    window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """Attend from one query per sequence to its context, gathered into a padded batch.

    Args:
        query: [S, H, D].
        keys: [S, KV, T, D], of which each sequence attends its first `contexts` tokens.
        values: [S, KV, T, D].
        contexts: int64 [S].
        window: last tokens of a context that are attended; 0 for all.
        softcap: cap of the scores; 0 for none.

    Returns:
        [S, H, D].
    """
    places = torch.arange(keys.shape[2], device=keys.device)
    mask = places < contexts[:, None]
    if window:
        mask &= places >= contexts[:, None] - window
    return attend_masked(query[:, :, None], keys, values, mask[:, None, None], softcap)[:, :, 0]


class _Chunk:
    """Where one prompt chunk stands in the flat batch and in the pool."""

    def __init__(self, start: int, stop: int, context: int, table: Tensor) -> None:
        """Build the causal mask once for all layers.

        Args:
            start: first row in the flat batch.
            stop: row after the last.
            context: tokens to attend for the last row.
            table: blocks of the context.
        """
        self.rows = slice(start, stop)
        self.table = table
        self.context = context
        self.is_whole = context == stop - start
        self.mask: Tensor | None = None
        if not self.is_whole:
            rows = torch.arange(context - (stop - start), context, device=table.device)
            self.mask = torch.arange(context, device=table.device) <= rows[:, None]


class StepAttention:
    """The `attend` of one step: stores new keys and values in the pool and attends to it.

    Instances are made by the runner, one per step, and called once per layer.
    """

    def __init__(
        self,
        plan: StepPlan,
        pool: KVPool,
        arch: Architecture,
        *,
        compiled: bool,
        helpers: Executor | None = None,
    ) -> None:
        """Turn the plan's index arrays into what each layer needs.

        Args:
            plan: the step.
            pool: keys and values.
            arch: says which layers have windows, and the cap of scores.
            compiled: decode with the numba kernel (on the CPU) instead of a gathered batch; keys
                and values in int8 are gathered in any case.
            helpers: threads that share the kernel's rows.
        """
        device = pool.kv.device
        size = pool.kv.shape[4]
        self.pool = pool
        self.arch = arch
        self.helpers = helpers
        self.threads = torch.get_num_threads()
        self.compiled = compiled and not pool.has_scales
        self.blocks = torch.from_numpy(plan.slot_mapping // size).to(device)
        self.offsets = torch.from_numpy(plan.slot_mapping % size).to(device)
        count = self.num_decodes = plan.num_decodes
        self.tables = plan.block_tables[:count]
        self.contexts = plan.context_lengths[:count]
        if count and not self.compiled:
            # Only as many blocks as the longest decoding context has: prompts may have more.
            width = -(-int(self.contexts.max()) // size)
            self.device_tables = torch.from_numpy(np.ascontiguousarray(self.tables[:, :width])).to(
                device
            )
            self.device_contexts = torch.from_numpy(self.contexts).to(device)
        starts = plan.query_starts.tolist()
        self.chunks = [
            self._chunk(plan, row, starts, size) for row in range(count, len(plan.request_ids))
        ]

    def _chunk(self, plan: StepPlan, row: int, starts: list[int], size: int) -> _Chunk:
        """Describe one prompt chunk."""
        context = int(plan.context_lengths[row])
        table = torch.from_numpy(
            np.ascontiguousarray(plan.block_tables[row, : -(-context // size)])
        ).to(self.blocks.device)
        return _Chunk(starts[row], starts[row + 1], context, table)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend in one layer, as `nn.layer.Attend` describes."""
        self.pool.write(layer, self.blocks, self.offsets, key, value)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if self.num_decodes:
            self.decode(layer, query[: self.num_decodes], out)
        window, softcap = self.arch.window_of(layer), self.arch.attention_softcap
        for chunk in self.chunks:
            q = query[chunk.rows].transpose(0, 1)
            if softcap or 0 < window < chunk.context:
                k, v = self.seen(layer, chunk, window, key, value)
                found = attend_tail(q[None], k[None], v[None], window=window, softcap=softcap)
            else:
                k, v = self.seen(layer, chunk, 0, key, value)
                grouped = q.shape[0] != k.shape[0]
                found = F.scaled_dot_product_attention(
                    q[None],
                    k[None],
                    v[None],
                    attn_mask=chunk.mask,
                    is_causal=chunk.mask is None,
                    enable_gqa=grouped,
                )
            out[chunk.rows] = found[0].transpose(0, 1)
        return out

    def seen(
        self, layer: int, chunk: _Chunk, window: int, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return what a chunk attends.

        Args:
            layer: its index.
            chunk: one of `chunks`.
            window: tokens that each token attends; 0 for all.
            key: keys of the whole step, [T, KV, D].
            value: values of the whole step, [T, KV, D].

        Returns:
            Keys and values [KV, S, D] of the chunk's context, of windows from their blocks on.
        """
        if chunk.is_whole and key.dtype == self.pool.kv.dtype:
            # The whole context is in this step: no need to read it back from the pool. Where the
            # pool rounds, each chunk reads what later ones will, however the prompt was cut.
            k, v = (part[chunk.rows].transpose(0, 1) for part in (key, value))
            return k, v
        size = self.pool.kv.shape[4]
        length = chunk.rows.stop - chunk.rows.start
        skipped = max(0, chunk.context - length - window + 1) // size if window else 0
        k, v = self.pool.gather(layer, chunk.table[skipped:], key.dtype)
        end = chunk.context - skipped * size
        return k[:, :end], v[:, :end]

    def decode(self, layer: int, query: Tensor, out: Tensor) -> None:
        """Attend in the decoding rows.

        Args:
            layer: its index.
            query: [S, H, D] of the decoding rows.
            out: [T, H, D], whose first S rows are filled.
        """
        limits = {"window": self.arch.window_of(layer), "softcap": self.arch.attention_softcap}
        if not self.compiled:
            parts = self.pool.gather(layer, self.device_tables, query.dtype)
            found = decode_gathered(query, *parts, self.device_contexts, **limits)
            out[: self.num_decodes] = found
            return
        from steelyard.serve.running.kernels import paged_decode

        rows = out[: self.num_decodes].numpy()
        arrays = query.contiguous().numpy(), *self.pool.arrays(layer), self.tables, self.contexts
        paged_decode(*arrays, rows, **limits, helpers=self.helpers, threads=self.threads)
