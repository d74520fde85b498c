"""Arrays with a number for each row: in memory, or in mapped files that may be written back."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.mapped_rows import new_map

__all__ = ["RowRoom", "fill_places"]

_BLOCK = 1 << 18


class RowRoom:
    """Makes arrays that are as long as a table."""

    def __init__(self, folder: Path | None) -> None:
        """Say where arrays lie.

        Args:
            folder: folder for mapped files, which an earlier run may have left; memory when None.
        """
        self._folder = folder

    def array(self, name: str, kind: Any, *shape: int) -> NDArray[Any]:
        """Return an array with any content.

        Args:
            name: name of its file.
            kind: type of its numbers.
            *shape: its shape.

        Returns:
            The array.
        """
        if self._folder is None or not all(shape):
            return np.empty(shape, kind)
        mapped = new_map(self._folder / f"{name}.room", kind, shape)
        # A plain array keeps the file mapped, and its parts are cheaper to cut.
        return np.asarray(mapped)


def fill_places(is_held: NDArray[np.bool_], places: NDArray[np.uint32]) -> None:
    """Write the places that are not held into an array, some at a time.

    Args:
        is_held: flags [N].
        places: as many as there are flags that are not set.
    """
    filled = 0
    for first in range(0, len(is_held), _BLOCK):
        found = np.flatnonzero(~np.asarray(is_held[first : first + _BLOCK]))
        places[filled : filled + len(found)] = found + first
        filled += len(found)
