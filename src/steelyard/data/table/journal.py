"""Finished parts of a fold in a folder, from which a run that was killed goes on."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from steelyard.data.pack import Pack, write_pack
from steelyard.data.stages import hash_of
from steelyard.data.table.foldable import FoldableTable
from steelyard.data.table.sources import stamp_of
from steelyard.errors import ConfigError, DataError

__all__ = ["FoldJournal"]


class FoldJournal:
    """One pack a part; it counts for the same files, parts, columns and folds alone."""

    def __init__(self, folder: Path, table: FoldableTable, names: Sequence[str]) -> None:
        """Open the folder.

        Args:
            folder: made when the first part is kept.
            table: what is folded.
            names: names of the folds.

        Raises:
            ConfigError: the table has steps.
        """
        if table.steps:
            raise ConfigError(
                "a journal cannot tell whether steps are the same as before",
                hint="leave the journal out, or write the table with its steps first",
            )
        self._key = hash_of(
            [[item.path, stamp_of(item.path)] for item in table.files],
            [[part.path, part.first, part.last] for part in table.partitions],
            str(table.schema),
            str(table.limits),
            list(names),
        )
        self._folder = folder

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._key[:16]}-{number:06d}.pack"

    def read(self, number: int) -> dict[str, np.ndarray] | None:
        """Return a finished part, None where it is not there or damaged."""
        path = self._path(number)
        if not path.is_file():
            return None
        try:
            return Pack.open(path).sections()
        except DataError:
            return None

    def write(self, number: int, sections: Mapping[str, np.ndarray]) -> None:
        """Keep a finished part."""
        write_pack(self._path(number), sections)

    def clear(self) -> None:
        """Remove all parts, those of other runs that were never finished too."""
        for path in self._folder.glob("*.pack"):
            path.unlink(missing_ok=True)
