"""A pack behind an address: bytes come when they are asked for, in few requests."""

import mmap
from typing import Any

import numpy as np

from steelyard.data.pack import Pack

__all__ = ["open_remote_pack"]

_PIECE_BYTES = 1 << 16
"""Least bytes of a request: the directory and small columns come together."""


class _FetchedBytes:
    """Memory as large as a file, of which pieces are filled once they are needed."""

    def __init__(self, source: Any) -> None:
        """Take an open Arrow file; its size is asked for, nothing is read."""
        self._source, self._size = source, int(source.size())
        # Pages that are never written to take no memory, however large the file is.
        self.memory = mmap.mmap(-1, max(self._size, 1))
        self._is_here = np.zeros(-(-self._size // _PIECE_BYTES), bool)

    def fetch(self, first: int, last: int) -> None:
        """Read the pieces of a range that are not there yet, neighbours in one request.

        Args:
            first: first byte.
            last: one past the last.
        """
        begin = max(first, 0) // _PIECE_BYTES
        end = -(-min(last, self._size) // _PIECE_BYTES)
        missing = begin + np.flatnonzero(~self._is_here[begin:end])
        for run in (
            np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1) if len(missing) else ()
        ):
            low = int(run[0]) * _PIECE_BYTES
            high = min((int(run[-1]) + 1) * _PIECE_BYTES, self._size)
            self._source.seek(low)
            got = self._source.read(high - low)
            # A file that became shorter meanwhile fails its checksums.
            self.memory[low : low + len(got)] = got
            self._is_here[run] = True


def open_remote_pack(source: Any, where: str) -> Pack:
    """Open a pack of which only what is used is read.

    Args:
        source: an open Arrow file, which stays open.
        where: what messages call it.

    Returns:
        The pack. What was read stays in memory as long as it does.

    Raises:
        DataError: it is no pack, is cut short, or its directory is damaged.
        OSError: storage does not answer.
    """
    held = _FetchedBytes(source)
    return Pack(memoryview(held.memory)[: source.size()], where, held.fetch)
