"""Slabs of memory that processes of one host share: written by one, read by any, never torn.

An arena is a file under /dev/shm. Its owner writes a slab and tells a reader the slab's number and
generation. The generation is odd while the slab is written and rises with each use, so that a
reader who comes late, or reads while the owner writes, learns that its bytes are none. A lease
keeps the owner from using a slab again while a reader may still copy it.

POSIX segments of Python's `shared_memory` are not used: its tracker removes them when their maker
dies, and leaves those of a maker that never tracked them. Here a file belongs to the process that
its name tells, and `sweep` removes those of dead processes.
"""

import mmap
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steelyard.errors import CapacityError, DataError, require

__all__ = ["ArenaConfig", "ArenaReader", "SlabArena", "SlabRef", "arena_folder", "sweep"]

_MAGIC = 0x53_4C_41_42
_HEAD = struct.Struct("<QQQ")
"""Magic, bytes of a slab, number of slabs; behind it one generation (8 bytes) for each slab."""
_PAGE = mmap.PAGESIZE
_SUFFIX = ".arena"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArenaConfig:
    """Size of an arena.

    Attributes:
        slab_bytes: longest content of a slab; at least 1.
        num_slabs: slabs; at least 1.
        lease_s: seconds for which a slab that was told to a reader is not used again, above 0,
            unless the reader gives it back.
    """

    slab_bytes: int = 1 << 20
    num_slabs: int = 8
    lease_s: float = 2.0

    def __post_init__(self) -> None:
        require(
            self,
            slab_bytes=(self.slab_bytes >= 1, "at least 1"),
            num_slabs=(1 <= self.num_slabs <= 1 << 16, "in [1, 65536]"),
            lease_s=(self.lease_s > 0, "above 0"),
        )


@dataclass(frozen=True, slots=True)
class SlabRef:
    """Where some bytes stand; small enough for any message.

    Attributes:
        slab: number of the slab.
        generation: even; the use of the slab that is meant.
        num_bytes: bytes from the slab's beginning.
    """

    slab: int
    generation: int
    num_bytes: int


def arena_folder() -> Path:
    """Return the folder of arenas: memory where the host has /dev/shm, else temporary files."""
    import tempfile

    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def _offset(slab: int, slab_bytes: int, num_slabs: int) -> int:
    """Return the place of a slab; each begins on a page."""
    pages_of = lambda size: -(-size // _PAGE) * _PAGE  # noqa: E731
    return pages_of(_HEAD.size + 8 * num_slabs) + slab * pages_of(slab_bytes)


class SlabArena:
    """The owner's end: takes slabs, fills them, and gets them back.

    Attributes:
        path: the file; readers open it by its name.
    """

    def __init__(
        self,
        name: str,
        config: ArenaConfig | None = None,
        *,
        folder: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the file, of the right size and with all generations 0.

        Args:
            name: part of the file's name, beside the owner's process number.
            config: size.
            folder: where; None for `arena_folder()`.
            clock: seconds, for leases.

        Raises:
            CapacityError: the folder has too little room.
        """
        self._config = config or ArenaConfig()
        self._clock = clock
        size = _offset(self._config.num_slabs, self._config.slab_bytes, self._config.num_slabs)
        # The number of the process and its start: another process may get the same number later.
        owner = f"{os.getpid()}-{_started(os.getpid())}"
        self.path = (folder or arena_folder()) / f"steelyard-{owner}-{name}{_SUFFIX}"
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Room is taken now: a page that memory cannot hold later would kill the writer.
            os.posix_fallocate(handle, 0, size)
            self._map = mmap.mmap(handle, size)
        except OSError as error:
            self.path.unlink(missing_ok=True)
            raise CapacityError(
                f"no room for an arena of {size} bytes in {self.path.parent}",
                hint="lower slab_bytes or num_slabs",
            ) from error
        finally:
            os.close(handle)
        _HEAD.pack_into(self._map, 0, _MAGIC, self._config.slab_bytes, self._config.num_slabs)
        count = self._config.num_slabs
        self._generations = np.frombuffer(self._map, np.uint64, count, _HEAD.size)
        self._leased_until_s = [float("-inf")] * count
        self._next = 0

    def take(self, num_bytes: int) -> tuple[int, np.ndarray] | None:
        """Begin to write a slab.

        Args:
            num_bytes: bytes to write; at least 0.

        Returns:
            Its number and its bytes, uint8 [num_bytes]; None where it would not fit or every slab
            is leased, and the bytes have to go another way.
        """
        if num_bytes > self._config.slab_bytes:
            return None
        now_s = self._clock()
        for step in range(self._config.num_slabs):
            slab = (self._next + step) % self._config.num_slabs
            if self._leased_until_s[slab] < now_s:
                self._next = slab + 1
                self._leased_until_s[slab] = now_s + self._config.lease_s
                self._generations[slab] += np.uint64(1 + self._generations[slab] % 2)  # now odd
                start = _offset(slab, self._config.slab_bytes, self._config.num_slabs)
                return slab, np.frombuffer(self._map, np.uint8, num_bytes, start)
        return None

    def publish(self, slab: int, num_bytes: int) -> SlabRef:
        """End writing a slab that `take` gave, and return what its reader needs."""
        self._generations[slab] += np.uint64(1)
        self._leased_until_s[slab] = self._clock() + self._config.lease_s
        return SlabRef(slab, int(self._generations[slab]), num_bytes)

    def give_back(self, ref: SlabRef) -> None:
        """Take back a slab that its reader has copied; one of an earlier use is left."""
        if 0 <= ref.slab < self._config.num_slabs and (
            int(self._generations[ref.slab]) == ref.generation
        ):
            self._leased_until_s[ref.slab] = float("-inf")

    def close(self) -> None:
        """Remove the file; readers that have it open keep their bytes."""
        self.path.unlink(missing_ok=True)


class ArenaReader:
    """A reader's end of another process's arena."""

    def __init__(self, path: Path) -> None:
        """Open an arena.

        Args:
            path: its file.

        Raises:
            DataError: there is none, or it is no arena.
        """
        try:
            with path.open("rb") as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            magic, self._slab_bytes, self._num_slabs = _HEAD.unpack_from(self._map)
        except (OSError, ValueError, struct.error) as error:
            raise DataError(
                f"{path} cannot be opened: {error}", hint="ask its owner anew"
            ) from error
        size = _offset(self._num_slabs, self._slab_bytes, self._num_slabs)
        if magic != _MAGIC or size != len(self._map):
            raise DataError(f"{path} is no arena", hint="give a file that SlabArena made")
        self._generations = np.frombuffer(self._map, np.uint64, self._num_slabs, _HEAD.size)

    def read(self, ref: SlabRef) -> np.ndarray:
        """Copy the bytes of a slab.

        Args:
            ref: what the owner told.

        Returns:
            uint8 [num_bytes].

        Raises:
            DataError: the owner has used the slab again, or the reference lies outside.
        """
        if not (0 <= ref.slab < self._num_slabs and 0 <= ref.num_bytes <= self._slab_bytes):
            raise DataError(f"{ref} lies outside of the arena", hint="ask its owner anew")
        start = _offset(ref.slab, self._slab_bytes, self._num_slabs)
        found = np.frombuffer(self._map, np.uint8, ref.num_bytes, start).copy()
        # Looked at after the copy: what was written meanwhile has made the generation another one.
        if int(self._generations[ref.slab]) != ref.generation:
            raise DataError(f"slab {ref.slab} has been used again", hint="read it sooner")
        return found


def sweep(folder: Path | None = None) -> list[Path]:
    """Remove arenas whose owners have died.

    Args:
        folder: where; None for `arena_folder()`.

    Returns:
        The files removed.
    """
    removed = []
    for path in (folder or arena_folder()).glob(f"steelyard-*{_SUFFIX}"):
        process, _, rest = path.name.removeprefix("steelyard-").partition("-")
        if process.isdecimal() and _started(int(process)) != rest.partition("-")[0]:
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def _started(process: int) -> str:
    """Return when a process began, in ticks since the host did; empty where there is none."""
    try:
        # The second field is the program's name in brackets and may hold blanks and brackets.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
