"""One tensor of a GGUF file: its rows in our order, as numbers or as codes."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from steelyard.catalog.architecture import Architecture
from steelyard.nn.gguf.architecture import has_turned_heads
from steelyard.nn.gguf.blocks import block_codes, int4_groups, is_nibbles, unpack
from steelyard.nn.gguf.header import GgufHeader
from steelyard.nn.gguf.kinds import TensorKind
from steelyard.nn.mapped import DTYPES, MappedFile
from steelyard.nn.numerics.blocks import joined_blocks
from steelyard.nn.stored import Codes, StoredMatrix

__all__ = ["StoredTensor", "read_rows"]

_CHUNK_WEIGHTS = 2**19
"""Weights unpacked at once: their codes and float32 values stay in a processor's cache."""


def read_rows(raw: Tensor, kind: TensorKind) -> Tensor:
    """Turn stored rows into numbers.

    Args:
        raw: uint8 [rows, bytes].
        kind: type of the tensor.

    Returns:
        [rows, columns], of the stored type where it is a plain one, else float32.
    """
    if kind.name in DTYPES:
        return raw.contiguous().view(DTYPES[kind.name])
    return unpack(raw, kind).dequantize()


class StoredTensor:
    """A tensor of one or two axes.

    Attributes:
        name: name in the file.
        rows: rows; a vector is one row, or one number each where its order is another than ours.
    """

    def __init__(self, file: MappedFile, header: GgufHeader, name: str, arch: Architecture) -> None:
        """Find it.

        Args:
            file: the mapped file.
            header: its header, which has the tensor.
            name: name of the tensor.
            arch: architecture of the model.
        """
        self._file, self.name = file, name
        self._tensor = header.tensors[name]
        turned = has_turned_heads(header, name)
        shape = self._tensor.shape
        self.rows = shape[0] if len(shape) == 2 or turned else 1
        heads = arch.num_kv_heads if ".attn_k." in name else arch.num_heads
        self._order = _order(self.rows, heads) if turned else None
        # Files hold the factor of a gain, ours what it is beyond 1.
        self._offset = 1.0 if arch.unit_offset_norm and len(shape) == 1 else 0.0

    def holds(self, dtype: torch.dtype) -> bool:
        """Whether the file has just our numbers, of a type and in our order."""
        same = DTYPES.get(self._tensor.kind.name) == dtype
        return same and self._order is None and not self._offset

    def matrix(self) -> StoredMatrix:
        """Return the tensor, to be read later.

        Returns:
            Plain numbers, or the codes of the file, which products take as they are.
        """
        rows, columns = self._tensor.shape
        kind = self._tensor.kind
        is_plain = kind.name in DTYPES
        return StoredMatrix(
            shape=(rows, columns),
            kind="" if is_plain else ("int4" if is_nibbles(kind) else "int8"),
            numbers=self.numbers,
            release=self.release,
            codes=None if is_plain else self._codes,
            rows=self.some,
            plain_dtype=DTYPES.get(kind.name),
        )

    def _codes(self) -> Codes | None:
        """Return the codes; None where a scale is infinite or NaN, which roundings refuse."""
        if self._tensor.kind.name == "Q4_0":
            groups = int4_groups(self._taken())
            return groups if bool(groups.scales.isfinite().all()) else None
        step = max(1, _CHUNK_WEIGHTS // self._tensor.shape[1])
        found = joined_blocks(
            [
                block_codes(self._taken(slice(first, first + step)), self._tensor.kind)
                for first in range(0, self.rows, step)
            ]
        )
        beside = [found.scales] if found.lows is None else [found.scales, found.lows]
        return found if all(bool(item.isfinite().all()) for item in beside) else None

    def numbers(self) -> Iterator[Tensor]:
        """Return the rows in our order, some at a time, as numbers [n, columns]."""
        step = max(1, _CHUNK_WEIGHTS * self.rows // math.prod(self._tensor.shape))
        for first in range(0, self.rows, step):
            found = read_rows(self._taken(slice(first, first + step)), self._tensor.kind)
            yield found.float() - self._offset if self._offset else found

    def some(self, index: Tensor) -> Tensor:
        """Return rows by their numbers, float32 [..., columns] of int64 [...]."""
        found = read_rows(self._taken(index.flatten()), self._tensor.kind)
        return found.float().unflatten(0, index.shape)

    def release(self) -> None:
        """Let go of the memory behind the tensor; a later read fetches it again."""
        self._file.release(self.name)

    def _taken(self, which: slice | Tensor = slice(None)) -> Tensor:
        """Return the bytes of some rows, uint8 [n, bytes]."""
        raw = self._file.raw(self.name).view(self.rows, -1)
        return raw[which] if self._order is None else raw[self._order[which]]


def _order(rows: int, heads: int) -> Tensor:
    """Return which stored row stands at each of ours: the even rows of a head, then the odd."""
    return torch.arange(rows).view(heads, -1, 2).transpose(1, 2).flatten()
