"""Features of a whole table in a file, a row behind the other, mapped and not held in memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.encoder import FeatureEncoder
from steelyard.data.mapped_rows import new_map

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["FeatureStore", "blocks_of", "open_features", "write_features"]

_FEATURES = "features.f32"
_BLOCK_VALUES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class FeatureStore:
    """Features with what is predicted from them.

    Attributes:
        features: float32 [N, D].
        targets: float32 [N]; empty where nothing is predicted.
        is_held: rows that are kept aside [N]; empty where none are.
    """

    features: NDArray[np.float32]
    targets: NDArray[np.float32]
    is_held: NDArray[np.bool_]

    @property
    def rows(self) -> NDArray[np.int64]:
        """Rows that are learned from."""
        if not len(self.is_held):
            return np.arange(len(self.features))
        return np.flatnonzero(~np.asarray(self.is_held))


def blocks_of(features: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """Return features some rows at a time: about four megabytes."""
    step = max(_BLOCK_VALUES // max(features.shape[1], 1), 1)
    for first in range(0, len(features), step):
        yield features[first : first + step]


def write_features(
    folder: Path,
    table: "DataTable",
    encoder: FeatureEncoder,
    rows: int,
    *,
    keep: "Callable[[pa.RecordBatch], NDArray[np.integer]] | None" = None,
    done: Callable[[int], None] = lambda _: None,
) -> NDArray[np.float32]:
    """Write the features of all rows to a file of the folder.

    Args:
        folder: where the file goes.
        table: the table.
        encoder: how its rows become features.
        rows: rows of the table.
        keep: returns the places of a batch that are written; None writes all.
        done: is told how many rows were read.

    Returns:
        The mapped features [N, D].
    """
    path, shape = folder / _FEATURES, (rows, encoder.width)
    if not all(shape):
        return np.empty(shape, np.float32)
    made, first, read = new_map(path, np.float32, shape), 0, 0
    for batch in table.batches:
        found = encoder.encode(batch)
        if keep is not None:
            found = found[keep(batch)]
        made[first : first + len(found)] = found
        first, read = first + len(found), read + len(batch)
        done(read)
    made.flush()
    return open_features(folder, encoder.width, first)


def open_features(folder: Path, width: int, rows: int, name: str = "") -> NDArray[np.float32]:
    """Map features that were written, the first rows of them.

    Args:
        folder: where the file is.
        width: features of a row.
        rows: rows.
        name: another file than that of `write_features`.

    Returns:
        [rows, width].
    """
    return np.memmap(folder / (name or _FEATURES), np.float32, "r", shape=(rows, width))
