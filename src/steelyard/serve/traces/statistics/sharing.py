"""What prompts share: the tokens that a prefix cache would hold, of any size, in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit
from steelyard.serve.traces.columns import TraceColumns

__all__ = ["PrefixHits", "PrefixSharing", "prefix_hits", "prefix_sharing"]

_SESSION_BLOCK = 64
"""Tokens of the blocks in which a conversation's prompts are counted."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PrefixHits:
    """Blocks of prompts that were there before.

    Attributes:
        block_tokens: tokens per block.
        depth: int64 [R] leading blocks of each row's prompt that an earlier row had.
        parent: int64 [R] latest earlier row with all of these, -1 for none.
        row: int64 [H] row of each block that was there before.
        tokens: int64 [H] prompt tokens in it.
        distance: int64 [H] distinct blocks used since it was used last, itself counted: a cache of
            so many blocks, which gives up the least recently used, still has it.
        distinct: distinct blocks of all rows.
    """

    block_tokens: int
    depth: NDArray[np.int64]
    parent: NDArray[np.int64]
    row: NDArray[np.int64]
    tokens: NDArray[np.int64]
    distance: NDArray[np.int64]
    distinct: int

    def hit_tokens(self, cache_tokens: float, rows: slice = slice(None)) -> int:
        """Return the prompt tokens of some rows that a cache of a size would have."""
        chosen = np.zeros(len(self.depth), bool)
        chosen[rows] = True
        kept = self.distance * self.block_tokens <= cache_tokens
        return int(self.tokens[kept & chosen[self.row]].sum())


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixSharing:
    """Share of the prompt tokens that a prefix cache would have.

    Attributes:
        unbounded: share with a cache that keeps all.
        bounded: share by the size of a cache in tokens, which gives up the least recently used.
        distinct_tokens: tokens that the unbounded cache holds at the end.
        rows_sharing: share of the rows that share anything.
    """

    unbounded: float
    bounded: dict[int, float]
    distinct_tokens: int
    rows_sharing: float


def prefix_sharing(columns: TraceColumns, cache_tokens: Sequence[int]) -> PrefixSharing | None:
    """Say what a prefix cache would have.

    Args:
        columns: the trace.
        cache_tokens: sizes of caches.

    Returns:
        Shares; None where rows neither have hashes nor belong to conversations, so that nothing is
        known of what they share.

    Source: Mattson et al. 1970 (stack distances: one pass gives the hits of every size).
    """
    hits = prefix_hits(columns)
    if hits is None:
        return None
    total = int(columns.input_tokens.sum())
    return PrefixSharing(
        unbounded=hits.hit_tokens(np.inf) / total,
        bounded={size: hits.hit_tokens(size) / total for size in cache_tokens},
        distinct_tokens=hits.distinct * hits.block_tokens,
        rows_sharing=float((hits.depth > 0).mean()),
    )


def prefix_hits(columns: TraceColumns) -> PrefixHits | None:
    """Find the blocks of each prompt that were there before.

    Args:
        columns: the trace.

    Returns:
        The blocks; None where nothing is known of what prompts share.
    """
    if columns.has_hashes:
        block, blocks, starts = columns.block_tokens, columns.blocks, columns.block_starts
    elif columns.sessions:
        block = _SESSION_BLOCK
        blocks, starts = _session_blocks(columns)
    else:
        return None
    names, ids = np.unique(blocks, return_inverse=True)
    depth, parent, distance = _stack_distances(ids.astype(np.int64), starts, len(names))
    row = np.repeat(np.arange(len(depth)), depth)
    # Place of each block within its prompt: the last may be cut by the prompt's end.
    place = np.arange(len(row)) - np.repeat(np.cumsum(depth) - depth, depth)
    tokens = np.minimum(block, columns.input_tokens[row] - place * block)
    return PrefixHits(
        block_tokens=block,
        depth=depth,
        parent=parent,
        row=row,
        tokens=tokens,
        distance=distance,
        distinct=len(names),
    )


def _session_blocks(columns: TraceColumns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Name the whole blocks of conversations' prompts: each prompt begins with those before."""
    counts = np.where(columns.session >= 0, columns.input_tokens // _SESSION_BLOCK, 0)
    starts = np.concatenate([[0], np.cumsum(counts)])
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
    longest = int(counts.max(initial=0)) + 1
    return np.repeat(columns.session, counts) * longest + place, starts


@njit(cache=True)
def _stack_distances(blocks, starts, num_names):
    """Return leading known blocks, their latest row, and the distance of each known block.

    Blocks of a prompt are used from its end to its beginning, so that the beginning is the last to
    be given up: what a cache has of a prompt is then always a prefix of it.
    """
    rows, size = len(starts) - 1, len(blocks)
    depth, parent = np.zeros(rows, np.int64), np.full(rows, -1, np.int64)
    distance = np.zeros(size, np.int64)
    last, owner = np.zeros(num_names, np.int64), np.full(num_names, -1, np.int64)
    # A tree of partial sums: 1 at each position of use that is its block's latest.
    tree = np.zeros(size + 1, np.int64)
    clock, found, known = 0, 0, 0
    for row in range(rows):
        for place in range(starts[row], starts[row + 1]):
            name = blocks[place]
            if last[name] == 0:
                break
            before, at = 0, last[name] - 1
            while at > 0:
                before += tree[at]
                at -= at & -at
            distance[found] = known - before
            depth[row] += 1
            parent[row] = owner[name]
            found += 1
        for place in range(starts[row + 1] - 1, starts[row] - 1, -1):
            name = blocks[place]
            at = last[name]
            known += at == 0
            while 0 < at <= size:
                tree[at] -= 1
                at += at & -at
            clock += 1
            last[name], owner[name] = clock, row
            at = clock
            while at <= size:
                tree[at] += 1
                at += at & -at
    return depth, parent, distance[:found]
