"""An index of any kind from its file."""

from pathlib import Path

from steelyard.errors import DataError
from steelyard.retrieve.ivf import IVF
from steelyard.retrieve.kinds import IVFPQ, IVFFastScan, IVFFlat
from steelyard.retrieve.storage import read_index

__all__ = ["is_index_file", "open_index"]


def is_index_file(path: Path) -> bool:
    """Whether a file holds an index of vectors."""
    try:
        read_index(path)
    except DataError:
        return False
    return True


def open_index(path: Path) -> IVF:
    """Open an index; its arrays are mapped and checked.

    Args:
        path: file that `save` wrote.

    Returns:
        The index.

    Raises:
        DataError: the file cannot be read, is no index, or is damaged (the section is named).
    """
    kind, settings, rows, learned = read_index(path)
    kinds: dict[str, type[IVF]] = {made.kind: made for made in (IVFFlat, IVFPQ, IVFFastScan)}
    if kind not in kinds:
        raise DataError(f"{path} holds an index of kind {kind!r}", hint=f"known: {list(kinds)}")
    return kinds[kind].restored(settings, rows, learned)
