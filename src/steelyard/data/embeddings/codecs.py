"""What is kept of a vector: single or half precision, or bytes with a scale."""

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError

__all__ = ["ByteRows", "FloatRows", "HalfRows", "RowCodec", "RowKind", "row_codec"]

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


class HalfRows:
    """Vectors in half precision, 2 D bytes; numbers above 65,504 are infinite."""

    number = 0

    def __init__(self, dim: int) -> None:
        """Take the numbers in a vector.

        Args:
            dim: numbers in a vector.
        """
        self.dim = dim

    @property
    def row_bytes(self) -> int:
        """Bytes of a vector."""
        return 2 * self.dim

    def encode(self, rows: Floats) -> Codes:
        """Return vectors in half precision [N, 2 D]."""
        narrow = np.ascontiguousarray(rows, "<f2")
        return narrow.view(np.uint8).reshape(len(rows), self.row_bytes)

    def decode(self, codes: Codes) -> Floats:
        """Return vectors [N, D]."""
        return np.ascontiguousarray(codes).view("<f2").astype(np.float32).reshape(-1, self.dim)


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


class FloatRows:
    """Vectors in single precision, 4 D bytes."""

    number = 3

    def __init__(self, dim: int) -> None:
        """Take the numbers in a vector.

        Args:
            dim: numbers in a vector.
        """
        self.dim = dim

    @property
    def row_bytes(self) -> int:
        """Bytes of a vector."""
        return 4 * self.dim

    def encode(self, rows: Floats) -> Codes:
        """Return vectors as bytes [N, 4 D]."""
        return np.ascontiguousarray(rows, "<f4").view(np.uint8).reshape(len(rows), self.row_bytes)

    def decode(self, codes: Codes) -> Floats:
        """Return vectors [N, D]."""
        return np.ascontiguousarray(codes).view("<f4").reshape(-1, self.dim)


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
    kinds = {"fp32": FloatRows, "fp16": HalfRows, "int8": ByteRows}
    if kind not in kinds:
        raise ConfigError(f"vectors kept as {kind!r}", hint=f"give one of {', '.join(kinds)}")
    return kinds[kind](dim)
