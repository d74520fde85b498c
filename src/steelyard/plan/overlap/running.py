"""Pieces in virtual time: one at a time on each resource, together while their shares sum to 1."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit
from steelyard.plan.overlap.nano import NanoOperation

__all__ = ["PieceLinks", "anneal", "run_pieces"]

Array = NDArray[np.float64]
Places = NDArray[np.int64]
_FULL = 1 + 1e-9


@dataclass(frozen=True)
class PieceLinks:
    """What a run needs to know of n pieces.

    Attributes:
        resource: number of the resource of each, [n].
        counts: where the predecessors of each piece begin, [n + 1].
        edges: places of the predecessors, [edges].
        alone_s: seconds of each alone, [n].
    """

    resource: Places
    counts: Places
    edges: Places
    alone_s: Array

    @classmethod
    def of(cls, pieces: Sequence[NanoOperation]) -> "PieceLinks":
        """Collect them.

        Args:
            pieces: n pieces.

        Returns:
            The links; resources are numbered in the order of their first use.
        """
        names = list(dict.fromkeys(item.operation.resource for item in pieces))
        return cls(
            resource=np.array([names.index(item.operation.resource) for item in pieces]),
            counts=np.cumsum([0, *(len(item.after) for item in pieces)]).astype(np.int64),
            edges=np.array([one for item in pieces for one in item.after], dtype=np.int64),
            alone_s=np.array([item.alone_s for item in pieces]),
        )


@njit()
def run_pieces(
    resource: Places, counts: Places, edges: Places, rank: Array, shares: Array, seconds: Array
) -> tuple[Array, Array]:
    """Run pieces, whenever something ends those first that are ready and have the lowest rank.

    Args:
        resource: number of the resource of each piece, [n].
        counts: where the predecessors of each piece begin, [n + 1].
        edges: places of the predecessors, [edges]; each before the piece itself.
        rank: order of preference, [n].
        shares: share of the device of each, above 0 and at most 1, [n].
        seconds: duration of each at its share, [n].

    Returns:
        Start and end of each piece in seconds, [n] each.
    """
    count = len(resource)
    start, end = np.full(count, np.inf), np.full(count, np.inf)
    running = np.full(resource.max() + 1, -1, dtype=np.int64)
    chosen = np.full(resource.max() + 1, -1, dtype=np.int64)
    now_s = used = 0.0
    low = 0
    while True:
        while low < count and start[low] < np.inf:
            low += 1
        chosen[:] = -1
        for place in range(low, min(count, low + _WINDOW)):
            row = resource[place]
            if start[place] < np.inf or running[row] >= 0:
                continue
            if chosen[row] >= 0 and rank[chosen[row]] <= rank[place]:
                continue
            ready = True
            for edge in range(counts[place], counts[place + 1]):
                ready = ready and end[edges[edge]] <= now_s
            if ready:
                chosen[row] = place
        for _ in range(len(chosen)):
            best = -1
            for row in range(len(chosen)):
                if chosen[row] >= 0 and (best < 0 or rank[chosen[row]] < rank[chosen[best]]):
                    best = row
            if best < 0:
                break
            place = chosen[best]
            chosen[best] = -1
            if used + shares[place] <= _FULL:
                start[place], end[place] = now_s, now_s + seconds[place]
                running[best] = place
                used += shares[place]
        next_s = np.inf
        for row in range(len(running)):
            if running[row] >= 0:
                next_s = min(next_s, end[running[row]])
        if next_s == np.inf:
            return start, end
        now_s = next_s
        for row in range(len(running)):
            if running[row] >= 0 and end[running[row]] <= now_s:
                used -= shares[running[row]]
                running[row] = -1


_WINDOW = 400
"""Pieces beyond the first unstarted one that are looked at: several layers, so none is missed."""


@njit()
def anneal(
    resource: Places,
    counts: Places,
    edges: Places,
    alone_s: Array,
    rank: Array,
    period: float,
    options: Array,
    speeds: Array,
    num_options: Places,
    chosen: Places,
    draws: Array,
) -> tuple[float, Array, Places]:
    """Change shares and ranks of a layer's pieces at random, less and less often to the worse.

    Args:
        resource: number of the resource of each piece, [layers * p].
        counts: where the predecessors of each piece begin, [layers * p + 1].
        edges: places of the predecessors.
        alone_s: seconds of each alone, [layers * p].
        rank: rank within a layer, [p].
        period: what a layer adds to the rank.
        options: shares that each piece may have, [p, options].
        speeds: its performance at each, [p, options].
        num_options: how many each has, [p].
        chosen: option that each begins with, [p].
        draws: numbers in [0, 1), [moves, 4].

    Returns:
        Seconds from the first layer's end to the last one's (to the end where there is one layer);
        rank [p] and options [p] that reach it.
    """
    size, total = len(rank), len(resource)
    every_rank, shares, seconds = np.empty(total), np.empty(total), np.empty(total)
    now_rank, now = rank.copy(), chosen.copy()
    best_rank, best = rank.copy(), chosen.copy()
    now_s = best_s = np.inf
    for move in range(-1, len(draws)):
        tried_rank, tried = now_rank.copy(), now.copy()
        if move >= 0:
            kind, one = draws[move, 0], int(draws[move, 1] * size)
            other = int(draws[move, 2] * size)
            if kind < 0.7:
                tried[one] = int(draws[move, 2] * num_options[one])
            elif kind < 0.85:
                tried_rank[one], tried_rank[other] = now_rank[other], now_rank[one]
            else:
                # Two at once: what one gives up the other may take.
                tried[one] = int(draws[move, 3] * num_options[one])
                left = 1.0 - options[one, tried[one]] + 1e-9
                place = 0
                for option in range(num_options[other]):
                    if options[other, option] <= left:
                        place = option
                tried[other] = place
        for place in range(total):
            own = place % size
            every_rank[place] = tried_rank[own] + place // size * period
            shares[place] = options[own, tried[own]]
            seconds[place] = alone_s[place] / speeds[own, tried[own]]
        ends = run_pieces(resource, counts, edges, every_rank, shares, seconds)[1]
        # What further layers add: the first one's start and the last one's end come once.
        end_s = (ends.max() - ends[:size].max()) if total > size else ends.max()
        heat = 0.02 * (1 - move / len(draws)) ** 2
        if move < 0 or end_s <= now_s or draws[move, 3] < np.exp((1 - end_s / now_s) / heat):
            now_s, now_rank, now = end_s, tried_rank, tried
        if now_s < best_s:
            best_s, best_rank, best = now_s, now_rank, now
    return best_s, best_rank, best
