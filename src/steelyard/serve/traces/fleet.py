"""Rows of a trace as requests of a simulated fleet, with what their prompts share."""

import zlib
from collections.abc import Iterable

from steelyard.errors import TraceError
from steelyard.serve.traces.record import TraceRow
from steelyard.sim.fleet.jobs import FleetJob

__all__ = ["block_ids", "fleet_jobs"]

_SESSIONS = 1 << 96
"""Ids of blocks of sessions begin here, above all hash ids."""
_LONGEST = 1 << 32
"""Blocks that a session may have."""


def block_ids(row: TraceRow, block_size: int) -> tuple[int, ...]:
    """Return what the full blocks of a row's prompt hold.

    Args:
        row: row with hash ids, or a turn of a session, or with a prompt of its own.
        block_size: token slots per block; it divides the row's `block_tokens`.

    Returns:
        An id for each leading block that others may share; equal ids for equal contents.

    Raises:
        TraceError: blocks are larger than those of the hash ids, or do not divide them.
    """
    full = row.input_tokens // block_size
    if row.hash_ids:
        parts, left = divmod(row.block_tokens, block_size)
        if left or not parts:
            raise TraceError(
                f"hash ids of {row.block_tokens} tokens do not give blocks of {block_size}",
                hint="choose a block size that divides them",
            )
        ids = (name * parts + part for name in row.hash_ids for part in range(parts))
        return tuple(ids)[:full]
    if row.session:
        start = _SESSIONS + zlib.crc32(row.session.encode()) * _LONGEST
        return tuple(range(start, start + full))
    return ()


def fleet_jobs(rows: Iterable[TraceRow], *, block_size: int) -> list[FleetJob]:
    """Return the requests of rows, in their order.

    Args:
        rows: rows by arrival.
        block_size: token slots per block of the replicas.

    Returns:
        One job per row; no tokens are made.

    Raises:
        TraceError: hash ids do not go with the block size.
    """
    return [
        FleetJob(
            arrival_s=row.arrival_s,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            block_ids=block_ids(row, block_size),
            client=row.client,
        )
        for row in rows
    ]
