"""Catching up: a node finds by hashes what it lacks of a range, and reads just that."""

import asyncio
from collections.abc import AsyncGenerator

import numpy as np

from steelyard.data.shardstore.digests import DEPTH, bucket_of, differing, digest_tree
from steelyard.data.shardstore.messages import Hashes, Pull, RowBatch, TreeLevel
from steelyard.data.shardstore.rows import Rows, rows_from_bytes
from steelyard.data.shardstore.table import RowTable
from steelyard.data.shardstore.wire import Peer

__all__ = ["answer_hashes", "answer_pull", "buckets_to_pull", "pulls"]

_STEPS = (3, 2)
"""Levels walked at a time: the root, then its 64 nodes, then their buckets; three exchanges."""
_PULL_BYTES = 256 << 10


def answer_hashes(table: RowTable, ask: TreeLevel) -> Hashes:
    """Return the hashes of a level of this node's tree over a range."""
    slots = table.select(ask.first, ask.last)
    tree = digest_tree(table.keys[slots], table.versions[slots])
    nodes = np.frombuffer(ask.nodes, np.int64)
    return Hashes(values=tree[ask.level][nodes].tobytes())


def answer_pull(table: RowTable, ask: Pull) -> tuple[Rows, list[int]]:
    """Return the rows of some buckets, and the numbers of those whose value is damaged here."""
    slots = table.select(ask.first, ask.last)
    wanted = np.zeros(4**DEPTH, bool)
    wanted[np.frombuffer(ask.buckets, np.int64)] = True
    return table.take(slots[wanted[bucket_of(table.keys[slots])]])


async def buckets_to_pull(table: RowTable, peer: Peer, first: int, last: int) -> np.ndarray:
    """Return the buckets of a range in which a peer's keys or versions are other ones, int64."""
    slots = table.select(first, last)
    if not len(slots):
        return np.arange(4**DEPTH)
    tree = digest_tree(table.keys[slots], table.versions[slots])
    level, nodes = 0, np.zeros(1, np.int64)
    for step in (*_STEPS, 0):
        ask = TreeLevel(first=first, last=last, level=level, nodes=nodes.tobytes())
        theirs = np.frombuffer((await peer.ask(ask)).values, np.uint64)
        nodes = differing(tree[level], theirs, nodes, step)
        level += step
        if not len(nodes):
            break
    return nodes


async def pulls(
    peer: Peer, first: int, last: int, buckets: np.ndarray, row_bytes: int
) -> AsyncGenerator[Rows]:
    """Read buckets of a peer, a few at a time, so that others pass in between.

    The next ones are on their way while those before are kept: neither link nor disk waits for the
    other.

    Args:
        peer: the node to read.
        first: lowest key.
        last: highest key.
        buckets: int64.
        row_bytes: bytes of a row, for how many buckets to ask at once.

    Yields:
        Rows.
    """
    start, width = 0, 16

    def ask() -> asyncio.Task[RowBatch]:
        part = buckets[start : start + width]
        message = Pull(first=first, last=last, buckets=part.tobytes())
        return asyncio.create_task(peer.ask(message, 30.0))

    asked = ask() if len(buckets) else None
    try:
        while asked is not None:
            rows = rows_from_bytes((await asked).rows)
            count = min(width, len(buckets) - start)
            start += count
            # As many buckets as gave the wished bytes last time; at most twice as many as then.
            size = max(len(rows), 1) * (row_bytes + 20) / count
            width = max(1, min(2 * width, int(_PULL_BYTES / size)))
            asked = ask() if start < len(buckets) else None
            yield rows
    finally:
        if asked is not None:
            asked.cancel()
