"""Writes packs: sections one after the other, the directory last."""

import io
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.checksums import BLOCK_BYTES, block_sums
from steelyard.errors import DataError
from steelyard.files import atomic_path

__all__ = [
    "ALIGN",
    "ENTRY",
    "HEAD",
    "MAGIC",
    "NUMBER",
    "PAGE_BYTES",
    "TAIL",
    "VERSION",
    "PackWriter",
    "hash_of_name",
    "pack_bytes",
    "slots_for",
    "write_pack",
    "writing_pack",
]

MAGIC = b"STLYPACK"
VERSION = 2
HEAD = MAGIC + VERSION.to_bytes(4, "little")
ALIGN = 64
PAGE_BYTES = 1024
_KINDS = "biufSUM"
ENTRY, NUMBER = struct.Struct("<QQQIHH"), struct.Struct("<I")
"""Of a section: first byte, bytes, place of its texts, a checksum, bytes of the two texts.

A section of one block has its CRC-32 here, a longer one the number of its first checksum, so that
a part of it can be read by itself; the texts are its name, then its dtype and shape.
"""
TAIL = struct.Struct("<QQQQIII8s")
"""Place of the directory, sections, checksums, bytes of text, pages, version, checksum, magic."""


def hash_of_name(name: bytes) -> int:
    """Return 64 bits of a name."""
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little")


def slots_for(count: int) -> int:
    """Return the slots for names: at least twice as many, so that most are found at once."""
    return 2 << max(count - 1, 0).bit_length()


class PackWriter:
    """Writes sections one after the other; none is kept in memory.

    Attributes:
        place: bytes written so far.
    """

    def __init__(self, file: IO[bytes]) -> None:
        """Begin a pack.

        Args:
            file: is written from its place on.
        """
        self._file = file
        self._entries: list[tuple[int, int, int, int, int, int]] = []
        self._names: dict[bytes, None] = {}
        self._texts = bytearray()
        self._checksums: list[int] = []
        self.place = 0
        self._put(HEAD)

    @property
    def count(self) -> int:
        """Sections written so far."""
        return len(self._entries)

    def _put(self, raw: Any) -> None:
        """Write bytes, and fill up to where the next section may begin."""
        size = memoryview(raw).nbytes
        self._file.write(raw)
        self._file.write(b"\0" * (-size % ALIGN))
        self.place += size + -size % ALIGN

    def add(self, name: str, values: Any) -> None:
        """Write a section.

        Args:
            name: name of the section, not yet used.
            values: numbers, Booleans, times, or text of one width.

        Raises:
            DataError: the name is there already, or the array holds something else.
        """
        array = np.asarray(values, order="C")
        text = name.encode()
        if array.dtype.kind not in _KINDS:
            raise DataError(
                f"section {name!r} holds {array.dtype}, which a pack does not keep",
                hint="give numbers, Booleans, times or text of one width",
            )
        if text in self._names or len(text) > 65_535:
            what = "is there twice" if text in self._names else "has a name of over 65,535 bytes"
            raise DataError(f"section {name[:80]!r} {what}", hint="give each a short name")
        self._names[text] = None
        told = ",".join([array.dtype.str, *map(str, array.shape)]).encode()
        raw = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
        checksum = zlib.crc32(raw)
        if raw.nbytes > BLOCK_BYTES:
            checksum = len(self._checksums)
            self._checksums += block_sums(np.asarray(raw, np.uint8)).tolist()
        entry = (self.place, raw.nbytes, len(self._texts), checksum)
        self._entries.append((*entry, len(text), len(told)))
        self._texts += text + told
        self._put(raw)

    def finish(self) -> None:
        """Write the directory and the tail."""
        directory = self._directory()
        pages = range(0, len(directory), PAGE_BYTES)
        sums = np.array([zlib.crc32(directory[at : at + PAGE_BYTES]) for at in pages], "<u4")
        counts = (self.place, self.count, len(self._checksums), len(self._texts), len(sums))
        raw = sums.tobytes() + TAIL.pack(*counts, VERSION, 0, MAGIC)[:-12]
        self._file.write(directory)
        self._file.write(raw + zlib.crc32(raw).to_bytes(4, "little") + MAGIC)

    def _directory(self) -> bytes:
        """Return entries, slots by the hash of a name, checksums and texts."""
        slots = np.zeros(slots_for(self.count), "<u4")
        last = len(slots) - 1
        for number, name in enumerate(self._names):
            slot = hash_of_name(name) & last
            while slots[slot]:
                slot = (slot + 1) & last
            slots[slot] = number + 1
        entries = b"".join(ENTRY.pack(*entry) for entry in self._entries)
        checksums = np.array(self._checksums, "<u4").tobytes()
        return entries + slots.tobytes() + checksums + bytes(self._texts)


def pack_bytes(sections: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a pack in memory.

    Args:
        sections: arrays by name; numbers, Booleans, times, or text of one width.

    Returns:
        What `write_pack` would write.

    Raises:
        DataError: an array holds something else.
    """
    file = io.BytesIO()
    writer = PackWriter(file)
    for name, values in sections.items():
        writer.add(name, values)
    writer.finish()
    return file.getvalue()


@contextmanager
def writing_pack(path: Path) -> Iterator[PackWriter]:
    """Yield a writer of a pack that is put in its place when all is written.

    Args:
        path: the file; an older one stays until then.

    Yields:
        The writer.

    Raises:
        DataError: nothing may be written there.
        CapacityError: the disk is full; an older file stays.
    """
    with atomic_path(path) as beside, beside.open("wb") as file:
        writer = PackWriter(file)
        yield writer
        writer.finish()


def write_pack(path: Path, sections: Mapping[str, NDArray[Any]]) -> None:
    """Write a pack beside its place and put it there whole.

    Args:
        path: the file.
        sections: arrays by name.

    Raises:
        DataError: an array holds what a pack does not keep.
        CapacityError: the disk is full; an older file stays.
    """
    with writing_pack(path) as writer:
        for name, values in sections.items():
            writer.add(name, values)
