"""Erasure codes: data in k blocks, and m more from which any m lost ones are made again."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from steelyard.errors import DataError, DataLostError, require
from steelyard.jit import njit

__all__ = ["ErasureCode"]

_FIELD = 256
_POLYNOMIAL = 0x11D
"""x^8 + x^4 + x^3 + x^2 + 1, of which 2 is a generator."""


def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Return the products uint8 [256, 256] and the inverses uint8 [256] of GF(256)."""
    power = np.zeros(2 * _FIELD, np.int64)
    log = np.zeros(_FIELD, np.int64)
    value = 1
    for exponent in range(_FIELD - 1):
        power[exponent] = power[exponent + _FIELD - 1] = value
        log[value] = exponent
        value <<= 1
        if value >= _FIELD:
            value ^= _POLYNOMIAL
    product = power[log[:, None] + log[None, :]].astype(np.uint8)
    product[0], product[:, 0] = 0, 0  # zero has no logarithm
    inverse = power[(_FIELD - 1 - log) % (_FIELD - 1)].astype(np.uint8)
    inverse[0] = 0
    return product, inverse


_PRODUCT, _INVERSE = _tables()


@njit()
def _combine(matrix, blocks, product, out):  # pragma: no cover
    """Write matrix [A, K] times blocks [K, N] over GF(256) to out [A, N]."""
    # Pieces of 4 KiB stay in the nearest cache while every block is added to them.
    for start in range(0, blocks.shape[1], 4096):
        stop = min(start + 4096, blocks.shape[1])
        for row in range(matrix.shape[0]):
            for column in range(matrix.shape[1]):
                factor = matrix[row, column]
                if factor == 1:
                    for place in range(start, stop):
                        out[row, place] ^= blocks[column, place]
                elif factor != 0:
                    line = product[factor]
                    for place in range(start, stop):
                        out[row, place] ^= line[blocks[column, place]]


def _inverted(matrix: np.ndarray) -> np.ndarray:
    """Invert a matrix uint8 [K, K] over GF(256); one of a Cauchy code always has an inverse."""
    size = len(matrix)
    work = np.concatenate([matrix, np.eye(size, dtype=np.uint8)], axis=1)
    for column in range(size):
        pivot = column + int(np.flatnonzero(work[column:, column])[0])
        work[[column, pivot]] = work[[pivot, column]]
        work[column] = _PRODUCT[_INVERSE[work[column, column]], work[column]]
        for row in range(size):
            if row != column and work[row, column]:
                work[row] ^= _PRODUCT[work[row, column], work[column]]
    return work[:, size:]


@dataclass(frozen=True, kw_only=True, slots=False)
class ErasureCode:
    """k blocks of data and m of parity; any k of the k + m hold everything.

    One parity block is the XOR of the data. More follow a Cauchy matrix over GF(256), all of whose
    square parts have an inverse.

    Attributes:
        data: blocks of data k, 1 to 255.
        parity: blocks of parity m, 0 to 255; k + m is at most 256.

    Raises:
        ConfigError: a count is out of range.

    Source: Reed and Solomon 1960; Bloemer et al. 1995 (Cauchy matrix); arXiv 2310.12670 (XOR of
        shards in the memory of peers).
    """

    data: int
    parity: int

    def __post_init__(self) -> None:
        require(
            self,
            data=(1 <= self.data < _FIELD, "in [1, 255]"),
            parity=(0 <= self.parity <= _FIELD - self.data, f"in [0, {_FIELD - self.data}]"),
        )

    @property
    def overhead(self) -> float:
        """Bytes kept for each byte of data: (k + m) / k."""
        return (self.data + self.parity) / self.data

    @cached_property
    def matrix(self) -> np.ndarray:
        """What makes all blocks of the data, uint8 [k + m, k]: the data first, then parity."""
        rows = np.arange(self.data, self.data + self.parity, dtype=np.uint8)
        columns = np.arange(self.data, dtype=np.uint8)
        parity = _INVERSE[rows[:, None] ^ columns[None, :]]
        if self.parity == 1:
            parity = np.ones((1, self.data), np.uint8)
        return np.concatenate([np.eye(self.data, dtype=np.uint8), parity])

    def encode(self, blocks: np.ndarray) -> np.ndarray:
        """Make the parity of some data.

        Args:
            blocks: uint8 [k, N]; N may be 0.

        Returns:
            Parity, uint8 [m, N].

        Raises:
            DataError: the blocks have another shape or type.
        """
        if blocks.dtype != np.uint8 or blocks.ndim != 2 or len(blocks) != self.data:
            raise DataError(
                f"blocks are {blocks.dtype} of shape {blocks.shape}, but must be uint8 "
                f"[{self.data}, N]",
                hint="cut the bytes with ErasureCode.split",
            )
        return _product_of(self.matrix[self.data :], blocks)

    def split(self, content: bytes | memoryview) -> np.ndarray:
        """Cut bytes into k equal blocks, the last filled with zeros; uint8 [k, N]."""
        size = -(-len(content) // self.data)
        blocks = np.zeros(self.data * size, np.uint8)
        blocks[: len(content)] = np.frombuffer(content, np.uint8)
        return blocks.reshape(self.data, size)

    def decode(self, blocks: Mapping[int, np.ndarray], wanted: int | None = None) -> np.ndarray:
        """Make lost blocks again.

        Args:
            blocks: what is left, uint8 [N] by number: data are 0 to k - 1, parity follows. More
                than k are not needed.
            wanted: number of the one block to make; None for all data.

        Returns:
            Data uint8 [k, N], or the block uint8 [N].

        Raises:
            DataError: a number is none of the code's, or blocks differ in length.
            DataLostError: fewer than k blocks are left.
        """
        total = self.data + self.parity
        wrong = [number for number in (*blocks, wanted or 0) if not 0 <= number < total]
        if wrong or len({len(block) for block in blocks.values()}) > 1:
            raise DataError(
                f"blocks {sorted(blocks)} of a code of {total}, with lengths "
                f"{sorted({len(block) for block in blocks.values()})}",
                hint="give blocks of one encoding",
            )
        if len(blocks) < self.data:
            raise DataLostError(
                f"{len(blocks)} blocks are left, but {self.data} are needed",
                hint="bring back a holder of another block",
            )
        kept = sorted(blocks)[: self.data]
        have = np.stack([blocks[number] for number in kept])
        back = _inverted(self.matrix[kept])
        if wanted is None:
            return _product_of(back, have)
        row = _product_of(self.matrix[wanted : wanted + 1], back)
        return _product_of(row, have)[0]


def _product_of(matrix: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Multiply over GF(256): uint8 [A, K] by [K, N]."""
    out = np.zeros((len(matrix), blocks.shape[1]), np.uint8)
    _combine(np.ascontiguousarray(matrix), np.ascontiguousarray(blocks), _PRODUCT, out)
    return out
