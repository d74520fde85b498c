"""How many cells vectors need for a recall, measured on a sample of them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError
from steelyard.retrieve.kinds import IVFFlat
from steelyard.retrieve.tuning import tune

__all__ = ["SampledCells", "measure_cells"]

_SAMPLE, _LEAST, _QUERY_EVERY, _K = 20_000, 1000, 50, 10


@dataclass(frozen=True, kw_only=True)
class SampledCells:
    """Cells that a sample needed.

    Attributes:
        vectors: vectors in the index.
        nlist: its cells.
        recall: share of the ten nearest that was asked for.
        nprobe: cells to look into for it.
    """

    vectors: int
    nlist: int
    recall: float
    nprobe: int


def measure_cells(
    rows: NDArray[np.generic], recall: float, *, cells_per_root: float = 1.0
) -> SampledCells:
    """Build an index of cells of up to 20,000 vectors, and find how many of them a recall needs.

    Args:
        rows: vectors [N, D], 1,000 or more; every fiftieth is a query.
        recall: share of the ten nearest; .99 is the most that is looked for.
        cells_per_root: cells over the root of the vectors.

    Returns:
        What was found.

    Raises:
        DataError: fewer vectors.
    """
    if len(rows) < _LEAST:
        raise DataError(f"{len(rows):,} vectors to measure on", hint=f"give {_LEAST:,} or more")
    places = np.random.default_rng(0).permutation(len(rows))[:_SAMPLE]
    drawn = np.asarray(rows[np.sort(places)], np.float32)
    queries = drawn[::_QUERY_EVERY]
    held = np.delete(drawn, slice(None, None, _QUERY_EVERY), axis=0)
    exact = IVFFlat(drawn.shape[1])
    exact.add(held)
    index = IVFFlat(drawn.shape[1], nlist=round(cells_per_root * len(held) ** 0.5))
    index.train(held)
    index.add(held)
    wanted = min(recall, 0.99)
    tuned = tune(index, queries, exact.search(queries, _K).ids, recall=wanted)
    return SampledCells(vectors=len(held), nlist=index.nlist, recall=wanted, nprobe=tuned.nprobe)
