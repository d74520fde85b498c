"""Stage 2: what share of the device each piece gets, and who goes first, in a given structure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.plan.overlap.interference import InterferenceTable
from steelyard.plan.overlap.nano import NanoOperation
from steelyard.plan.overlap.running import PieceLinks, anneal, run_pieces

__all__ = ["SharedPieces", "choose_shares"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SharedPieces:
    """Ranks and shares of one layer's pieces.

    Attributes:
        rank: order of preference, [p].
        period: what a layer adds to it.
        shares: share of the device of each, [p].
        speeds: performance of each at its share, [p].
    """

    rank: Array
    period: float
    shares: Array
    speeds: Array

    def run(self, pieces: Sequence[NanoOperation]) -> tuple[Array, Array]:
        """Run some layers.

        Args:
            pieces: pieces of any number of layers, layer by layer, n in all.

        Returns:
            Start and end of each piece in seconds, [n] each.
        """
        links, layers = PieceLinks.of(pieces), len(pieces) // len(self.rank)
        rank = np.tile(self.rank, layers)
        rank += np.repeat(np.arange(layers), len(self.rank)) * self.period
        return run_pieces(
            links.resource,
            links.counts,
            links.edges,
            rank,
            np.tile(self.shares, layers),
            links.alone_s / np.tile(self.speeds, layers),
        )


def choose_shares(
    pieces: Sequence[NanoOperation],
    rank: Sequence[float],
    period: float,
    table: InterferenceTable,
    generator: np.random.Generator,
    *,
    moves: int,
) -> SharedPieces:
    """Choose a share and a rank for each piece so that further layers take little time.

    A piece has the same share in all layers, and its duration is that alone over its performance
    at the share. Shares and ranks are changed at random from those of stage 1 with everything
    alone, and changes to the worse become rarer (simulated annealing).

    Args:
        pieces: pieces of some layers, layer by layer.
        rank: order of one layer's pieces, as start times of stage 1, [p].
        period: seconds of a layer in stage 1.
        table: performance by share.
        generator: source of the changes.
        moves: changes that are tried.

    Returns:
        The best found.

    Raises:
        ConfigError: the table lacks a kind.

    Source: the problem is that of Zhu et al. 2024 (NanoFlow, arXiv 2408.12757), section 4.1.3.
    """
    size = len(rank)
    points = [table.points(item.operation.kind) for item in pieces[:size]]
    widest = max(map(len, points))
    options, speeds = np.ones((size, widest)), np.ones((size, widest))
    for row, at in enumerate(points):
        options[row, : len(at)] = list(at)
        speeds[row, : len(at)] = list(at.values())
    counts = np.array(list(map(len, points)))
    links = PieceLinks.of(pieces)
    _, found_rank, chosen = anneal(
        links.resource,
        links.counts,
        links.edges,
        links.alone_s,
        np.array(rank, dtype=np.float64),
        period,
        options,
        speeds,
        counts,
        counts - 1,
        generator.random((moves, 4)),
    )
    rows = np.arange(size)
    return SharedPieces(
        rank=found_rank,
        period=period,
        shares=options[rows, chosen],
        speeds=speeds[rows, chosen],
    )
