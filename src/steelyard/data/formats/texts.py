"""Texts as buffers: their lengths, and their bytes behind each other, compressed where it pays."""

import itertools
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.formats.buffers import EncodedColumn
from steelyard.data.formats.lookup import copy_texts
from steelyard.data.formats.memory import empty
from steelyard.data.formats.streams import encode_integers
from steelyard.data.formats.symbols import (
    SymbolTable,
    compress_texts,
    expand_neighbours,
    expand_texts,
    trained,
)
from steelyard.errors import BackendError

__all__ = ["FRAME_ROWS", "Texts", "encode_texts"]

FRAME_ROWS = 1024
"""Texts in one compressed frame."""
_SPARE = 32
"""Bytes behind texts, so that many can be loaded at once at any place."""
_SAVES = 0.8
"""Share of the bytes from which compressing them is worth the time."""
_LEVEL = 3
_LEAST_BYTES = 512
_LARGE_BYTES, _SLOWER_SAVES = 1 << 16, 1.1
"""Large dictionaries are kept by pieces, read four times as fast, unless zstd saves so much."""


def _codec() -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise BackendError(
            "texts are compressed with Arrow, which is not installed",
            hint="pip install 'steelyard[data]'",
        ) from error
    return pa.Codec("zstd", _LEVEL)


def encode_texts(
    lengths: NDArray[np.int64], heap: NDArray[np.uint8], *, compress: str, whole: bool = False
) -> list[Any]:
    """Return texts as buffers.

    Args:
        lengths: bytes of each, [texts].
        heap: their bytes, [bytes].
        compress: "auto" by frequent pieces, and a dictionary by zstd where that is much smaller,
            where that saves a fifth; "always" by zstd, or "never".
        whole: they are a dictionary, which is read at once.

    Returns:
        Lengths, sizes of zstd's frames (none where there are none), pieces (likewise), bytes.
    """
    if compress == "never" or (compress == "auto" and len(heap) < _LEAST_BYTES):
        return [encode_integers(lengths), b"", b"", _spared(heap)]
    if compress == "auto" and not whole:
        return _by_pieces(lengths, heap)
    step = max(len(lengths), 1) if whole else FRAME_ROWS
    ends = np.concatenate([[0], np.cumsum(lengths)])
    cuts = [*ends[::step].tolist(), int(ends[-1])]
    codec = _codec()
    frames = [
        codec.compress(heap[first:last], asbytes=True) for first, last in itertools.pairwise(cuts)
    ]
    size = sum(map(len, frames))
    if compress == "auto" and len(heap) > _LARGE_BYTES:
        pieces = _by_pieces(lengths, heap)
        if sum(map(len, pieces[1:])) < _SLOWER_SAVES * size:
            return pieces
    if compress == "auto" and size > _SAVES * len(heap):
        return [encode_integers(lengths), b"", b"", _spared(heap)]
    sizes = np.array([len(frame) for frame in frames], "<u4")
    return [encode_integers(lengths), sizes, b"", b"".join(frames)]


def _by_pieces(lengths: NDArray[np.int64], heap: NDArray[np.uint8]) -> list[Any]:
    """Return texts by frequent pieces, or as they are where that saves little."""
    words, sizes = trained(lengths, heap)
    codes, raw = compress_texts(lengths, heap, (words, sizes))
    if len(raw) > _SAVES * len(heap):
        return [encode_integers(lengths), b"", b"", _spared(heap)]
    return [encode_integers(codes), b"", words.tobytes() + sizes.tobytes(), raw]


def _spared(heap: NDArray[np.uint8]) -> bytes:
    """Return bytes with some behind."""
    return heap.tobytes() + bytes(_SPARE)


class Texts:
    """Texts in four buffers of a chunk, from one of them on."""

    def __init__(self, chunk: EncodedColumn, first: int, *, whole: bool = False) -> None:
        """Point to the buffers.

        Args:
            chunk: that holds them.
            first: number of the first buffer.
            whole: whether all are in one frame.
        """
        self._chunk, self._first, self._whole = chunk, first, whole

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Return where texts begin, and the end of the last."""
        lengths = self._chunk.stream(self._first)
        ends = empty(lengths.count + 1, np.int64)
        ends[0] = 0
        np.cumsum(lengths.decode(0, lengths.count), out=ends[1:])
        return ends

    def _pieces(self) -> SymbolTable | None:
        """Return frequent pieces, None where there are none."""
        raw = self._chunk.raw(self._first + 2)
        count = len(raw) // 9
        return (raw[: 8 * count].view("<u8"), raw[8 * count :]) if count else None

    def decode(self, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return neighbouring texts.

        Args:
            first: first text, a multiple of 1,024.
            last: one past the last.

        Returns:
            Where each begins and the end of the last, from 0, [last - first + 1]; their bytes with
            some behind.
        """
        ends = self._ends
        begin, end = int(ends[first]), int(ends[last])
        sizes = self._chunk.raw(self._first + 1).view("<u4")
        pieces = self._pieces()
        if pieces is not None:
            raw = self._chunk.raw(self._first + 3, begin, end)
            return expand_neighbours(raw, ends[first : last + 1], pieces)
        if not len(sizes):
            heap = self._chunk.raw(self._first + 3, begin, end + _SPARE)
            return ends[first : last + 1] - begin, heap[begin : end + _SPARE]
        step = max(len(ends) - 1, 1) if self._whole else FRAME_ROWS
        frames = range(first // step, -(-last // step))
        heap = empty(end - begin + _SPARE, np.uint8)
        for frame, raw in zip(frames, self._frames(frames, sizes, ends, step), strict=True):
            at = int(ends[frame * step]) - begin
            size = min(len(raw), end - begin - at)
            heap[at : at + size] = raw[:size]
        return ends[first : last + 1] - begin, heap

    def _frames(
        self, frames: range, sizes: NDArray[Any], ends: NDArray[np.int64], step: int
    ) -> "list[NDArray[np.uint8]]":
        """Return the bytes of some frames."""
        codec, places = _codec(), np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        found = []
        for frame in frames:
            first, last = int(places[frame]), int(places[frame + 1])
            raw = self._chunk.raw(self._first + 3, first, last)[first:last]
            stop = min((frame + 1) * step, len(ends) - 1)
            size = int(ends[stop] - ends[frame * step])
            found.append(np.frombuffer(codec.decompress(raw, size), np.uint8))
        return found

    def take(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return single texts.

        Args:
            rows: which, [rows].

        Returns:
            Where each begins and the end of the last, from 0, [rows + 1]; their bytes with some
            behind.
        """
        ends, pieces = self._ends, self._pieces()
        if pieces is not None:
            raw = self._chunk.raw(self._first + 3)
            return expand_texts(raw, ends, rows.astype(np.int32), pieces)
        lengths = (ends[1:] - ends[:-1])[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        heap = np.empty(int(offsets[-1]) + _SPARE, np.uint8)
        sizes = self._chunk.raw(self._first + 1).view("<u4")
        if not len(sizes):
            raw = self._chunk.raw(self._first + 3)
            copy_texts(raw, ends, rows.astype(np.int32), offsets, heap)
            return offsets, heap
        opened: dict[int, NDArray[np.uint8]] = {}
        for place, row in enumerate(rows.tolist()):
            frame = row // FRAME_ROWS
            if frame not in opened:
                opened[frame] = self._frames(range(frame, frame + 1), sizes, ends, FRAME_ROWS)[0]
            first = int(ends[row] - ends[frame * FRAME_ROWS])
            size = int(lengths[place])
            heap[offsets[place] : offsets[place] + size] = opened[frame][first : first + size]
        return offsets, heap
