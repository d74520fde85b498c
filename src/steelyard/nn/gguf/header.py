"""The header of a GGUF file: fields by key and places of tensors, every number checked."""

import math
import mmap
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from steelyard.errors import DataError
from steelyard.nn.gguf.kinds import KINDS, UNREAD, TensorKind

__all__ = ["GgufHeader", "GgufTensor", "is_gguf", "read_header"]

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_HEADER_BYTES = 100_000_000
"""A vocabulary of 256,000 tokens with its merges takes about 20 million."""
_MOST_FIELDS, _MOST_TENSORS = 65_536, 65_536
_MOST_KEY_BYTES, _MOST_NAME_BYTES = 65_535, 64
_MOST_AXES = 4
_ALIGNMENT = 32
_MOST_ALIGNMENT = 2**20
_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""Types of plain numbers in fields, by their number in the file."""

_LENGTH = struct.Struct("<Q")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor stands.

    Attributes:
        kind: number type.
        shape: sizes of its axes, the contiguous one last.
        start: first byte in the file.
        stop: byte after the last.
    """

    kind: TensorKind
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says before its weights.

    Attributes:
        path: path of the file.
        fields: values by key: text, numbers, booleans, lists of texts, arrays of numbers.
        tensors: where each tensor stands, by name.

    Source: format description of GGUF (github.com/ggml-org/ggml, docs/gguf.md).
    """

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return a field of a type.

        Args:
            key: key of the field.
            kind: str, int, float, bool, list (texts) or np.ndarray (numbers).
            default: value of a field that is not there; None where it has to be.

        Returns:
            The value.

        Raises:
            DataError: the field is missing, or of another type.
        """
        value: Any = self.fields.get(key, default)
        if value is None:
            raise DataError(
                f"{self.path}: field {key!r} is missing", hint="convert or fetch the model again"
            )
        # Python's booleans are whole numbers, and whole numbers are good where any number is.
        fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise DataError(
                f"{self.path}: field {key!r} is {_shown(value)}, not of type {kind.__name__}",
                hint="convert or fetch the model again",
            )
        return cast(T, value)


def is_gguf(path: Path) -> bool:
    """Whether a path is a file that begins as GGUF files do."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> GgufHeader:
    """Read and check the header of a GGUF file of version 2 or 3, little-endian.

    Nothing is taken on trust: counts, lengths and places are compared with the file's size before
    anything of their size is made, and tensors have to follow each other without overlap.

    Args:
        path: path of the file.

    Returns:
        Its fields and the places of its tensors.

    Raises:
        DataError: the file is missing, truncated, no GGUF, or its header is malformed, contradicts
            itself or the file, or names a type that is not read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"{path} is not a regular file", hint="give a plain .gguf file")
        with path.open("rb") as stream:
            if stream.read(4) != MAGIC:
                raise DataError(
                    f"{path} is not a GGUF file: it does not begin with {MAGIC.decode()}",
                    hint="give a .gguf file, or a folder with config.json",
                )
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _read(path, content)
    except FileNotFoundError as error:
        raise DataError(f"no such file: {path}", hint="check the path") from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}", hint="check its permissions"
        ) from error
    except _BadHeaderError as error:
        raise DataError(
            f"{path} is not a readable GGUF file: {error}", hint="fetch or convert it again"
        ) from error


class _BadHeaderError(ValueError):
    """What is wrong with a header."""


class _Cursor:
    """Reads values one after another; what would end beyond the limit is refused.

    Attributes:
        at: next byte.
    """

    def __init__(self, content: mmap.mmap) -> None:
        """Begin after the magic."""
        self._content = content
        self._limit = min(len(content), _MOST_HEADER_BYTES)
        self.at = 4

    def take(self, size: int, what: str) -> int:
        """Step over bytes and return where they began."""
        start = self.at
        if size > self._limit - start:
            ends = "the file ends" if self._limit == len(self._content) else "headers may end"
            raise _BadHeaderError(
                f"{what} at byte {start} needs {size} bytes, but {ends} at byte {self._limit}"
            )
        self.at += size
        return start

    def number(self, code: str, what: str) -> Any:
        """Return a number of a `struct` code."""
        start = self.take(struct.calcsize(code), what)
        return struct.unpack_from(code, self._content, start)[0]

    def count(self, what: str, most: int, item_bytes: int) -> int:
        """Return a count of items, refusing more than allowed or than the bytes left can hold."""
        count = self.number("<Q", what)
        most = min(most, (self._limit - self.at) // item_bytes)
        if count > most:
            raise _BadHeaderError(f"{count} {what}, where at most {most} can be")
        return count

    def text(self, what: str, most_bytes: int = _MOST_HEADER_BYTES) -> str:
        """Return a text of at most so many bytes."""
        size = self.number(_LENGTH.format, what)
        if size > most_bytes:
            raise _BadHeaderError(f"{what} of {size} bytes, where at most {most_bytes} can be")
        start = self.take(size, what)
        try:
            return self._content[start : start + size].decode()
        except UnicodeDecodeError as error:
            raise _BadHeaderError(f"{what} at byte {start} is not UTF-8") from error

    def texts(self) -> list[str]:
        """Return a count and so many texts; vocabularies have hundreds of thousands."""
        count = self.count("texts", _MOST_HEADER_BYTES, _LENGTH.size)
        content, limit, at, found = self._content, self._limit, self.at, []
        for _ in range(count):
            start = at + _LENGTH.size
            stop = start + _LENGTH.unpack_from(content, at)[0] if start <= limit else limit + 1
            if stop > limit:
                break
            try:
                found.append(content[start:stop].decode())
            except UnicodeDecodeError:
                break
            at = stop
        self.at = at
        # The text where the loop ended early is read once more, to say what is wrong with it.
        found += [self.text("a text") for _ in range(count - len(found))]
        return found

    def numbers(self, code: str, count: int, what: str) -> np.ndarray:
        """Return an array of numbers."""
        dtype = np.dtype(code)
        start = self.take(count * dtype.itemsize, what)
        return np.frombuffer(self._content[start : self.at], dtype)


def _read(path: Path, content: mmap.mmap) -> GgufHeader:
    """Read the whole header."""
    cursor = _Cursor(content)
    version = cursor.number("<I", "the version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
        raise _BadHeaderError(
            "it is big-endian; only little-endian files are read"
            if swapped
            else f"it has version {version}; versions that are read: 2, 3"
        )
    # The least bytes of a tensor's record: its name's length, axes, type, offset, one axis.
    num_tensors = cursor.count("tensors", _MOST_TENSORS, 8 + 4 + 8 + 4 + 8)
    num_fields = cursor.count("fields", _MOST_FIELDS, 8 + 4 + 1)
    fields = _unique(num_fields, "key", _MOST_KEY_BYTES, cursor, lambda: _value(cursor))
    records = _unique(num_tensors, "tensor name", _MOST_NAME_BYTES, cursor, lambda: _tensor(cursor))
    alignment = _alignment(fields)
    return GgufHeader(path, fields, _placed(records, cursor.at, alignment, len(content)))


def _unique(
    count: int, what: str, most_bytes: int, cursor: _Cursor, read: Callable[[], T]
) -> dict[str, T]:
    """Read so many named records; none may come twice."""
    found: dict[str, T] = {}
    for _ in range(count):
        name = cursor.text(f"a {what}", most_bytes)
        if name in found:
            raise _BadHeaderError(f"{what} {name!r} comes twice")
        try:
            found[name] = read()
        except _BadHeaderError as error:
            raise _BadHeaderError(f"{name!r}: {error}") from error
    return found


def _value(cursor: _Cursor) -> Any:
    """Read the type of a field and its value."""
    kind = cursor.number("<I", "a type")
    if kind == _STRING:
        return cursor.text("a text")
    if kind in _NUMBERS:
        return cursor.numbers(_NUMBERS[kind], 1, "a number")[0].item()
    if kind != _ARRAY:
        raise _BadHeaderError(f"unknown type {kind} of a field")
    kind = cursor.number("<I", "a type")
    if kind == _STRING:
        return cursor.texts()
    # Arrays of arrays are allowed by the format, but nothing writes them.
    if kind not in _NUMBERS:
        raise _BadHeaderError(f"unknown type {kind} of an array's items")
    item_bytes = np.dtype(_NUMBERS[kind]).itemsize
    return cursor.numbers(_NUMBERS[kind], cursor.count("numbers", 2**62, item_bytes), "an array")


def _tensor(cursor: _Cursor) -> tuple[TensorKind, tuple[int, ...], int]:
    """Read a tensor's type, shape and offset."""
    num_axes = cursor.number("<I", "the number of axes")
    if not 1 <= num_axes <= _MOST_AXES:
        raise _BadHeaderError(f"{num_axes} axes, where 1 to {_MOST_AXES} can be")
    axes = [cursor.number("<Q", "an axis") for _ in range(num_axes)]
    number = cursor.number("<I", "a type")
    if number not in KINDS:
        named = f" ({UNREAD[number]})" if number in UNREAD else ""
        allowed = ", ".join(kind.name for kind in KINDS.values())
        raise _BadHeaderError(f"type {number}{named} is not read; types that are: {allowed}")
    kind = KINDS[number]
    if min(axes) < 1 or axes[0] % kind.block_size:
        raise _BadHeaderError(
            f"the shape {axes} of {kind.name} has an axis of 0 or rows that are not a multiple of "
            f"{kind.block_size}"
        )
    return kind, tuple(reversed(axes)), cursor.number("<Q", "an offset")


def _alignment(fields: dict[str, Any]) -> int:
    """Return the alignment of tensors."""
    value = fields.get("general.alignment", _ALIGNMENT)
    good = type(value) is int and 8 <= value <= _MOST_ALIGNMENT and value & (value - 1) == 0
    if not good:
        raise _BadHeaderError(
            f"general.alignment is {_shown(value)}, but must be a power of 2 from 8 to "
            f"{_MOST_ALIGNMENT}"
        )
    return value


def _placed(
    records: dict[str, tuple[TensorKind, tuple[int, ...], int]],
    header_bytes: int,
    alignment: int,
    file_bytes: int,
) -> dict[str, GgufTensor]:
    """Check where tensors stand; offsets are counted from the aligned end of the header."""
    base = -(-header_bytes // alignment) * alignment
    expected, found = 0, {}
    for name, (kind, shape, offset) in records.items():
        # As in ggml: each begins where the one before ended, so that none shows another's bytes.
        if offset != expected:
            raise _BadHeaderError(
                f"tensor {name!r} has the offset {offset}, where {expected} follows from the "
                f"tensors before it"
            )
        size = math.prod(shape) // kind.block_size * kind.block_bytes
        start = base + offset
        if start + size > file_bytes:
            raise _BadHeaderError(
                f"tensor {name!r} ends at byte {start + size}, the file at {file_bytes}; it is "
                f"truncated"
            )
        found[name] = GgufTensor(kind, shape, start, start + size)
        expected = -(-(offset + size) // alignment) * alignment
    return found


def _shown(value: Any) -> str:
    """Return a value's beginning, for messages."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
