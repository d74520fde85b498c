"""Parts of prepared rows in memory: some to learn from, and all that are kept aside."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.store import FeatureStore
from steelyard.data.learning.codes import CodeStore
from steelyard.data.learning.measuring import part_of
from steelyard.data.learning.preparing import PreparedRows

__all__ = ["RowParts", "sampled"]


class RowParts:
    """Places of rows that are learned from, that choose, and that measure.

    Attributes:
        learn: places in a drawn order: the first of them are a sample.
        choose: half of the rows kept aside, at most 50,000: they end rounds and rank learners.
        measure: the other half, at most 50,000: nothing is chosen by them.
    """

    def __init__(self, is_held: NDArray[np.bool_], seed: int, most: int = 50_000) -> None:
        """Part rows.

        Args:
            is_held: rows that are kept aside [N].
            seed: seed of the order.
            most: rows that choose and that measure at most, each.
        """
        flags = np.asarray(is_held)
        rng = np.random.default_rng(seed)
        held = rng.permutation(np.flatnonzero(flags))
        self.learn = rng.permutation(np.flatnonzero(~flags))
        self.choose = np.sort(held[::2][:most])
        self.measure = np.sort(held[1::2][:most])


def sampled(rows: PreparedRows, parts: RowParts, count: int) -> PreparedRows:
    """Return a part of rows in memory.

    Args:
        rows: all of them.
        parts: their places.
        count: rows that are learned from.

    Returns:
        These, and the rows that choose, which are kept aside.
    """
    learn = np.sort(parts.learn[:count])
    places = np.concatenate([learn, parts.choose])
    is_held = np.arange(len(places)) >= len(learn)
    own = part_of(rows.store, places)
    given = {"targets": np.asarray(rows.store.targets[places]), "is_held": is_held}
    if isinstance(rows.store, CodeStore):
        return replace(rows, store=CodeStore(codes=own, **given))
    return replace(rows, store=FeatureStore(features=own, **given))
