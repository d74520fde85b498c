"""What the packed weights of a linear map are made of, and the type each map is packed in."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from steelyard.nn.numerics.bf16 import to_bf16
from steelyard.nn.numerics.blocks import BlockCodes
from steelyard.nn.numerics.int4 import Int4Groups, quantize_int4
from steelyard.nn.numerics.int8 import Int8Rows, quantize_int8
from steelyard.nn.stored import ROWS, Codes, StoredLinear, StoredTable, joined
from steelyard.nn.transformer import Transformer
from steelyard.serve.running.pages import let_go
from steelyard.serve.running.weights import INT4_GROUP, ComputedIn, chosen_weights, head_type

__all__ = [
    "LinearTypes",
    "Source",
    "as_codes",
    "as_numbers",
    "head_of",
    "release",
    "shape_of",
]

Source = Tensor | StoredLinear | Codes
"""A weight [N, K]: numbers, numbers of files, or codes."""


class LinearTypes:
    """In which type each linear map of a model is computed.

    A model of codes that is served in its own type keeps them: its maps are of the types that the
    file has, and those that are not quantized are rounded to bytes, as its head is.
    """

    def __init__(self, model: Transformer, weights: ComputedIn) -> None:
        """Compare the type with that of the model.

        Args:
            model: a decoder.
            weights: type in which its layers are computed.
        """
        self._weights: ComputedIn = weights
        is_coded = weights in ("int8", "int4")
        self._keeps_codes = is_coded and weights == chosen_weights(model, "auto")

    def of(self, item: nn.Module, *, is_head: bool = False) -> ComputedIn:
        """Return the type of a linear map.

        Args:
            item: the map, or the table that is the head.
            is_head: whether it makes logits.

        Returns:
            The type.
        """
        if not self._keeps_codes:
            return head_type(self._weights) if is_head else self._weights
        kept = item.kind if isinstance(item, StoredLinear) else ""
        return "int4" if kept == "int4" else "int8"

    def source(self, item: nn.Module) -> Source:
        """Return what a map is packed from, reading its codes if they are kept.

        Args:
            item: the map, or the table that is the head.

        Returns:
            Codes, whose type may be another than `of` says where a file's scales cannot be taken;
            else numbers.
        """
        if isinstance(item, StoredLinear):
            return item.codes() if self._keeps_codes and item.kind else item
        return cast(Tensor, item.weight).detach()


def head_of(model: Transformer) -> nn.Module:
    """Return the linear map that makes logits, or the table that it is tied to.

    Args:
        model: a decoder.

    Returns:
        A module that `LinearTypes` takes.
    """
    if model.output is not None:
        return model.output
    table = model.embedding
    return table.as_linear if isinstance(table, StoredTable) else table


def release(item: nn.Module) -> None:
    """Let go of the pages of files behind a map that was packed.

    Args:
        item: the map, or a table.
    """
    if isinstance(item, StoredLinear):
        item.release()
    else:
        let_go(cast(Tensor, item.weight))


def shape_of(source: Source) -> tuple[int, int]:
    """Return rows and columns.

    Args:
        source: a weight.

    Returns:
        N and K.
    """
    if isinstance(source, StoredLinear):
        return source.out_features, source.in_features
    if isinstance(source, (Int4Groups, BlockCodes)):
        return len(source.scales), source.width
    codes = source.codes if isinstance(source, Int8Rows) else source
    return codes.shape[0], codes.shape[1]


def as_numbers(source: Tensor | StoredLinear, dtype: torch.dtype) -> Tensor:
    """Return a weight as contiguous numbers.

    Args:
        source: float32, bfloat16 or float16 [N, K].
        dtype: float32 or bfloat16; float16 of what is.

    Returns:
        [N, K], which may share memory with the source.

    Raises:
        ConfigError: a number is infinite or NaN, and would have to be rounded.
    """
    if isinstance(source, Tensor) and source.dtype == dtype:
        return source.contiguous()
    made = torch.empty(shape_of(source), dtype=dtype)
    first = 0
    for rows in _rows(source):
        rounds = dtype == torch.bfloat16 and rows.dtype != dtype
        made[first : first + len(rows)] = to_bf16(rows) if rounds else rows
        first += len(rows)
    return made


def as_codes(
    source: Source, kind: ComputedIn, *, group: int = INT4_GROUP, zero_points: bool = False
) -> Codes:
    """Return a weight as codes.

    Args:
        source: codes, which are returned as they are, or numbers [N, K].
        kind: "int8" or "int4", of numbers.
        group: weights that share a scale with "int4".
        zero_points: whether groups have zero points with "int4".

    Returns:
        The codes.

    Raises:
        ConfigError: a number cannot be rounded to the type.
    """
    if isinstance(source, Codes):
        return source
    # A few rows at a time: the codecs hold several float32 copies of what they are given.
    if kind == "int8":
        return joined([quantize_int8(rows) for rows in _rows(source)])
    return joined(
        [quantize_int4(rows, group=group, zero_points=zero_points) for rows in _rows(source)]
    )


def _rows(source: Tensor | StoredLinear) -> Iterator[Tensor]:
    """Return the rows in order, some at a time."""
    return source.numbers() if isinstance(source, StoredLinear) else iter(source.split(ROWS))
