"""Packed weights kept in files, which the engine processes of a machine map and share.

A file holds the memory of an arena as it is, then where each map stands in it. It is named after
what it was made of, so that it is never changed, only replaced by the same or removed.
"""

import contextlib
import hashlib
import mmap
import os
import shutil
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from steelyard import nn
from steelyard.errors import CapacityError, DataError, SteelyardWarning
from steelyard.files import atomic_path
from steelyard.native import cache_dir

__all__ = ["LEAST_BYTES", "PackedFile", "Places", "cache_path", "read_packed", "write_packed"]

LEAST_BYTES = 2**24
"""Packed weights of fewer bytes are not kept: packing them takes some hundredths of a second."""
_MOST_BYTES = 2**34
"""Bytes that all files may have; those used longest ago are removed first."""
_SPARE_BYTES = 2**32
"""Bytes of the disk that are left free."""
_STALE_S = 3600.0
_CHUNK = 2**20
_END = b"steelyard packed"
_MOST_HEADER = 2**24
_POPULATE_READ = 22
"""Linux 5.14: bring the whole map in."""
_TRIED = 2**25
"""Bytes by which it is seen whether files are mapped in huge pages."""
_HERE = Path(__file__).parent
_SOURCES = (
    *(_HERE / name for name in ("lanes.h", "linear.h", "maps.py", "packing.py", "packed_cache.py")),
    *(_HERE.parent / name for name in ("sources.py", "weights.py")),
    *sorted(
        path
        for folder in ("gguf", "numerics", "quantized", ".")
        for path in (Path(nn.__path__[0]) / folder).glob("*.py")
    ),
)
"""Code that decides what the bytes are: with other code they are packed anew."""


class Places(msgspec.Struct, frozen=True):
    """Where a map stands in its memory; -1 for what it does not have."""

    packed: int
    scales: int
    zeros: int
    outputs: int
    inputs: int
    kind: int
    group: int
    parts: int
    lowered: int


class _Header(msgspec.Struct, frozen=True):
    """What follows the memory in a file."""

    num_bytes: int
    weight_bytes: int
    digest: str
    places: list[Places]


class PackedFile:
    """A file's memory.

    Attributes:
        memory: uint8, not to be written; it lives as long as this array does.
        weight_bytes: bytes of codes, scales and zero points in it.
        places: where each map stands.
    """

    def __init__(self, memory: np.ndarray, header: _Header) -> None:
        """Keep the parts."""
        self.memory = memory
        self.weight_bytes = header.weight_bytes
        self.places = header.places


def cache_path(identity: str, weights: str) -> Path:
    """Return where the packed weights of a model are kept.

    Args:
        identity: what the model's files hold.
        weights: type of the products.

    Returns:
        A file that may not exist yet.
    """
    key = hashlib.sha256(f"{identity} {weights} {_code()}".encode()).hexdigest()[:32]
    return cache_dir() / "packed" / f"{key}.weights"


def read_packed(path: Path, allocate: Callable[[int], np.ndarray]) -> PackedFile | None:
    """Map a file, or read it where the system maps files in small pages.

    Walks of the page table for small pages take a sixth to a fourth of a decoding step.

    Args:
        path: its place.
        allocate: returns memory in huge pages, uint8 of a number of bytes.

    Returns:
        Its memory; None when there is no whole file, or it is damaged.

    Raises:
        CapacityError: there is no memory.
    """
    try:
        with path.open("rb") as stream:
            header = _read_header(stream.fileno())
            memory = _mapped(stream.fileno(), header.num_bytes)
            if memory is None:
                memory = allocate(header.num_bytes)
                stream.seek(0)
                if stream.readinto(memory.data) != header.num_bytes:
                    return None
        if _digest(memory) != header.digest:
            return None
        os.utime(path)  # used last now
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    return PackedFile(memory, header)


def write_packed(path: Path, memory: np.ndarray, places: list[Places], weight_bytes: int) -> None:
    """Keep an arena in a file; a warning tells where that is not possible.

    Args:
        path: where.
        memory: uint8, all of it.
        places: where each map stands in it.
        weight_bytes: bytes of codes, scales and zero points.
    """
    header = _Header(memory.nbytes, weight_bytes, _digest(memory), places)
    written = msgspec.json.encode(header)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _make_room(path.parent, memory.nbytes + len(written)):
            return
        with atomic_path(path) as temporary, temporary.open("wb", buffering=0) as stream:
            for first in range(0, memory.nbytes, 64 * _CHUNK):
                _write(stream.fileno(), memory[first : first + 64 * _CHUNK].data)
            _write(stream.fileno(), written + len(written).to_bytes(8, "little") + _END)
    except (CapacityError, DataError, OSError) as error:
        warnings.warn(
            f"packed weights are not kept, so the next start packs them again: {error}",
            SteelyardWarning,
            stacklevel=2,
        )


def _write(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of some bytes."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _read_header(descriptor: int) -> _Header:
    """Read and check what follows the memory."""
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, 8 + len(_END), max(0, size - 8 - len(_END)))
    length = int.from_bytes(tail[:8], "little")
    start = size - len(tail) - length
    if tail[8:] != _END or length > _MOST_HEADER or start < 0:
        raise ValueError("not a whole file")
    header = msgspec.json.decode(os.pread(descriptor, length, start), type=_Header)
    if header.num_bytes != start or not all(
        -1 <= place < start
        for item in header.places
        for place in (item.packed, item.scales, item.zeros)
    ):
        raise ValueError("places beyond the memory")
    return header


def _mapped(descriptor: int, num_bytes: int) -> np.ndarray | None:
    """Map the beginning of a file, None where that is in small pages."""
    mapped = mmap.mmap(descriptor, num_bytes, access=mmap.ACCESS_READ)
    memory = np.frombuffer(mapped, dtype=np.uint8)
    _advise(mapped, getattr(mmap, "MADV_HUGEPAGE", 14), num_bytes)
    first = min(num_bytes, _TRIED)
    _advise(mapped, _POPULATE_READ, first)
    if _huge_bytes(memory.ctypes.data) * 2 < first:
        return None
    _advise(mapped, _POPULATE_READ, num_bytes)
    return memory


def _advise(mapped: mmap.mmap, advice: int, num_bytes: int) -> None:
    """Advise the system on the beginning of a map; older ones do not know some for files."""
    with contextlib.suppress(OSError, ValueError):
        mapped.madvise(advice, 0, num_bytes)


def _digest(memory: np.ndarray) -> str:
    """Return a hash of the sums of pieces: at the speed of memory, and no bit turns unseen."""
    whole = memory.nbytes // _CHUNK * _CHUNK
    sums = memory[:whole].view(np.uint64).reshape(-1, _CHUNK // 8).sum(axis=1, dtype=np.uint64)
    return hashlib.sha256(sums.tobytes() + memory[whole:].tobytes()).hexdigest()


def _make_room(folder: Path, needed: int) -> bool:
    """Remove files used longest ago until some bytes fit; False where they never do."""
    if needed > _MOST_BYTES // 2 or shutil.disk_usage(folder).free < needed + _SPARE_BYTES:
        return False
    found = []
    for path in folder.glob("*.weights"):
        with contextlib.suppress(OSError):  # another process removed it
            found.append((path.stat().st_mtime, path.stat().st_size, path))
    for path in folder.glob(".*.weights.*"):
        # Left by a process that ended while it wrote: writing takes seconds.
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_S:
                path.unlink()
    used = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if used + needed <= _MOST_BYTES:
            break
        path.unlink(missing_ok=True)  # who has mapped it keeps its memory
        used -= size
    return True


def _huge_bytes(address: int) -> int:
    """Return how many bytes of the map at an address are in huge pages, 0 where unknown."""
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        return 0
    start = f"{address:x}-"
    inside = False
    for line in lines:
        if "-" in line.partition(" ")[0]:
            inside = line.startswith(start)
        elif inside and line.startswith("FilePmdMapped:"):
            return int(line.split()[1]) * 1024
    return 0


@cache
def _code() -> str:
    """Return a hash of the code that packs."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()
