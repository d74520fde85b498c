"""Stores of a second tier's blocks: memory, or a file that bypasses the page cache if it can."""

import mmap
import os
import threading
import weakref
from pathlib import Path
from typing import Protocol

import numpy as np

from steelyard.errors import CapacityError, ConfigError

__all__ = ["BlockStore", "FileStore", "MemoryStore"]

_PAGE_BYTES = 4096
_STAGE_BYTES = 8 * 2**20


class BlockStore(Protocol):
    """Blocks of P pieces of B bytes each; safe to use from several threads on different blocks."""

    num_blocks: int

    def put(self, block: int, piece: int, source: np.ndarray) -> int:
        """Store pieces of consecutive blocks.

        Args:
            block: the first.
            piece: the first of each block.
            source: uint8 [n, p, B], any strides; either one block, or all pieces of n blocks.

        Returns:
            Copies or calls to the system it took.

        Raises:
            OSError: the device failed.
        """
        ...

    def get(self, block: int, piece: int, target: np.ndarray) -> int:
        """Read what `put` stored into `target`; shapes, result and errors as there."""
        ...

    def close(self) -> None:
        """Free memory and files."""


class MemoryStore:
    """Blocks in a second arena of memory.

    A run of blocks moves in one strided copy, which does not hold the interpreter lock.

    Attributes:
        num_blocks: blocks.
    """

    def __init__(self, num_blocks: int, num_pieces: int, piece_bytes: int) -> None:
        """Set the memory aside.

        Args:
            num_blocks: blocks.
            num_pieces: pieces of a block, keys and values of each layer.
            piece_bytes: bytes of a piece.

        Raises:
            CapacityError: there is no memory for them.
        """
        self.num_blocks = num_blocks
        try:
            self._arena = np.empty((num_blocks, num_pieces, piece_bytes), dtype=np.uint8)
        except MemoryError as error:
            raise CapacityError(
                f"no memory for {num_blocks} host blocks of {num_pieces * piece_bytes} bytes",
                hint="ask for fewer",
            ) from error

    def put(self, block: int, piece: int, source: np.ndarray) -> int:
        """Store pieces of consecutive blocks."""
        self._arena[block : block + len(source), piece : piece + source.shape[1]] = source
        return 1

    def get(self, block: int, piece: int, target: np.ndarray) -> int:
        """Read pieces of consecutive blocks."""
        target[...] = self._arena[block : block + len(target), piece : piece + target.shape[1]]
        return 1

    def close(self) -> None:
        """Free the memory."""
        self._arena = np.empty((0, 0, 0), dtype=np.uint8)


class FileStore:
    """Blocks in one file; a run of blocks is one range of it and moves in one call to the system.

    The file is opened with O_DIRECT where the file system takes it, so that its speed is the
    device's and it takes no memory; pieces are padded to pages for that, and copied through a
    page-aligned buffer per thread. It has no name any more once it is open, so nothing is left
    behind by whatever ends the process.

    Attributes:
        num_blocks: blocks.
        is_direct: whether calls bypass the page cache.
    """

    def __init__(
        self,
        folder: Path,
        num_blocks: int,
        num_pieces: int,
        piece_bytes: int,
        *,
        direct: bool | None = None,
    ) -> None:
        """Make the file and reserve its space.

        Args:
            folder: folder of the file; it must exist.
            num_blocks: blocks.
            num_pieces: pieces of a block, keys and values of each layer.
            piece_bytes: bytes of a piece.
            direct: bypass the page cache; by default where the file system takes it.

        Raises:
            ConfigError: the folder cannot be written, or `direct` is asked for where it is not
                possible.
            CapacityError: the device has no room.
        """
        self.num_blocks = num_blocks
        self._shape = (num_pieces, -(-piece_bytes // _PAGE_BYTES) * _PAGE_BYTES)
        self._piece_bytes = piece_bytes
        self._stages = threading.local()
        path = folder / f"kv-{os.getpid()}-{id(self):x}"
        try:
            self._file, self.is_direct = _open(path, direct)
        except OSError as error:
            raise ConfigError(
                f"cannot make {path}: {error.strerror}", hint="name a folder that can be written"
            ) from error
        self._closer = weakref.finalize(self, os.close, self._file)
        # The open file lives on without its name, and goes with the process however that ends.
        path.unlink()
        # Reserved now, so that a full disk is an error at the start and not amid a swap.
        try:
            os.posix_fallocate(self._file, 0, num_blocks * self._block_bytes)
        except OSError as error:
            self.close()
            size = num_blocks * self._block_bytes / 1e9
            raise CapacityError(
                f"{folder} has no room for {size:.2f} GB: {error.strerror}",
                hint="ask for fewer host blocks",
            ) from error

    @property
    def _block_bytes(self) -> int:
        """Bytes of a block in the file."""
        return self._shape[0] * self._shape[1]

    def put(self, block: int, piece: int, source: np.ndarray) -> int:
        """Store pieces of consecutive blocks."""
        return sum(
            self._put(block + start, piece, source[start:stop])
            for start, stop in self._chunks(source)
        )

    def get(self, block: int, piece: int, target: np.ndarray) -> int:
        """Read pieces of consecutive blocks."""
        return sum(
            self._get(block + start, piece, target[start:stop])
            for start, stop in self._chunks(target)
        )

    def close(self) -> None:
        """Close the file, which frees its space."""
        self._closer()

    def _chunks(self, blocks: np.ndarray) -> list[tuple[int, int]]:
        """Cut a run into what the buffer holds."""
        step = max(1, _STAGE_BYTES // self._block_bytes)
        return [(start, min(start + step, len(blocks))) for start in range(0, len(blocks), step)]

    def _put(self, block: int, piece: int, source: np.ndarray) -> int:
        """Write one chunk."""
        stage, view = self._stage(source)
        view[..., : self._piece_bytes] = source
        done = 0
        offset = block * self._block_bytes + piece * self._shape[1]
        while done < view.nbytes:
            done += os.pwrite(self._file, stage[done : view.nbytes], offset + done)
        return 1

    def _get(self, block: int, piece: int, target: np.ndarray) -> int:
        """Read one chunk."""
        stage, view = self._stage(target)
        done = 0
        offset = block * self._block_bytes + piece * self._shape[1]
        while done < view.nbytes:
            count = os.preadv(self._file, [stage[done : view.nbytes]], offset + done)
            if not count:
                raise OSError(f"the tier's file ends before block {block}")
            done += count
        target[...] = view[..., : self._piece_bytes]
        return 1

    def _stage(self, blocks: np.ndarray) -> tuple[memoryview, np.ndarray]:
        """Return this thread's buffer, as bytes and as an array of blocks with padded pieces."""
        # Direct reads and writes need aligned memory, and an anonymous map begins on a page. Every
        # thread has its own, so that none waits for another.
        if not hasattr(self._stages, "memory"):
            self._stages.memory = mmap.mmap(-1, max(_STAGE_BYTES, self._block_bytes))
        memory = memoryview(self._stages.memory)
        shape = (*blocks.shape[:2], self._shape[1])
        return memory, np.frombuffer(memory, dtype=np.uint8, count=int(np.prod(shape))).reshape(
            shape
        )


def _open(path: Path, direct: bool | None) -> tuple[int, bool]:
    """Open a new file, directly if asked for or possible."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    if direct is not False and hasattr(os, "O_DIRECT"):
        try:
            return os.open(path, flags | os.O_DIRECT, 0o600), True
        except OSError:
            # Some file systems, such as tmpfs of older kernels, refuse O_DIRECT after they have
            # made the file.
            path.unlink(missing_ok=True)
            if direct:
                raise
    return os.open(path, flags, 0o600), False
