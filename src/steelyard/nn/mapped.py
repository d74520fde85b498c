"""Safetensors files as memory maps: checked headers, and tensors that are views of the file."""

import errno
import itertools
import json
import math
import mmap
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from steelyard.errors import DataError
from steelyard.files import atomic_path, read_json
from steelyard.nn.stored import ROWS, StoredMatrix

__all__ = ["Entry", "MappedFile", "Weights", "write_tensors"]

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SIZES = {
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
}
"""Bytes of the types that files may hold beside those of weights."""
_ITEM_BYTES = {name: dtype.itemsize for name, dtype in DTYPES.items()} | SIZES
_MOST_HEADER_BYTES = 100_000_000
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor stands in its file.

    Attributes:
        dtype: type as the file names it, such as "BF16".
        shape: sizes of the tensor's axes.
        start: first byte in the file.
        stop: byte after the last.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class MappedFile:
    """One safetensors file, or one of another format whose header was read elsewhere.

    The map is private: writing to a tensor changes memory, never the file. Replacing the file by
    renaming leaves the map as it was; cutting it short while it is mapped would end the process, as
    with any map.

    Attributes:
        path: path of the file.
        entries: where each tensor stands, by name.

    Source: format description of safetensors (huggingface.co/docs/safetensors).
    """

    def __init__(self, path: Path, entries: dict[str, Entry] | None = None) -> None:
        """Check the header and map the file.

        Args:
            path: path of the file.
            entries: where tensors stand in a file of another format, whose header was checked;
                read from the header when left out.

        Raises:
            DataError: it is missing, no regular file, truncated, or its header is malformed or
                contradicts the file.
        """
        self.path = path
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise DataError(
                    f"{path} is not a regular file", hint="give a folder with plain files"
                )
            with path.open("rb") as stream:
                self.entries = (
                    _header(path, stream.read(8), stream, path.stat().st_size)
                    if entries is None
                    else entries
                )
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError as error:
            raise DataError(f"{path} is missing", hint="fetch or save the model again") from error
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path} cannot be mapped: {error}", hint="check its permissions"
            ) from error

    def view(self, names: Sequence[str]) -> Tensor | None:
        """Return tensors of this file, stacked row after row, without a copy.

        Args:
            names: names of tensors of one dtype of `DTYPES` and equal width.

        Returns:
            [rows, ...] of all, or None when they do not follow each other in the file, or not at a
            multiple of their item's size.
        """
        parts = [self.entries[name] for name in names]
        first, dtype = parts[0], DTYPES[parts[0].dtype]
        follows = all(before.stop == after.start for before, after in itertools.pairwise(parts))
        if (
            not follows
            or first.start % dtype.itemsize
            or any(part.dtype != first.dtype for part in parts)
        ):
            return None
        count = (parts[-1].stop - first.start) // dtype.itemsize
        if count == 0:
            return torch.empty(0, *first.shape[1:], dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=first.start).view(
            -1, *first.shape[1:]
        )

    def read(self, name: str) -> Tensor:
        """Return one tensor, as a view where its place allows it."""
        found = self.view([name])
        if found is not None:
            return found
        entry = self.entries[name]
        raw = bytearray(self._map[entry.start : entry.stop])
        return torch.frombuffer(raw, dtype=DTYPES[entry.dtype]).view(entry.shape)

    def matrix(self, name: str, *, transposed: bool = False) -> StoredMatrix:
        """Return a tensor of two axes, to be read later.

        Args:
            name: its name.
            transposed: whether its rows are columns here.

        Returns:
            Plain numbers of the stored type.
        """
        rows, columns = self.entries[name].shape

        def read() -> Tensor:
            found = self.read(name)
            return found.T if transposed else found

        return StoredMatrix(
            shape=(columns, rows) if transposed else (rows, columns),
            kind="",
            numbers=lambda: iter(read().split(ROWS)),
            release=lambda: self.release(name),
            rows=lambda index: read()[index],
            plain_dtype=DTYPES[self.entries[name].dtype],
        )

    def raw(self, name: str) -> Tensor:
        """Return the bytes of one tensor as they stand in the file, uint8 [bytes], a view."""
        entry = self.entries[name]
        return torch.frombuffer(
            self._map, dtype=torch.uint8, count=entry.stop - entry.start, offset=entry.start
        )

    def release(self, name: str) -> None:
        """Let go of the memory behind a tensor that was copied; a later read fetches it again."""
        # Whole pages only, rounded inwards: the first and last may hold parts of other tensors,
        # which may be views that someone wrote to.
        entry, page = self.entries[name], mmap.PAGESIZE
        start, stop = -(-entry.start // page) * page, entry.stop // page * page
        if stop > start and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)


def write_tensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file atomically.

    Args:
        path: file to make or replace.
        tensors: contiguous tensors by name; they may live on any device.
        metadata: text fields of the header.

    Raises:
        CapacityError: the disk is full; `path` is left as it was.
    """
    with atomic_path(path) as temporary:
        try:
            save_file(tensors, temporary, metadata)
        except SafetensorError as error:
            # The library has one class for all errors. What happened stands in the words alone, by
            # its version as "No space left on device (os error 28)" or "Os { code: 28, ... }".
            words = str(error)
            number = re.search(r"(?:os error|code:) (\d+)", words)
            other = errno.ENOSPC if "No space left" in words else errno.EIO
            raise OSError(int(number[1]) if number else other, words) from error


class Weights:
    """All weight files of a model folder.

    Attributes:
        files: file of each tensor, by tensor name.
    """

    def __init__(self, directory: Path, weights: str, index: str) -> None:
        """Find, check and map the files.

        Args:
            directory: folder of the model.
            weights: name of the file that holds everything.
            index: name of the file that lists shards, read when there is no such file.

        Raises:
            DataError: files are missing, malformed, outside the folder, or name a tensor twice.
        """
        self.files: dict[str, MappedFile] = {}
        places = None if (directory / weights).exists() else _places(directory, weights, index)
        for name in [weights] if places is None else sorted(set(places.values())):
            mapped = MappedFile(_confined(directory, name))
            twice = self.files.keys() & mapped.entries.keys()
            if twice:
                raise DataError(
                    f"{mapped.path} holds {min(twice)} again, which another shard has",
                    hint="fetch or save the model again",
                )
            self.files |= dict.fromkeys(mapped.entries, mapped)
        for tensor, name in (places or {}).items():
            if tensor not in self.files or self.files[tensor].path.name != name:
                raise DataError(
                    f"{directory / index} places {tensor} in {name}, which lacks it",
                    hint="fetch or save the model again",
                )

    def entry(self, name: str) -> Entry:
        """Return where a tensor stands."""
        return self.files[name].entries[name]

    def view(self, names: Sequence[str]) -> Tensor | None:
        """Return stacked tensors as `MappedFile.view` does; None also when files differ."""
        file = self.files[names[0]]
        return file.view(names) if all(self.files[name] is file for name in names) else None


def _places(directory: Path, weights: str, index: str) -> dict[str, str]:
    """Read which shard holds which tensor; say what is there instead when there are no shards."""
    if not (directory / index).exists():
        pickles = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
        hint = (
            "only safetensors weights are read; convert the model with transformers' "
            "save_pretrained(safe_serialization=True)"
        )
        there = (
            f"; it holds only pickled weights ({', '.join(pickles[:3])}), which can run code when "
            f"they are opened"
            if pickles
            else ""
        )
        raise DataError(f"{directory / weights} is missing{there}", hint=hint)
    content = read_json(directory / index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if (
        not isinstance(places, dict)
        or not places
        or not all(isinstance(name, str) for name in places.values())
    ):
        raise DataError(
            f"{directory / index} has no weight_map from tensors to files",
            hint="fetch or save the model again",
        )
    return places


def _confined(directory: Path, name: str) -> Path:
    """Return the path of a weight file, refusing what leads out of the folder."""
    path = directory / name
    if Path(name).name != name or name in ("", ".", ".."):
        raise DataError(
            f"{directory}: shard {name!r} is not a plain file name",
            hint="shards must stand beside their index",
        )
    # A hub's cache holds a snapshot as links into the `blobs` folder beside it.
    home = directory.resolve()
    allowed = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
    if path.is_symlink() and not any(path.resolve().is_relative_to(folder) for folder in allowed):
        raise DataError(
            f"{path} is a link to {path.resolve()}, outside the folder",
            hint="copy the file into the folder",
        )
    return path


def _header(path: Path, prefix: bytes, stream: Any, file_bytes: int) -> dict[str, Entry]:
    """Read a header and check it against the file's size."""

    def refuse(reason: str) -> DataError:
        return DataError(
            f"{path} is not a readable safetensors file: {reason}", hint="fetch or save it again"
        )

    size = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or size > min(file_bytes - 8, _MOST_HEADER_BYTES):
        raise refuse(
            f"a header of {size} bytes does not fit a file of {file_bytes}, of which at most "
            f"{_MOST_HEADER_BYTES} are allowed"
        )
    try:
        raw = json.loads(stream.read(size), object_pairs_hook=_unique)
        if not isinstance(raw, dict):
            raise ValueError("the header is not an object")
        raw.pop("__metadata__", None)
        entries = {name: _entry(name, value, 8 + size) for name, value in raw.items()}
    except (ValueError, RecursionError) as error:
        raise refuse(str(error)) from error
    # Tensors must follow each other without gap or overlap: a header that lies about its offsets
    # could show one tensor's bytes as another's.
    end = 8 + size
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != end:
            raise refuse(
                f"tensor {name} begins at byte {entry.start}, but the one before ends at {end}"
            )
        end = entry.stop
    if end != file_bytes:
        raise refuse(
            f"its tensors end at byte {end}, the file at {file_bytes}; it is truncated or has a "
            f"tail"
        )
    return entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object, refusing a name that comes twice."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name comes twice in the header")
    return made


def _entry(name: str, value: Any, base: int) -> Entry:
    """Check one tensor's record; offsets are counted from `base`."""
    fields = value if isinstance(value, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if dtype not in _ITEM_BYTES:
        raise ValueError(f"tensor {name} has the unknown dtype {dtype!r}")
    if not (_is_counts(shape) and _is_counts(offsets) and len(offsets) == 2):
        raise ValueError(f"tensor {name} has the shape {shape} and the offsets {offsets}")
    expected = math.prod(shape) * _ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != expected:
        raise ValueError(
            f"tensor {name} of {dtype} {shape} needs {expected} bytes, but has the offsets "
            f"{offsets}"
        )
    return Entry(dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _is_counts(value: Any) -> TypeGuard[list[int]]:
    """Whether a value is a list of whole numbers from 0."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
