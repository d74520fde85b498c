"""Bytes into vectors, and blocks of vectors from memory or a drive, without Python's lock."""

from typing import Any

import numpy as np

from steelyard.data.checksums import word_sum
from steelyard.direct_io import read_at
from steelyard.jit import njit, njit_inner

__all__ = ["BLOCK_HEAD_BYTES", "gather_rows", "half_to_float"]

BLOCK_HEAD_BYTES = 8
"""Of a block: its checksum, and the number of the block, which tells a misplaced read."""
_HEAD = BLOCK_HEAD_BYTES
_HALF_SCALE = np.float32(2.0**112)
"""Moves the exponent of half precision, 5 bits around 15, to that of single, 8 bits around 127."""


@njit_inner()
def half_to_float(words: np.ndarray, bits: np.ndarray, values: np.ndarray) -> None:
    """Turn float16 words into float32 values.

    Args:
        words: uint16 [N], finite numbers.
        bits: uint32 [N], the same memory as `values`.
        values: float32 [N], filled in.
    """
    for place in range(len(words)):
        word = np.uint32(words[place])
        bits[place] = ((word & np.uint32(0x7FFF)) << np.uint32(13)) | (
            (word & np.uint32(0x8000)) << np.uint32(16)
        )
    # Numbers below the smallest normal one come out right too, by the multiplication.
    for place in range(len(words)):
        values[place] *= _HALF_SCALE


@njit()
def gather_rows(
    raw: np.ndarray,
    handle: int,
    first: int,
    step: int,
    layout: Any,
    blocks: np.ndarray,
    starts: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    bits: np.ndarray,
    values: np.ndarray,
    states: np.ndarray,
) -> None:
    """Read every `step`-th of some blocks, and take the wanted rows out of each.

    Args:
        raw: uint8: the whole file, or a page-aligned buffer of a block where a file is read.
        handle: descriptor of the file; below 0 where `raw` is the file.
        first: the first of the blocks.
        step: from one to the next.
        layout: bytes of a block, of a row, numbers of a row, and number of the codec.
        blocks: which blocks [B]; the file's first one is its head.
        starts: first wanted row of each block [B + 1].
        rows: place of each wanted row in its block [N].
        places: where it goes in `values` [N].
        bits: uint32 [N, D], the same memory as `values`.
        values: float32 [N, D], filled in.
        states: uint8 [B], 1 for a block that is whole.
    """
    block_bytes, row_bytes, dim, kind = layout
    for spot in range(first, len(blocks), step):
        offset = blocks[spot] * block_bytes
        if handle >= 0:
            if read_at(handle, raw.ctypes.data, block_bytes, offset) != block_bytes:
                continue
            offset = 0
        own = raw[offset : offset + block_bytes]
        words = own.view(np.uint64)
        told = np.int64(words[0] & np.uint64(0xFFFFFFFF))
        number = np.int64(words[0] >> np.uint64(32))
        if told != np.int64(word_sum(words[1:], own[:0])) ^ number:
            continue
        if number != blocks[spot] & 0xFFFFFFFF:
            continue
        states[spot] = 1
        for wanted in range(starts[spot], starts[spot + 1]):
            begin, place = _HEAD + rows[wanted] * row_bytes, places[wanted]
            code = own[begin : begin + row_bytes]
            if kind == 0:
                half_to_float(code.view(np.uint16), bits[place], values[place])
            elif kind == 1:
                scale = code[:4].view(np.float32)[0]
                numbers = code[4:].view(np.int8)
                for at in range(dim):
                    values[place, at] = np.float32(numbers[at]) * scale
            else:
                numbers_ = code.view(np.float32)
                for at in range(dim):
                    values[place, at] = numbers_[at]
