"""Finished parts of a job in a folder, each a pack: a run that was killed goes on after them."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.data.pack import Pack, write_pack
from steelyard.data.stages import hash_of
from steelyard.errors import DataError

__all__ = ["PackJournal", "array_key"]


def array_key(arrays: Sequence[np.ndarray], settings: Sequence[Any]) -> str:
    """Return the hash of arrays and of settings that JSON can hold."""
    hashes = [hashlib.sha256(array.tobytes()).hexdigest() for array in arrays]
    return hash_of(hashes, list(settings))


@dataclass(frozen=True, slots=True)
class PackJournal:
    """Parts of one job.

    Attributes:
        folder: where they lie.
        key: hash of everything they depend on; parts of another job do not count.
    """

    folder: Path
    key: str

    def path(self, name: str) -> Path:
        """Return the file of a part."""
        return self.folder / f"{self.key[:16]}-{name}.pack"

    def kept(self, name: str, work: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Return a part, doing its work only where it is not there or damaged.

        Args:
            name: name of the part, made of letters and digits.
            work: returns arrays by name.

        Returns:
            The arrays.
        """
        path = self.path(name)
        if path.is_file():
            try:
                return Pack.open(path).sections()
            except DataError:
                path.unlink(missing_ok=True)
        made = work()
        write_pack(path, made)
        return made

    def clear(self) -> None:
        """Remove all parts, those of other runs that were never finished too."""
        for path in self.folder.glob("*.pack"):
            path.unlink(missing_ok=True)
