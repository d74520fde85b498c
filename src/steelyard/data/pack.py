"""One container for typed arrays: sections with checksums, the directory last, mapped when read."""

import json
import mmap
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError
from steelyard.files import atomic_path

__all__ = ["Pack", "pack_bytes", "write_pack"]

_MAGIC = b"STLYPACK"
_ALIGN = 64
_TAIL_BYTES = 8 + 4 + 4 + len(_MAGIC)
_KINDS = "biufSUM"


def _laid_out(sections: Mapping[str, NDArray[Any]]) -> list[bytes]:
    """Return the parts of a pack in order: head, aligned sections, directory, tail."""
    parts, place = [_MAGIC.ljust(_ALIGN, b"\0")], _ALIGN
    directory: dict[str, Any] = {}
    for name, values in sections.items():
        array = np.asarray(values, order="C")
        if array.dtype.kind not in _KINDS:
            raise DataError(
                f"section {name!r} holds {array.dtype}, which a pack does not keep",
                hint="give numbers, Booleans, times or text of one width",
            )
        raw = array.tobytes()
        filled = raw + b"\0" * (-len(raw) % _ALIGN)
        directory[name] = {
            "offset": place,
            "bytes": len(raw),
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "crc32": zlib.crc32(raw),
        }
        parts.append(filled)
        place += len(filled)
    listing = json.dumps(directory, sort_keys=True).encode()
    tail = place.to_bytes(8, "little") + len(listing).to_bytes(4, "little")
    tail += zlib.crc32(listing).to_bytes(4, "little")
    return [*parts, listing, tail, _MAGIC]


def pack_bytes(sections: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a pack in memory.

    Args:
        sections: arrays by name; numbers, Booleans, times, or text of one width.

    Returns:
        What `write_pack` would write.

    Raises:
        DataError: an array holds something else.
    """
    return b"".join(_laid_out(sections))


def write_pack(path: Path, sections: Mapping[str, NDArray[Any]]) -> None:
    """Write a pack beside its place and put it there whole.

    Args:
        path: the file.
        sections: arrays by name.

    Raises:
        DataError: an array holds what a pack does not keep.
        CapacityError: the disk is full; an older file stays.
    """
    with atomic_path(path) as beside, beside.open("wb") as file:
        for part in _laid_out(sections):
            file.write(part)


class Pack:
    """A pack that is read section by section; each is checked when it is.

    Attributes:
        names: of its sections.
        where: what messages call it.
    """

    def __init__(self, payload: Any, where: str = "a pack in memory") -> None:
        """Read the directory.

        Args:
            payload: bytes, or a map of a file.
            where: what messages call it.

        Raises:
            DataError: it is no pack, is cut short, or its directory is damaged.
        """
        self.where, self._payload = where, memoryview(payload)
        self._directory = self._listed()
        self.names = tuple(self._directory)

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

    def _listed(self) -> dict[str, Any]:
        size = len(self._payload)
        if size < _ALIGN + _TAIL_BYTES or bytes(self._payload[-len(_MAGIC) :]) != _MAGIC:
            raise DataError(f"{self.where} is no pack, or is cut short", hint="write it again")
        tail = bytes(self._payload[-_TAIL_BYTES : -len(_MAGIC)])
        place, length = int.from_bytes(tail[:8], "little"), int.from_bytes(tail[8:12], "little")
        listing = bytes(self._payload[place : place + length])
        # The directory ends where the tail begins, or its place is wrong.
        is_whole = place + length + _TAIL_BYTES == size
        if not is_whole or zlib.crc32(listing) != int.from_bytes(tail[12:], "little"):
            raise DataError(f"the directory of {self.where} is damaged", hint="write it again")
        return json.loads(listing)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a section as an array that shares the pack's memory.

        Args:
            name: of the section.

        Returns:
            The array; it cannot be written to.

        Raises:
            DataError: there is none of that name, or its bytes are damaged.
        """
        if name not in self._directory:
            raise DataError(
                f"{self.where} has no section {name!r}", hint=f"it has {', '.join(self.names)}"
            )
        entry = self._directory[name]
        raw = self._payload[entry["offset"] : entry["offset"] + entry["bytes"]]
        if zlib.crc32(raw) != entry["crc32"]:
            raise DataError(f"section {name!r} of {self.where} is damaged", hint="write it again")
        return np.frombuffer(raw, np.dtype(entry["dtype"])).reshape(entry["shape"])

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return all sections."""
        return {name: self[name] for name in self.names}
