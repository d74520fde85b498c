"""One container for typed arrays: sections with checksums, the directory last, mapped when read."""

import mmap
import os
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.checksums import BLOCK_BYTES, first_damaged
from steelyard.data.pack_writer import (
    ALIGN,
    ENTRY,
    HEAD,
    MAGIC,
    NUMBER,
    PAGE_BYTES,
    TAIL,
    VERSION,
    PackWriter,
    hash_of_name,
    pack_bytes,
    slots_for,
    write_pack,
    writing_pack,
)
from steelyard.errors import DataError

__all__ = ["Pack", "PackWriter", "pack_bytes", "write_pack", "writing_pack"]


class _OpenFile:
    """A file that is closed with the last pack that reads it."""

    def __init__(self, path: str | Path) -> None:
        # A file object of Python would take longer to make than all else of opening a pack.
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


class Pack:
    """A pack that is read section by section; what is read is checked, once.

    Finding a section takes the same time in a pack of ten sections and in one of a million: its
    name leads to a bucket, and only the pages of the directory that are needed are looked at.

    Attributes:
        where: what messages call it.
        count: number of sections.
        checked_bytes: bytes of sections that were read and checked so far.
    """

    def __init__(
        self,
        payload: Any,
        where: str = "a pack in memory",
        fetch: Callable[[int, int], None] = lambda first, last: None,
    ) -> None:
        """Read the tail.

        Args:
            payload: bytes, or a map of a file.
            where: what messages call it.
            fetch: is told the first byte, and one past the last, of what is looked at next, where
                the payload is filled only then.

        Raises:
            DataError: it is no pack, is cut short, or its directory is damaged.
        """
        self.where, self._payload, self.fetch = where, memoryview(payload), fetch
        self._file: _OpenFile | None = None
        self.checked_bytes = 0
        self._checked_pages: set[int] = set()
        self._checked: set[int] = set()
        self._checked_blocks: dict[int, NDArray[np.uint8]] = {}
        self._read_tail()

    @classmethod
    def open(cls, path: str | Path) -> "Pack":
        """Map a file.

        Args:
            path: the file.

        Returns:
            The pack.

        Raises:
            DataError: it cannot be read, or is no whole pack.
        """
        try:
            file = _OpenFile(path)
            mapped = mmap.mmap(file.number, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read the pack {path}: {error}") from error
        pack = cls(mapped, str(path))
        pack._file = file
        return pack

    def _read_tail(self) -> None:
        """Take in where the parts of the directory are."""
        size = len(self._payload)
        self.fetch(size - TAIL.size, size)
        is_long = size >= ALIGN + TAIL.size
        tail = TAIL.unpack_from(self._payload, size - TAIL.size) if is_long else (0,) * 8
        self._place, self.count, sums, texts, pages, version, checksum, magic = tail
        if magic != MAGIC:
            raise DataError(f"{self.where} is no pack, or is cut short", hint="write it again")
        if version != VERSION and bytes(self._payload[: len(MAGIC)]) == MAGIC:
            raise DataError(
                f"{self.where} is a pack of version {version}, and {VERSION} is read",
                hint="write it again, or read it with the Steelyard that wrote it",
            )
        self.fetch(size - TAIL.size - 4 * pages, size)
        raw = self._payload[max(size - TAIL.size - 4 * pages, 0) : size - 12]
        entries = ENTRY.size * self.count
        self._slots = entries
        self._sums = self._slots + 4 * slots_for(self.count)
        self._texts = self._sums + 4 * sums
        self._end = self._texts + texts
        whole = self._place + self._end + 4 * pages + TAIL.size == size
        if not whole or zlib.crc32(raw) != checksum:
            raise DataError(f"the directory of {self.where} is damaged", hint="write it again")
        self._page_sums = np.frombuffer(raw[: 4 * pages], "<u4")

    def _listed(self, first: int, length: int) -> memoryview:
        """Return bytes of the directory; pages that hold them are checked."""
        self._check_listed(first, length)
        return self._payload[self._place + first : self._place + first + length]

    def _check_listed(self, first: int, length: int) -> None:
        """Check the pages that hold bytes of the directory."""
        page, last = first // PAGE_BYTES, (first + length - 1) // PAGE_BYTES
        while page <= last:
            if page not in self._checked_pages:
                self._check_page(page)
            page += 1

    def _check_page(self, page: int) -> None:
        """Check a page of the directory."""
        begins = self._place + page * PAGE_BYTES
        ends = min(begins + PAGE_BYTES, self._place + self._end)
        self.fetch(begins, ends)
        if zlib.crc32(self._payload[begins:ends]) != int(self._page_sums[page]):
            raise DataError(f"the directory of {self.where} is damaged", hint="write it again")
        self._checked_pages.add(page)

    def _entry(self, number: int) -> tuple[int, ...]:
        first = number * ENTRY.size
        self._check_listed(first, ENTRY.size)
        return ENTRY.unpack_from(self._payload, self._place + first)

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
        last = slots_for(self.count) - 1
        slot = hash_of_name(text) & last
        # Half of the slots are empty, but a damaged directory must not be searched for ever.
        for _ in range(last + 1):
            begins = self._slots + NUMBER.size * slot
            self._check_listed(begins, NUMBER.size)
            (number,) = NUMBER.unpack_from(self._payload, self._place + begins)
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
            number: number of the section.
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
            self.fetch(place + blocks[0] * BLOCK_BYTES, place + min(blocks[1] * BLOCK_BYTES, size))
            self._check_blocks(number, raw, checksum, blocks)
        elif last > first and number not in self._checked:
            self.fetch(place, place + size)
            if zlib.crc32(self._payload[place : place + size]) != checksum:
                raise self._damaged(number)
            self._checked.add(number)
            self.checked_bytes += size
        return raw

    def whole(self, number: int) -> Any:
        """Return all bytes of a section, checked; those of one block are copied from a file.

        To map a page for the first time takes longer than to copy what is on it.

        Args:
            number: number of the section.

        Returns:
            Bytes, or what shares the pack's memory.

        Raises:
            DataError: a byte is damaged.
        """
        place, size, _, checksum, *_ = self._entry(number)
        if size > BLOCK_BYTES or self._file is None:
            return self.raw(number)
        raw = os.pread(self._file.number, size, place)
        if number not in self._checked:
            if len(raw) != size or zlib.crc32(raw) != checksum:
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
            number: number of the section.

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
            name: name of the section.

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
        self.fetch(0, len(self._payload))
        found, expected = [], ALIGN
        head = HEAD.ljust(ALIGN, b"\0")
        if bytes(self._payload[:ALIGN]) != head:
            found.append("(head)")
        self._listed(0, self._end)
        for number in range(self.count):
            try:
                self.raw(number)
            except DataError:
                found.append(self.name(number))
            place, size = self._entry(number)[:2]
            expected = place + size + -size % ALIGN
            if any(self._payload[place + size : expected]):
                found.append(f"(filling after {self.name(number)})")
        return found

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return all sections by name."""
        return {name: self.at(number) for number, name in enumerate(self.names)}
