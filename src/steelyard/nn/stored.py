"""Matrices that stay in their files until a product takes them, and modules that read them there.

A model that is served is packed once. Reading each matrix only then, as codes where the file has
codes, keeps memory near what is stored.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.nn.numerics.blocks import BlockCodes, joined_blocks
from steelyard.nn.numerics.int4 import Int4Groups
from steelyard.nn.numerics.int8 import Int8Rows, quantize_int8

__all__ = ["ROWS", "Codes", "StoredLinear", "StoredMatrix", "StoredTable", "joined", "keep_stored"]

_KEPT_ROWS = 16
"""Rows of a table after whose reading its pages are let go."""

Codes = Int4Groups | Int8Rows | BlockCodes
"""Weights as the products read them."""

ROWS = 1024
"""Rows turned into numbers at once: each takes several float32 copies on the way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredMatrix:
    """One matrix of a file, read when asked.

    Attributes:
        shape: rows and columns.
        kind: type of the products it is meant for, "" where it holds plain numbers.
        numbers: returns its rows in order, some at a time, floating point [n, columns].
        release: lets go of the file's pages that were read.
        codes: returns its codes, or None where products do not take them as they are; left out
            where that holds for all of its kind.
        rows: returns rows by their numbers, floating point [..., columns] of int64 [...]; None
            where a file cannot be read row by row.
        plain_dtype: type of plain numbers in the file, None for codes.
    """

    shape: tuple[int, int]
    kind: Literal["", "int4", "int8"]
    numbers: Callable[[], Iterator[Tensor]]
    release: Callable[[], None]
    codes: Callable[[], Codes | None] | None = None
    rows: Callable[[Tensor], Tensor] | None = None
    plain_dtype: torch.dtype | None = None


class StoredLinear(nn.Module):
    """A linear map over matrices that lie in files, stacked row after row.

    Its own forward reads them anew in every call: it is the reference, and what embeds prompts.

    Attributes:
        in_features: columns.
        out_features: rows of all matrices.
        kind: type of the products it is meant for, "" where all matrices hold plain numbers.
        plain_dtype: type of plain numbers in the files, None for codes or where matrices differ.
        bias: [rows], or None.
    """

    bias: nn.Parameter | None

    def __init__(
        self, parts: tuple[StoredMatrix, ...], bias: nn.Parameter | None, dtype: torch.dtype
    ) -> None:
        """Keep the matrices.

        Args:
            parts: equally wide.
            bias: bias of all rows.
            dtype: type in which `weight` returns the numbers.
        """
        super().__init__()
        self._parts, self._dtype = parts, dtype
        self.in_features = parts[0].shape[1]
        self.out_features = sum(part.shape[0] for part in parts)
        kinds = {part.kind for part in parts}
        # One product reads all parts: where they differ, bytes hold what nibbles do, but not
        # the other way round.
        self.kind = kinds.pop() if len(kinds) == 1 else "int8"
        dtypes = {part.plain_dtype for part in parts}
        self.plain_dtype = dtypes.pop() if len(dtypes) == 1 else None
        self.register_parameter("bias", bias)

    @property
    def weight(self) -> Tensor:
        """All numbers [rows, columns] in the model's type, made anew."""
        made = torch.empty(self.out_features, self.in_features, dtype=self._dtype)
        first = 0
        for found in self.numbers():
            made[first : first + len(found)] = found
            first += len(found)
        return made

    def numbers(self) -> Iterator[Tensor]:
        """Return the rows in order, some at a time, floating point [n, columns]."""
        for part in self._parts:
            yield from part.numbers()

    def codes(self) -> Codes:
        """Return all rows as codes.

        Returns:
            What the files hold, where products take it; else all numbers rounded to bytes, with a
            scale per row.
        """
        if self.kind:
            found = [part.codes() if part.codes else None for part in self._parts]
            kept = [item for item in found if item is not None]
            if len(kept) == len(found) and can_join(kept):
                return joined(kept)
        return joined([quantize_int8(rows) for rows in self.numbers()])

    def release(self) -> None:
        """Let go of the memory behind what was read; a later read fetches it again."""
        for part in self._parts:
            part.release()

    def forward(self, rows: Tensor) -> Tensor:
        """Return [..., out_features] of rows [..., in_features]."""
        made = F.linear(rows, self.weight, self.bias)
        self.release()
        return made


class StoredTable(nn.Module):
    """An embedding table whose rows are read from a file as tokens ask for them.

    Attributes:
        matrix: the table [V, C].
        as_linear: the same as an output head.
    """

    def __init__(self, matrix: StoredMatrix, dtype: torch.dtype) -> None:
        """Keep the table.

        Args:
            matrix: one that can be read row by row.
            dtype: type of the rows returned.

        Raises:
            ValueError: the matrix cannot be read row by row.
        """
        super().__init__()
        if matrix.rows is None:
            raise ValueError("a table is read row by row")
        self.matrix, self._rows, self._dtype = matrix, matrix.rows, dtype
        self.as_linear = StoredLinear((matrix,), None, dtype)
        self._num_read = 0

    @property
    def weight(self) -> Tensor:
        """All rows [V, C] in the model's type, made anew."""
        return self.as_linear.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return rows [..., C] of int64 [...], in the model's type."""
        found = self._rows(tokens).to(self._dtype)
        # Each row brings pages beside it into memory, in time the whole table: later reads fetch
        # them again in microseconds, from what the system keeps of the file.
        self._num_read += tokens.numel()
        if self._num_read >= _KEPT_ROWS:
            self.matrix.release()
            self._num_read = 0
        return found


def keep_stored(
    model: nn.Module, name: str, parts: tuple[StoredMatrix, ...], dtype: torch.dtype
) -> None:
    """Let a module of a model read its matrix from files.

    Args:
        model: whose linear map or embedding table is replaced.
        name: name of the weight, such as "layers.0.qkv.weight".
        parts: what its rows are made of.
        dtype: type of the model.
    """
    parent, _, leaf = name.removesuffix(".weight").rpartition(".")
    home = model.get_submodule(parent)
    old = getattr(home, leaf)
    made = (
        StoredTable(parts[0], dtype)
        if isinstance(old, nn.Embedding)
        else StoredLinear(parts, old.bias, dtype)
    )
    setattr(home, leaf, made)


def can_join(records: Sequence[Codes]) -> bool:
    """Whether codes can be stacked without changing a weight.

    Args:
        records: equally wide.

    Returns:
        False where bytes with a scale per row stand beside groups.
    """
    kinds = {type(item) for item in records}
    return len(kinds) == 1 or Int8Rows not in kinds


def joined(records: Sequence[Codes]) -> Codes:
    """Stack codes row after row.

    Args:
        records: codes that `can_join`.

    Returns:
        All rows; groups as long as the shortest.
    """
    if len(records) == 1:
        return records[0]
    if any(isinstance(item, BlockCodes) for item in records):
        return joined_blocks([item for item in records if not isinstance(item, Int8Rows)])
    nibbles = [item for item in records if isinstance(item, Int4Groups)]
    if not nibbles:
        return Int8Rows(*(torch.cat([getattr(item, name) for item in records]) for name in _INT8))
    group = min(item.group for item in nibbles)
    nibbles = [_cut(item, group) for item in nibbles]
    zeros = None
    if any(item.zeros is not None for item in nibbles):
        zeros = torch.cat([_zeros(item) for item in nibbles])
    return Int4Groups(
        torch.cat([item.packed for item in nibbles]),
        torch.cat([item.scales for item in nibbles]),
        zeros,
        group,
        nibbles[0].width,
    )


_INT8 = ("codes", "scales")
_MIDDLE = 8


def _zeros(item: Int4Groups) -> Tensor:
    """Return the zero points, written out where all are the middle."""
    if item.zeros is not None:
        return item.zeros
    return torch.full_like(item.scales, _MIDDLE, dtype=torch.uint8)


def _cut(item: Int4Groups, group: int) -> Int4Groups:
    """Cut the groups of a record into smaller ones of a length that divides theirs."""
    times = item.group // group
    if times == 1:
        return item
    scales = item.scales.repeat_interleave(times, 1)
    zeros = None if item.zeros is None else item.zeros.repeat_interleave(times, 1)
    return Int4Groups(item.packed, scales, zeros, group, item.width)
