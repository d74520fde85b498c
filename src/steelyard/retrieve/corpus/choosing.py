"""Which index of vectors a collection of texts needs."""

from typing import NamedTuple

from steelyard.catalog.search_rates import SearchRates, load_search_rates, reference_search_rates
from steelyard.cost.vector_search import IndexShape, stage_seconds
from steelyard.retrieve.datastore.shape import StoreShape
from steelyard.units import pretty

__all__ = ["ChosenShape", "choose_shape"]

_LIMIT_S = 0.005
"""Time that comparing all vectors may take: beside it, words and the reading of passages count."""


class ChosenShape(NamedTuple):
    """An index and the reason for it."""

    shape: StoreShape
    why: str


def choose_shape(passages: float, dim: int, rates: SearchRates | None = None) -> ChosenShape:
    """Choose between comparing all vectors and looking into cells.

    Args:
        passages: passages that are expected.
        dim: numbers in a vector.
        rates: of this machine; those that were calibrated, or the package's, when None.

    Returns:
        The index with words, and why.
    """
    known = rates or load_search_rates() or reference_search_rates()
    count = max(round(passages), 1)
    flat = IndexShape(kind="flat", num_vectors=count, dim=dim)
    flat_s = sum(stage_seconds(flat, 1, known).values())
    told = f"comparing all {count:,} vectors takes {pretty(flat_s, 's')}"
    if flat_s <= _LIMIT_S:
        return ChosenShape(StoreShape(vectors="flat", words=True), f"{told}, and finds them all")
    cells = round(4 * count**0.5)
    nprobe = max(1, cells // 16)
    found = IndexShape(kind="ivf", num_vectors=count, dim=dim, nlist=cells)
    cells_s = sum(stage_seconds(found, nprobe, known).values())
    why = f"{told}, {nprobe:,} of {cells:,} cells {pretty(cells_s, 's')}"
    shape = StoreShape(vectors="ivf", words=True, cells=cells, nprobe=nprobe)
    return ChosenShape(shape, why)
