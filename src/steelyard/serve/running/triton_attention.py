"""Attention over the block table on a GPU: one kernel for decoding sequences and prompt chunks.

This module needs Triton, which comes with PyTorch's CUDA builds; it is imported only for models on
a GPU. With `TRITON_INTERPRET=1` in the environment the kernel runs on the CPU, slowly, for tests.
"""

from __future__ import annotations

import numpy as np
import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from steelyard.errors import ConfigError

__all__ = ["QueryTiles", "num_splits", "paged_attention", "query_tiles"]

_TILE_ROWS = 16
_TILE_TOKENS = 64


class QueryTiles:
    """Which rows of the flat batch each program of the kernel takes, all of one sequence.

    Attributes:
        sequence: int32 [P] row of the block table.
        first: int32 [P] first row in the flat batch.
        count: int32 [P] rows, at most the tile's.
        position: int32 [P] position of the first row in its sequence.
    """

    def __init__(self, columns: np.ndarray, device: torch.device) -> None:
        """Move int32 [4, P] columns to the device in one copy."""
        self.sequence, self.first, self.count, self.position = torch.from_numpy(
            np.ascontiguousarray(columns, dtype=np.int32)
        ).to(device)


def query_tiles(
    query_lengths: np.ndarray,
    context_lengths: np.ndarray,
    group: int,
    device: torch.device,
    *,
    first_row: int = 0,
) -> QueryTiles:
    """Cut sequences into tiles of rows that share a program.

    Args:
        query_lengths: int64 [S] rows of each sequence in this step.
        context_lengths: int64 [S] tokens in the pool after this step.
        group: query heads per key head.
        device: device of the kernel.
        first_row: where the first sequence begins in the flat batch.

    Returns:
        The tiles, sequence by sequence.
    """
    # A tile's lines are rows times the heads of a group, which read the same keys.
    rows = max(_TILE_ROWS // group, 1)
    tiles = -(-query_lengths // rows)
    sequence = np.repeat(np.arange(len(query_lengths)), tiles)
    offset = (np.arange(len(sequence)) - np.repeat(np.cumsum(tiles) - tiles, tiles)) * rows
    starts = first_row + np.cumsum(query_lengths) - query_lengths
    count = np.minimum(query_lengths[sequence] - offset, rows)
    position = (context_lengths - query_lengths)[sequence] + offset
    return QueryTiles(np.stack([sequence, starts[sequence] + offset, count, position]), device)


def num_splits(num_tiles: int, num_kv_heads: int, longest_context: int, num_processors: int) -> int:
    """Choose into how many pieces contexts are cut, so that few sequences still fill the device.

    Args:
        num_tiles: query tiles.
        num_kv_heads: key heads.
        longest_context: tokens.
        num_processors: streaming multiprocessors.

    Returns:
        A power of two in [1, 32]; a piece keeps at least 256 tokens.

    Source: split over the context as in flash decoding (Dao et al. 2023, "Flash-Decoding for
    long-context inference").
    """
    # Twice the processors, so that no processor idles while another finishes its last piece.
    wanted = 2 * num_processors // max(num_tiles * num_kv_heads, 1)
    allowed = longest_context // 256
    return 1 << max(min(wanted, allowed, 32).bit_length() - 1, 0)


def paged_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    tiles: QueryTiles,
    out: Tensor,
    *,
    splits: int = 1,
) -> None:
    """Attend from every row of the tiles to its sequence, causally, through the block table.

    Args:
        query: [T, H, D], not yet scaled.
        keys: [num_blocks, block_size, KV, D] of any strides with contiguous D; D a power of two, 16
            to 256.
        values: tensor of the same shape and strides.
        tables: int32 or int64 [S, M] block ids.
        tiles: tiles that `query_tiles` returned.
        out: [T, H, D], rows of the tiles are overwritten.
        splits: pieces each context is cut into.

    Raises:
        ConfigError: D is not a power of two in [16, 256].

    Source: Kwon et al. 2023 (arXiv 2309.06180), section 4.1; running softmax of Milakov and
        Gimelshein 2018 (arXiv 1805.02867).
    """
    num_heads, width = query.shape[1:]
    _, block_size, num_kv, _ = keys.shape
    if width & (width - 1) or not 16 <= width <= 256:
        raise ConfigError(
            f"head_dim is {width}, but the GPU kernel takes powers of two in [16, 256]",
            hint="use compiled=False",
        )
    group = num_heads // num_kv
    count = len(tiles.sequence)
    rows = max(_TILE_ROWS // group, 1) * group
    # Tensor cores multiply at least 16 rows, and Triton's ranges are powers of two.
    tile = max(16, 1 << (rows - 1).bit_length())
    lines = (count, num_kv, splits, tile)
    partial = torch.empty((*lines, width), dtype=torch.float32, device=query.device)
    sums = torch.empty((*lines, 2), dtype=torch.float32, device=query.device)
    shape = {"group": group, "num_kv": num_kv, "width": width, "tile": tile, "splits": splits}
    tensors = (query, keys, values, tables)
    places = (tiles.sequence, tiles.first, tiles.count, tiles.position)
    strides = (*query.stride()[:2], *keys.stride()[:3], tables.stride(0))
    _attend[(count, num_kv, splits)](  # pyright: ignore[reportIndexIssue]
        *tensors,
        *places,
        partial,
        sums,
        width**-0.5,
        *strides,
        block_size=block_size,
        tokens=_TILE_TOKENS,
        **shape,
    )
    _combine[(count, num_kv)](  # pyright: ignore[reportIndexIssue]
        partial,
        sums,
        tiles.first,
        tiles.count,
        out,
        *out.stride()[:2],
        **shape,
    )


@triton.jit
def _attend(
    query,
    keys,
    values,
    tables,
    tile_sequence,
    tile_first,
    tile_count,
    tile_position,
    partial,
    sums,
    scale,
    query_row,
    query_head,
    key_block,
    key_slot,
    key_head,
    table_row,
    group: tl.constexpr,
    num_kv: tl.constexpr,
    block_size: tl.constexpr,
    width: tl.constexpr,
    tile: tl.constexpr,
    tokens: tl.constexpr,
    splits: tl.constexpr,
):
    """Attend from one tile and key head to one piece of the context.

    Numerators, peaks and denominators stay in float32 for `_combine`.
    """
    index = tl.program_id(0)
    head = tl.program_id(1)
    piece = tl.program_id(2)
    sequence = tl.load(tile_sequence + index).to(tl.int64)
    first = tl.load(tile_first + index).to(tl.int64)
    count = tl.load(tile_count + index)
    position = tl.load(tile_position + index)
    line = tl.arange(0, tile)
    row = line // group
    member = line % group
    column = tl.arange(0, width)
    used = row < count
    places = (
        query
        + (first + row)[:, None] * query_row
        + (head * group + member)[:, None] * query_head
        + column[None, :]
    )
    q = tl.load(places, mask=used[:, None], other=0.0)
    limit = position + row
    context = position + count
    length = (context + splits - 1) // splits
    start = piece * length
    stop = tl.minimum(start + length, context)
    # Finite stand-ins for minus infinity: a line that sees nothing must not make NaN.
    peak = tl.full((tile,), -1.0e30, tl.float32)
    weight = tl.zeros((tile,), tl.float32)
    total = tl.zeros((tile, width), tl.float32)
    for base in range(start, stop, tokens):
        token = base + tl.arange(0, tokens)
        there = token < stop
        block = tl.load(
            tables + sequence * table_row + token // block_size, mask=there, other=0
        ).to(tl.int64)
        place = block * key_block + (token % block_size) * key_slot + head * key_head
        k = tl.load(keys + place[None, :] + column[:, None], mask=there[None, :], other=0.0).to(
            q.dtype
        )
        # "ieee": the default would round float32 inputs to 10 bits of fraction.
        score = tl.dot(q, k, input_precision="ieee") * scale
        seen = there[None, :] & (token[None, :] <= limit[:, None]) & used[:, None]
        score = tl.where(seen, score, -1.0e30)
        higher = tl.maximum(peak, tl.max(score, 1))
        # Masked twice: where all of a line is hidden, its peak is the stand-in and exp gives 1.
        share = tl.where(seen, tl.exp(score - higher[:, None]), 0.0)
        shrink = tl.exp(peak - higher)
        weight = weight * shrink + tl.sum(share, 1)
        v = tl.load(values + place[:, None] + column[None, :], mask=there[:, None], other=0.0).to(
            q.dtype
        )
        total = total * shrink[:, None] + tl.dot(share.to(v.dtype), v, input_precision="ieee")
        peak = higher
    lines = ((index.to(tl.int64) * num_kv + head) * splits + piece) * tile + line
    tl.store(partial + lines[:, None] * width + column[None, :], total)
    tl.store(sums + lines * 2, peak)
    tl.store(sums + lines * 2 + 1, weight)


@triton.jit
def _combine(
    partial,
    sums,
    tile_first,
    tile_count,
    out,
    out_row,
    out_head,
    group: tl.constexpr,
    num_kv: tl.constexpr,
    width: tl.constexpr,
    tile: tl.constexpr,
    splits: tl.constexpr,
):
    """Join the pieces of one tile and key head, and write its rows."""
    index = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(tile_first + index).to(tl.int64)
    count = tl.load(tile_count + index)
    line = tl.arange(0, tile)
    column = tl.arange(0, width)
    peak = tl.full((tile,), -1.0e30, tl.float32)
    weight = tl.zeros((tile,), tl.float32)
    total = tl.zeros((tile, width), tl.float32)
    for piece in range(splits):
        lines = ((index.to(tl.int64) * num_kv + head) * splits + piece) * tile + line
        high = tl.load(sums + lines * 2)
        part = tl.load(sums + lines * 2 + 1)
        values = tl.load(partial + lines[:, None] * width + column[None, :])
        higher = tl.maximum(peak, high)
        mine = tl.exp(peak - higher)
        theirs = tl.exp(high - higher)
        weight = weight * mine + part * theirs
        total = total * mine[:, None] + values * theirs[:, None]
        peak = higher
    row = line // group
    used = row < count
    places = (
        out
        + (first + row)[:, None] * out_row
        + (head * group + line % group)[:, None] * out_head
        + column[None, :]
    )
    answer = total / tl.where(weight > 0, weight, 1.0)[:, None]
    tl.store(places, answer.to(out.dtype.element_ty), mask=used[:, None])
