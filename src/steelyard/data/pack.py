"""One container for typed arrays: sections with checksums, the directory last, mapped when read."""

import io
import mmap
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.checksums import BLOCK_BYTES, block_sums, first_damaged
from steelyard.errors import DataError
from steelyard.files import atomic_path

__all__ = ["Pack", "PackWriter", "pack_bytes", "write_pack", "writing_pack"]

_MAGIC = b"STLYPACK"
_VERSION = 2
_ALIGN = 64
_PAGE_BYTES = 1024
_KINDS = "biufSUM"
_ENTRY, _NUMBER = struct.Struct("<QQQIHH"), struct.Struct("<I")
"""Of a section: first byte, bytes, place of its texts, a checksum, bytes of the two texts.

A section of one block has its CRC-32 here, a longer one the number of its first checksum, so that
a part of it can be read by itself; the texts are its name, then its dtype and shape.
"""
_TAIL = struct.Struct("<QQQQIII8s")
"""Place of the directory, sections, checksums, bytes of text, pages, version, checksum, magic."""


def _hash(name: bytes) -> int:
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little")


def _slots(count: int) -> int:
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
        self._put(_MAGIC + _VERSION.to_bytes(4, "little"))

    @property
    def count(self) -> int:
        """Sections written so far."""
        return len(self._entries)

    def _put(self, raw: Any) -> None:
        """Write bytes, and fill up to where the next section may begin."""
        size = memoryview(raw).nbytes
        self._file.write(raw)
        self._file.write(b"\0" * (-size % _ALIGN))
        self.place += size + -size % _ALIGN

    def add(self, name: str, values: Any) -> None:
        """Write a section.

        Args:
            name: of the section, not yet used.
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
        raw = memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")
        checksum = zlib.crc32(raw)
        if raw.nbytes > BLOCK_BYTES:
            checksum = len(self._checksums)
            self._checksums += block_sums(np.frombuffer(raw, np.uint8)).tolist()
        entry = (self.place, raw.nbytes, len(self._texts), checksum)
        self._entries.append((*entry, len(text), len(told)))
        self._texts += text + told
        self._put(raw)

    def finish(self) -> None:
        """Write the directory and the tail."""
        directory = self._directory()
        pages = range(0, len(directory), _PAGE_BYTES)
        sums = np.array([zlib.crc32(directory[at : at + _PAGE_BYTES]) for at in pages], "<u4")
        counts = (self.place, self.count, len(self._checksums), len(self._texts), len(sums))
        raw = sums.tobytes() + _TAIL.pack(*counts, _VERSION, 0, _MAGIC)[:-12]
        self._file.write(directory)
        self._file.write(raw + zlib.crc32(raw).to_bytes(4, "little") + _MAGIC)

    def _directory(self) -> bytes:
        """Return entries, slots by the hash of a name, checksums and texts."""
        slots = np.zeros(_slots(self.count), "<u4")
        last = len(slots) - 1
        for number, name in enumerate(self._names):
            slot = _hash(name) & last
            while slots[slot]:
                slot = (slot + 1) & last
            slots[slot] = number + 1
        entries = b"".join(_ENTRY.pack(*entry) for entry in self._entries)
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


class Pack:
    """A pack that is read section by section; what is read is checked, once.

    Finding a section takes the same time in a pack of ten sections and in one of a million: its
    name leads to a bucket, and only the pages of the directory that are needed are looked at.

    Attributes:
        where: what messages call it.
        count: number of sections.
        checked_bytes: bytes of sections that were read and checked so far.
    """

    def __init__(self, payload: Any, where: str = "a pack in memory") -> None:
        """Read the tail.

        Args:
            payload: bytes, or a map of a file.
            where: what messages call it.

        Raises:
            DataError: it is no pack, is cut short, or its directory is damaged.
        """
        self.where, self._payload = where, memoryview(payload)
        self.checked_bytes = 0
        self._checked_pages: set[int] = set()
        self._checked: set[int] = set()
        self._checked_blocks: dict[int, NDArray[np.uint8]] = {}
        self._read_tail()

    @classmethod
    def open(cls, path: Path) -> "Pack":
        """Map a file.

        Args:
            path: the file.

        Returns:
            The pack.

        Raises:
            DataError: it cannot be read, or is no whole pack.
        """
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read the pack {path}: {error}") from error
        return cls(mapped, str(path))

    def _read_tail(self) -> None:
        """Take in where the parts of the directory are."""
        size = len(self._payload)
        if size < _ALIGN + _TAIL.size or bytes(self._payload[-len(_MAGIC) :]) != _MAGIC:
            raise DataError(f"{self.where} is no pack, or is cut short", hint="write it again")
        tail = _TAIL.unpack(self._payload[-_TAIL.size :])
        self._place, self.count, sums, texts, pages, version, checksum, _ = tail
        if version != _VERSION and bytes(self._payload[: len(_MAGIC)]) == _MAGIC:
            raise DataError(
                f"{self.where} is a pack of version {version}, and {_VERSION} is read",
                hint="write it again, or read it with the Steelyard that wrote it",
            )
        raw = self._payload[max(size - _TAIL.size - 4 * pages, 0) : size - 12]
        entries = _ENTRY.size * self.count
        self._slots = entries
        self._sums = self._slots + 4 * _slots(self.count)
        self._texts = self._sums + 4 * sums
        self._end = self._texts + texts
        whole = self._place + self._end + 4 * pages + _TAIL.size == size
        if not whole or zlib.crc32(raw) != checksum:
            raise DataError(f"the directory of {self.where} is damaged", hint="write it again")
        self._page_sums = np.frombuffer(raw[: 4 * pages], "<u4")

    def _listed(self, first: int, length: int) -> memoryview:
        """Return bytes of the directory; pages that hold them are checked."""
        for page in range(first // _PAGE_BYTES, (first + length - 1) // _PAGE_BYTES + 1):
            if page in self._checked_pages:
                continue
            begins = self._place + page * _PAGE_BYTES
            ends = min(begins + _PAGE_BYTES, self._place + self._end)
            if zlib.crc32(self._payload[begins:ends]) != int(self._page_sums[page]):
                raise DataError(f"the directory of {self.where} is damaged", hint="write it again")
            self._checked_pages.add(page)
        return self._payload[self._place + first : self._place + first + length]

    def _entry(self, number: int) -> tuple[int, ...]:
        return _ENTRY.unpack(self._listed(number * _ENTRY.size, _ENTRY.size))

    def name(self, number: int) -> str:
        """Return the name of a section by its number, in the order they were written."""
        _, _, text, _, length, _ = self._entry(number)
        return bytes(self._listed(self._texts + text, length)).decode()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all sections in the order they were written."""
        return tuple(self.name(number) for number in range(self.count))

    def find(self, name: str) -> int | None:
        """Return the number of a section, None where there is none of that name."""
        if not self.count:
            return None
        text = name.encode()
        last = _slots(self.count) - 1
        slot = _hash(text) & last
        # Half of the slots are empty, but a damaged directory must not be searched for ever.
        for _ in range(last + 1):
            (number,) = _NUMBER.unpack(self._listed(self._slots + 4 * slot, 4))
            if not number:
                return None
            _, _, place, _, length, _ = self._entry(number - 1)
            if self._listed(self._texts + place, length) == text:
                return number - 1
            slot = (slot + 1) & last
        return None

    def size(self, number: int) -> int:
        """Return the bytes of a section by its number."""
        return self._entry(number)[1]

    def place(self, number: int) -> int:
        """Return the first byte of a section by its number."""
        return self._entry(number)[0]

    def raw(self, number: int, first: int = 0, last: int | None = None) -> NDArray[np.uint8]:
        """Return a section's bytes, of which some are checked.

        Args:
            number: of the section.
            first: first byte that will be used.
            last: one past the last; the end when it is left out.

        Returns:
            All of its bytes, [bytes]; those outside of the range may be damaged.

        Raises:
            DataError: a byte of the range is damaged.
        """
        place, size, _, checksum, *_ = self._entry(number)
        last = size if last is None else min(last, size)
        raw = np.frombuffer(self._payload, np.uint8, size, place)
        if last > first and size > BLOCK_BYTES:
            blocks = (first // BLOCK_BYTES, (last - 1) // BLOCK_BYTES + 1)
            self._check_blocks(number, raw, checksum, blocks)
        elif last > first and number not in self._checked:
            if zlib.crc32(raw) != checksum:
                raise self._damaged(number)
            self._checked.add(number)
            self.checked_bytes += size
        return raw

    def _check_blocks(
        self, number: int, raw: NDArray[np.uint8], checksum: int, blocks: tuple[int, int]
    ) -> None:
        """Check blocks of a section, each once."""
        count = -(-len(raw) // BLOCK_BYTES)
        done = self._checked_blocks.setdefault(number, np.zeros(count, np.uint8))
        first, last = blocks
        missing = int((done[first:last] == 0).sum())
        if missing:
            listed = self._listed(self._sums + 4 * checksum, 4 * count)
            if first_damaged(raw, np.frombuffer(listed, "<u4"), done, first, last) >= 0:
                raise self._damaged(number)
            self.checked_bytes += min(missing * BLOCK_BYTES, len(raw))

    def _damaged(self, number: int) -> DataError:
        return DataError(
            f"section {self.name(number)!r} of {self.where} is damaged", hint="write it again"
        )

    def at(self, number: int) -> NDArray[Any]:
        """Return a section by its number, as `[name]` does.

        Args:
            number: of the section.

        Returns:
            The array; it cannot be written to.

        Raises:
            DataError: its bytes are damaged.
        """
        _, _, place, _, length, told = self._entry(number)
        described = bytes(self._listed(self._texts + place + length, told)).decode()
        dtype, *shape = described.split(",")
        return self.raw(number).view(np.dtype(dtype)).reshape([int(size) for size in shape])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a section as an array that shares the pack's memory.

        Args:
            name: of the section.

        Returns:
            The array; it cannot be written to.

        Raises:
            DataError: there is none of that name, or its bytes are damaged.
        """
        number = self.find(name)
        if number is None:
            some = ", ".join(self.name(place) for place in range(min(self.count, 20)))
            raise DataError(f"{self.where} has no section {name!r}", hint=f"it has {some}")
        return self.at(number)

    def damaged(self) -> list[str]:
        """Return the names of all sections with damaged bytes, and of fillings between them."""
        found, expected = [], _ALIGN
        head = (_MAGIC + _VERSION.to_bytes(4, "little")).ljust(_ALIGN, b"\0")
        if bytes(self._payload[:_ALIGN]) != head:
            found.append("(head)")
        self._listed(0, self._end)
        for number in range(self.count):
            try:
                self.raw(number)
            except DataError:
                found.append(self.name(number))
            place, size = self._entry(number)[:2]
            expected = place + size + -size % _ALIGN
            if any(self._payload[place + size : expected]):
                found.append(f"(filling after {self.name(number)})")
        return found

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return all sections by name."""
        return {name: self.at(number) for number, name in enumerate(self.names)}
