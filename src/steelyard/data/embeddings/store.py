"""One file of vectors by place: streamed in, checked block by block, read from any tier."""

import json
import mmap
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from steelyard.data.checksums import word_sum
from steelyard.data.embeddings.codecs import RowCodec, RowKind, row_codec
from steelyard.data.embeddings.kernels import BLOCK_HEAD_BYTES, gather_rows
from steelyard.direct_io import DirectFile, aligned_bytes
from steelyard.errors import CapacityError, ConfigError, DataError
from steelyard.files import atomic_path

__all__ = ["EmbeddingStore", "Tier"]

Floats = NDArray[np.float32]
Tier = Literal["memory", "mmap", "direct"]
_MAGIC, _VERSION = b"STLYEMBD", 1
_HEAD_BYTES = 4096
_BATCH_ROWS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layout:
    """How rows lie in the file: as many as fit in a block, none across two."""

    dim: int
    dtype: RowKind
    block_bytes: int
    count: int

    @property
    def codec(self) -> RowCodec:
        """What is kept of a row."""
        return row_codec(self.dtype, self.dim)

    @property
    def rows_per_block(self) -> int:
        """Rows of a block."""
        return (self.block_bytes - BLOCK_HEAD_BYTES) // self.codec.row_bytes


class EmbeddingStore:
    """Vectors by place, from memory, a mapped file, or a drive past the page cache.

    Nothing per row is kept in memory on the tiers "mmap" and "direct".

    Attributes:
        path: the file.
        tier: where rows are read from.
        count: rows.
        dim: numbers in a row.
        dtype: what rows are kept as.
        note: what a user should know of how it is read; empty where all is as asked.
    """

    def __init__(self, path: Path, layout: _Layout, tier: Tier, depth: int) -> None:
        """Open the tier; `open` is what to call."""
        self.path, self.tier, self.note = path, tier, ""
        self.count, self.dim, self.dtype = layout.count, layout.dim, layout.dtype
        self._layout, self._file = layout, None
        self._lock = threading.Lock()
        if tier == "direct":
            self._file = DirectFile.open(path, align=layout.block_bytes)
            if not self._file.is_direct:
                self.note = f"reads go through the page cache: {self._file.note}"
            self._raw = [aligned_bytes(layout.block_bytes) for _ in range(depth)]
            self._threads = ThreadPoolExecutor(depth, thread_name_prefix="rows")
        else:
            self._raw = [_loaded(path, is_mapped=tier == "mmap")]

    @classmethod
    def build(
        cls,
        path: Path,
        parts: Iterable[NDArray[np.generic]],
        *,
        dtype: RowKind = "fp32",
        block: int = 4096,
    ) -> "EmbeddingStore":
        """Write rows from a stream, a block in memory at a time, and open them.

        Args:
            path: the file; an older one is replaced at the end.
            parts: rows in their order, [n, D] each.
            dtype: what rows are kept as: "fp32", "fp16" or "int8" with a scale per row.
            block: bytes of a block, a multiple of 4,096 that holds a row at least.

        Returns:
            The store, on the tier "mmap".

        Raises:
            ConfigError: the block holds no row, or is no multiple of 4,096.
            DataError: no rows, or rows of another width or not finite (the row is named).
            CapacityError: the disk is full; an older file stays.
        """
        with atomic_path(path) as beside, beside.open("wb") as file:
            file.write(bytes(max(block, _HEAD_BYTES)))
            layout, pending = None, np.empty((0, 0), np.float32)
            for part in parts:
                rows = _checked(part, layout)
                if layout is None:
                    layout = _begun(rows.shape[1], dtype, block)
                    pending = rows[:0]
                layout = _Layout(
                    dim=layout.dim,
                    dtype=dtype,
                    block_bytes=block,
                    count=layout.count + len(rows),
                )
                rows = np.concatenate([pending, rows])
                whole = len(rows) - len(rows) % layout.rows_per_block
                _write(file, layout, rows[:whole])
                pending = rows[whole:].copy()
            if layout is None or not layout.count:
                raise DataError("a store without rows", hint="give one or more")
            _write(file, layout, pending)
            file.seek(0)
            file.write(_head(layout))
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, tier: Tier = "mmap", depth: int = 16) -> "EmbeddingStore":
        """Open a file of `build`.

        Args:
            path: the file.
            tier: "memory" reads all of it, "mmap" maps it, "direct" reads blocks past the page
                cache.
            depth: reads under way at once, of "direct".

        Returns:
            The store.

        Raises:
            ConfigError: the tier is not known, or the depth is out of range.
            DataError: the file is no store, or is cut short.
            CapacityError: it does not fit into memory.
        """
        if tier not in ("memory", "mmap", "direct") or not 1 <= depth <= 256:
            raise ConfigError(
                f"the tier {tier!r} with {depth} reads at once",
                hint="give memory, mmap or direct, and 1 to 256 reads",
            )
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
            size = path.stat().st_size
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error
        if not head.startswith(_MAGIC):
            raise DataError(f"{path} is no store of vectors", hint="write one by build")
        about = json.loads(head[len(_MAGIC) :].rstrip(b"\0"))
        if about.pop("version") != _VERSION:
            raise DataError(f"{path} is of another version than {_VERSION}", hint="write it again")
        layout = _Layout(**about)
        blocks = 1 + -(-layout.count // layout.rows_per_block)
        if size != blocks * layout.block_bytes:
            raise DataError(f"{path} has {size:,} of {blocks * layout.block_bytes:,} bytes")
        return cls(path, layout, tier, depth)

    def __len__(self) -> int:
        """Return how many rows there are."""
        return self.count

    def rows(self, numbers: NDArray[np.integer[Any]]) -> Floats:
        """Return rows; a block that several lie in is read once.

        Args:
            numbers: places of rows from 0, any order, repeats allowed [N].

        Returns:
            float32 [N, D].

        Raises:
            DataError: a row is not there, or its block is damaged (the row is named).
        """
        wanted = np.asarray(numbers, np.int64).reshape(-1)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < self.count):
            bad = wanted[(wanted < 0) | (wanted >= self.count)][0]
            raise DataError(f"there is no row {int(bad)} among {self.count:,}")
        layout = self._layout
        block_of, row_of = np.divmod(wanted, layout.rows_per_block)
        places = np.argsort(block_of, kind="stable")
        blocks, firsts = np.unique(block_of[places], return_index=True)
        bits = np.empty((len(wanted), self.dim), np.uint32)
        values, states = bits.view(np.float32), np.zeros(len(blocks), np.uint8)
        codec = layout.codec
        parts = (
            (layout.block_bytes, codec.row_bytes, self.dim, codec.number),
            blocks + 1,
            np.append(firsts, len(wanted)).astype(np.int64),
            row_of[places],
            places,
            bits,
            values,
            states,
        )
        # The buffers of a tier serve one call at a time.
        with self._lock:
            self._gather(len(blocks), parts)
        if not states.all():
            row = int(blocks[int(states.argmin())]) * layout.rows_per_block
            raise DataError(
                f"the block of rows {row:,} and on in {self.path} is damaged",
                hint="restore the file from a copy",
            )
        return values

    def _gather(self, blocks: int, parts: tuple[Any, ...]) -> None:
        """Read blocks and take rows out of them."""
        if self._file is None:
            gather_rows(self._raw[0], -1, 0, 1, *parts)
            return
        width = min(len(self._raw), blocks)
        work = partial(self._part, width, parts)
        others = [self._threads.submit(work, first) for first in range(1, width)]
        if width:
            work(0)
        for other in others:
            other.result()

    def _part(self, step: int, parts: tuple[Any, ...], first: int) -> None:
        """Read every `step`-th block into a buffer of its own."""
        assert self._file is not None
        gather_rows(self._raw[first], self._file.handle, first, step, *parts)

    def memory_bytes(self) -> int:
        """Return bytes that the tier holds in memory of this process, mapped pages left out."""
        return 0 if self.tier == "mmap" else sum(part.nbytes for part in self._raw)

    def close(self) -> None:
        """Close files, end threads and free memory."""
        if self._file is not None:
            self._threads.shutdown()
            self._file.close()
        self._raw = []

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def _begun(dim: int, dtype: RowKind, block: int) -> _Layout:
    """Return the layout of no rows yet."""
    layout = _Layout(dim=dim, dtype=dtype, block_bytes=block, count=0)
    if block < _HEAD_BYTES or block % _HEAD_BYTES or layout.rows_per_block < 1:
        least = BLOCK_HEAD_BYTES + layout.codec.row_bytes
        raise ConfigError(
            f"blocks of {block:,} bytes for rows of {layout.codec.row_bytes:,}",
            hint=f"give a multiple of {_HEAD_BYTES:,} of {least:,} or more",
        )
    return layout


def _checked(part: NDArray[np.generic], layout: _Layout | None) -> Floats:
    """Return rows as float32."""
    rows, done = np.asarray(part, np.float32), layout.count if layout else 0
    if rows.ndim != 2 or not rows.shape[1] or (layout and rows.shape[1] != layout.dim):
        raise DataError(
            f"rows {done:,} and on are {list(rows.shape)}",
            hint="give rows [n, D], all of one width",
        )
    is_finite = np.isfinite(rows).all(axis=1)
    if not is_finite.all():
        raise DataError(f"row {done + int(is_finite.argmin()):,} is not finite")
    return rows


def _write(file: Any, layout: _Layout, rows: Floats) -> None:
    """Write whole blocks of rows; the last may be filled up with zeros."""
    per_block, codec = layout.rows_per_block, layout.codec
    number = file.tell() // layout.block_bytes
    for first in range(0, len(rows), per_block):
        codes = codec.encode(rows[first : first + per_block])
        found = np.zeros(layout.block_bytes, np.uint8)
        found[BLOCK_HEAD_BYTES : BLOCK_HEAD_BYTES + codes.size] = codes.reshape(-1)
        words = found.view("<u8")
        low = number & 0xFFFFFFFF
        words[0] = (int(word_sum(words[1:], found[:0])) ^ low) | (low << 32)
        file.write(found.data)
        number += 1


def _head(layout: _Layout) -> bytes:
    """Return the first bytes of the file."""
    about = {
        "version": _VERSION,
        "dim": layout.dim,
        "dtype": layout.dtype,
        "block_bytes": layout.block_bytes,
        "count": layout.count,
    }
    return _MAGIC + json.dumps(about).encode().ljust(_HEAD_BYTES - len(_MAGIC), b"\0")


def _loaded(path: Path, *, is_mapped: bool) -> NDArray[np.uint8]:
    """Return the bytes of a file, mapped or read."""
    try:
        with path.open("rb") as file:
            if is_mapped:
                # Nothing is written; but a map that may be written to is the same type for the
                # kernel as memory, which then is compiled once.
                return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
            return np.fromfile(file, np.uint8)
    except MemoryError as error:
        raise CapacityError(f"no memory for {path}", hint="take the tier mmap or direct") from error
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
