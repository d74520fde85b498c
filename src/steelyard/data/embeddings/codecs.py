"""What is kept of a vector: single or half precision, or bytes with a scale."""

from functools import partial
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError

__all__ = ["ByteRows", "FloatRows", "RowCodec", "RowKind", "row_codec"]

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]
RowKind = Literal["fp32", "fp16", "int8"]


class RowCodec(Protocol):
    """Vectors into bytes of one length and back."""

    @property
    def number(self) -> int:
        """Which of the kernels' ways to decode it takes."""
        ...

    @property
    def row_bytes(self) -> int:
        """Bytes of a vector."""
        ...

    def encode(self, rows: Floats) -> Codes:
        """Return codes [N, row_bytes] of vectors [N, D]."""
        ...

    def decode(self, codes: Codes) -> Floats:
        """Return the vectors [N, D] that codes stand for."""
        ...


class FloatRows:
    """Vectors as floats of one type; in half precision numbers above 65,504 are infinite.

    Attributes:
        number: which of the kernels' ways to decode it takes.
        dim: numbers in a vector.
    """

    def __init__(self, dim: int, *, is_half: bool = False) -> None:
        """Take the numbers in a vector and their type.

        Args:
            dim: numbers in a vector.
            is_half: two bytes for each in place of four.
        """
        # Kernels know these numbers; 1 is of bytes with a scale, 2 of residual codes.
        self.number, self._type = (0, np.dtype("<f2")) if is_half else (3, np.dtype("<f4"))
        self.dim = dim

    @property
    def row_bytes(self) -> int:
        """Bytes of a vector."""
        return self._type.itemsize * self.dim

    def encode(self, rows: Floats) -> Codes:
        """Return vectors as bytes [N, row_bytes]."""
        kept = np.ascontiguousarray(rows, self._type)
        return kept.view(np.uint8).reshape(len(rows), self.row_bytes)

    def decode(self, codes: Codes) -> Floats:
        """Return vectors [N, D]."""
        found = np.ascontiguousarray(codes).view(self._type)
        return found.astype(np.float32, copy=False).reshape(-1, self.dim)


class ByteRows:
    """Vectors as one scale in float32 and D whole numbers from -127 to 127."""

    number = 1

    def __init__(self, dim: int) -> None:
        """Take the numbers in a vector.

        Args:
            dim: numbers in a vector.
        """
        self.dim = dim

    @property
    def row_bytes(self) -> int:
        """Bytes of a vector."""
        return 4 + self.dim

    def encode(self, rows: Floats) -> Codes:
        """Return scales and rounded numbers; an error is at most half a scale."""
        largest = np.abs(rows).max(axis=1, initial=0.0)
        scales = (np.where(largest > 0, largest, 1.0) / 127).astype("<f4")
        found = np.empty((len(rows), self.row_bytes), np.uint8)
        found[:, :4] = scales[:, None].view(np.uint8)
        found[:, 4:] = np.rint(rows / scales[:, None]).astype(np.int8).view(np.uint8)
        return found

    def decode(self, codes: Codes) -> Floats:
        """Return vectors [N, D]."""
        scales = np.ascontiguousarray(codes[:, :4]).view("<f4")
        return np.ascontiguousarray(codes[:, 4:]).view(np.int8).astype(np.float32) * scales


def row_codec(kind: str, dim: int) -> RowCodec:
    """Return a codec by its name.

    Args:
        kind: "fp32", "fp16" or "int8".
        dim: numbers in a vector.

    Returns:
        The codec.

    Raises:
        ConfigError: there is none of that name.
    """
    kinds = {"fp32": FloatRows, "fp16": partial(FloatRows, is_half=True), "int8": ByteRows}
    if kind not in kinds:
        raise ConfigError(f"vectors kept as {kind!r}", hint=f"give one of {', '.join(kinds)}")
    return kinds[kind](dim)
