"""Arrays in new files that are mapped: the disk has room for all of them before any is written."""

import errno
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.files import disk_full_told

__all__ = ["new_map", "take_room"]

_CANNOT = (errno.EOPNOTSUPP, errno.EINVAL)


def new_map(path: Path, kind: Any, shape: tuple[int, ...]) -> np.memmap:
    """Make a file of zeros and map it.

    A page of a sparse file for which the disk has no room kills the process that writes it, without
    a word: room is taken first.

    Args:
        path: the file; one that is there is emptied.
        kind: type of the numbers.
        shape: of the array; no length is 0.

    Returns:
        The mapped array.

    Raises:
        CapacityError: the disk is full.
    """
    path.write_bytes(b"")
    take_room(path, math.prod(shape) * np.dtype(kind).itemsize)
    return np.memmap(path, kind, "r+", shape=shape)


def take_room(path: Path, num_bytes: int) -> None:
    """Make a file as long as it will be, and take the room for it on the disk.

    Args:
        path: a file; what is in it stays.
        num_bytes: its length from then on.

    Raises:
        CapacityError: the disk is full.
    """
    with disk_full_told(path), path.open("r+b") as file:
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            except OSError as error:
                # Some file systems take no room ahead.
                if error.errno not in _CANNOT:
                    raise
        file.truncate(num_bytes)
