"""The folder in a lake that remembers what was done to its tables."""

from contextlib import suppress
from pathlib import Path

from steelyard.data.lake.tables import look_at_table
from steelyard.errors import DataError
from steelyard.files import is_inside

__all__ = ["FOLDER", "LakeFolder", "is_as"]

FOLDER = ".steelyard"
"""Folder in the lake that holds the manifests, the recipes, and what was deleted."""


class LakeFolder:
    """That folder.

    Attributes:
        root: folder of the lake.
        folder: where manifests, recipes and the trash are.
    """

    def __init__(self, root: Path) -> None:
        """Take a lake."""
        # Plans hold whole paths, whatever folder one stands in.
        self.root = root.absolute()
        self.folder = self.root / FOLDER

    def inside(self, relative: str) -> Path:
        """Return a path below the lake.

        Args:
            relative: a path of a manifest.

        Returns:
            The whole path.

        Raises:
            DataError: it leads out of the lake.
        """
        if not is_inside(self.root, relative):
            raise DataError(f"{relative!r} of {self.folder} leads out of the lake")
        return (self.root / relative).resolve()


def is_as(prints: tuple[tuple[str, str], ...]) -> bool:
    """Return whether files are there and have these fingerprints."""
    with suppress(DataError, OSError):
        return look_at_table("", Path(), [path for path, _ in prints]).prints == prints
    return False
