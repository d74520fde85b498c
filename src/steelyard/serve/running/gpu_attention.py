"""Attention of one step on a GPU.

Keys and values are stored in the pool, then one kernel reads them through the block table.
"""

import importlib.util

import numpy as np
import torch
from torch import Tensor

from steelyard.serve.running.pool import KVPool
from steelyard.serve.scheduling.step import StepPlan

__all__ = ["GPUStepAttention", "gpu_kernel_fits"]

_PROCESSORS_INTERPRETED = 8


def gpu_kernel_fits(pool: KVPool) -> bool:
    """Whether the Triton kernel can serve a pool.

    It can where the pool lies on a GPU, Triton is installed, and heads are 16 to 256 wide by powers
    of two.

    Args:
        pool: keys and values.

    Returns:
        Whether it can.
    """
    width = pool.kv.shape[-1]
    powers = 16 <= width <= 256 and width & (width - 1) == 0
    whole = pool.kv.is_cuda and not pool.has_scales
    return whole and powers and importlib.util.find_spec("triton") is not None


class GPUStepAttention:
    """The `attend` of one step on a GPU; made once per step and called once per layer.

    Decoding sequences share one launch, in which long contexts are cut into pieces when sequences
    are few; prompt chunks share another.
    """

    def __init__(self, plan: StepPlan, pool: KVPool, group: int) -> None:
        """Move the plan's index arrays to the device.

        Args:
            plan: the step.
            pool: keys and values.
            group: query heads per key head.
        """
        from steelyard.serve.running.triton_attention import num_splits, query_tiles

        device = pool.kv.device
        size = pool.kv.shape[4]
        count = plan.num_decodes
        self.pool = pool
        # Every copy to the device is a round trip, so arrays travel together.
        slots = torch.from_numpy(
            np.stack([plan.slot_mapping // size, plan.slot_mapping % size])
        ).to(device)
        self.blocks, self.offsets = slots[0], slots[1]
        self.tables = torch.from_numpy(np.ascontiguousarray(plan.block_tables, dtype=np.int32)).to(
            device
        )
        processors = (
            torch.cuda.get_device_properties(device).multi_processor_count
            if device.type == "cuda"
            else _PROCESSORS_INTERPRETED
        )
        # Decoding rows are few and prompt tiles many, so each launch has its own number of splits.
        self.launches = []
        for first, stop in ((0, count), (count, len(plan.request_ids))):
            queries, contexts = plan.query_lengths[first:stop], plan.context_lengths[first:stop]
            if len(queries):
                tiles = query_tiles(
                    queries,
                    contexts,
                    group,
                    device,
                    first_row=int(plan.query_lengths[:first].sum()),
                )
                splits = num_splits(
                    len(tiles.sequence), pool.kv.shape[3], int(contexts.max()), processors
                )
                self.launches.append((self.tables[first:stop], tiles, splits))

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend in one layer, as `nn.layer.Attend` describes."""
        from steelyard.serve.running.triton_attention import paged_attention

        self.pool.write(layer, self.blocks, self.offsets, key, value)
        keys, values = self.pool.kv[layer].transpose(2, 3)
        query = query.contiguous()
        out = torch.empty_like(query)
        for tables, tiles, splits in self.launches:
            paged_attention(query, keys, values, tables, tiles, out, splits=splits)
        return out
