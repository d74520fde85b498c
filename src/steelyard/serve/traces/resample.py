"""A trace at another rate, made of whole conversations of its own: fewer, or several at once."""

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.serve.traces.columns import TraceColumns
from steelyard.serve.traces.models.bodies import unit_of
from steelyard.serve.traces.record import TraceRow
from steelyard.serve.traces.statistics.sharing import prefix_hits

__all__ = ["conversation_of", "resample_rate"]

_DAY_S = 86_400.0
_COMMON = 0.01
"""Share of the rows from which on a block belongs to the service, not to a conversation."""
_MOST_SHIFT_S = 600.0


def resample_rate(
    columns: TraceColumns, generator: np.random.Generator, *, rate_per_s: float
) -> list[TraceRow]:
    """Bring a trace to a rate by leaving conversations out, or by laying copies over each other.

    The trace keeps its length and its shape over the day. Copies are shifted by whole days where
    the trace has two and more, else by up to ten minutes and a twentieth of its length; their
    conversations and clients' prompts are their own, but for blocks that a hundredth of all prompts
    begins with.

    Args:
        columns: the trace.
        generator: source of randomness.
        rate_per_s: mean requests per second, above 0.

    Returns:
        Rows by arrival. They come more evenly than the trace's own, as independent senders do.

    Raises:
        ConfigError: the rate is not positive, or the trace has none.
    """
    if not 0 < rate_per_s < np.inf or columns.span_s <= 0:
        raise ConfigError(
            f"cannot bring a trace of {columns.span_s:g} s to {rate_per_s} requests per s",
            hint="give a rate above 0 and a trace whose arrivals span some time",
        )
    factor = rate_per_s * columns.span_s / max(len(columns.client) - 1, 1)
    units = conversation_of(columns)
    made: list[TraceRow] = []
    for copy in range(int(np.ceil(factor))):
        kept = generator.random(int(units.max()) + 1) < factor - copy
        made += _copied(columns, units, kept, copy, generator)
    return sorted(made, key=lambda row: row.arrival_s)


def conversation_of(columns: TraceColumns) -> NDArray[np.int64]:
    """Return a number for each row, [R], the same for rows of one conversation.

    Rows with hashes belong to one where their prompts share more than blocks of the service.
    """
    if not columns.has_hashes:
        return np.unique(unit_of(columns), return_inverse=True)[1].astype(np.int64)
    hits = prefix_hits(columns)
    assert hits is not None
    common = _common_depth(columns)
    units = np.arange(len(columns.client))
    for row in np.flatnonzero(hits.depth > common).tolist():
        units[row] = units[hits.parent[row]]
    return np.unique(units, return_inverse=True)[1].astype(np.int64)


def _is_common(columns: TraceColumns) -> NDArray[np.bool_]:
    """Tell of each block in the trace whether it belongs to the service, [sum of counts]."""
    _, place, counts = np.unique(columns.blocks, return_inverse=True, return_counts=True)
    # Twice at the least: in a short trace one row would be more than the share.
    return counts[place] >= max(_COMMON * len(columns.client), 2)


def _common_depth(columns: TraceColumns) -> NDArray[np.int64]:
    """Return the leading blocks of the service of each prompt, [R]."""
    before = np.concatenate([[0], np.cumsum(_is_common(columns))])
    # A block of the service has only such before it, so their number is the depth.
    return before[columns.block_starts[1:]] - before[columns.block_starts[:-1]]


def _copied(
    columns: TraceColumns,
    units: NDArray[np.int64],
    kept: NDArray[np.bool_],
    copy: int,
    generator: np.random.Generator,
) -> list[TraceRow]:
    """Return the rows of the units that are kept, as another copy of the trace."""
    shift_s = _shift_s(columns, copy, generator)
    starts = np.full(len(kept), np.inf)
    np.minimum.at(starts, units, columns.arrival_s)
    # Whole conversations go round the end, so that no turn comes before an earlier one.
    begin = (starts + shift_s) % columns.span_s if copy else starts
    times = begin[units] + columns.arrival_s - starts[units]
    chosen = kept[units] & (times <= columns.span_s)
    free = ~_is_common(columns) if copy and columns.has_hashes else np.zeros(0, bool)
    step = copy * (int(columns.blocks.max(initial=0)) + 1)
    blocks = (columns.blocks + step * free if copy and len(free) else columns.blocks).tolist()
    edges = columns.block_starts.tolist()
    names = [*columns.sessions, ""]
    ending = f"+{copy}" if copy else ""
    return [
        TraceRow(
            arrival_s=float(times[row]),
            input_tokens=int(columns.input_tokens[row]),
            output_tokens=int(columns.output_tokens[row]),
            client=columns.clients[columns.client[row]],
            session=f"{name}{ending}" if (name := names[columns.session[row]]) else "",
            think_s=float(columns.think_s[row]),
            hash_ids=tuple(blocks[edges[row] : edges[row + 1]]),
            block_tokens=columns.block_tokens,
        )
        for row in np.flatnonzero(chosen).tolist()
    ]


def _shift_s(columns: TraceColumns, copy: int, generator: np.random.Generator) -> float:
    """Return how far a copy is moved."""
    days = int(columns.span_s // _DAY_S)
    if not copy:
        return 0.0
    if days >= 2 and copy % days:
        return copy % days * _DAY_S
    return float(generator.uniform(0.0, min(_MOST_SHIFT_S, columns.span_s / 20)))
