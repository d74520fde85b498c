"""Places of what a verb will write, looked at before its work."""

import os
from pathlib import Path

from steelyard.errors import DataError

__all__ = ["require_place"]


def require_place(path: Path, what: str = "a file") -> None:
    """Refuse a place where nothing can be made, before the long work that would end there.

    Args:
        path: the file or folder that will be made or replaced; missing folders above it are made.
        what: "a file" or "a folder".

    Raises:
        DataError: the other of both stands there, or the folder it would lie in cannot be written.
    """
    is_folder = what == "a folder"
    if path.exists() and path.is_dir() != is_folder:
        raise DataError(
            f"{path} is {'a file' if is_folder else 'a folder'}", hint=f"name {what} to make"
        )
    above = path.absolute().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK):
        reason = "may not be written to" if above.is_dir() else "is no folder"
        raise DataError(
            f"cannot write {path}: {above} {reason}", hint="choose a folder that you may write to"
        )
