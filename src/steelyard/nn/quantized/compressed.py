"""Modules as compressed-tensors stores them: packed words, or plain bytes."""

from typing import Any

import torch
from torch import Tensor

from steelyard.nn.quantized.words import BITS, Read, WholeNumbers, spread_words

__all__ = ["read_compressed"]


def read_compressed(read: Read, settings: dict[str, Any]) -> WholeNumbers:
    """Read one module.

    Args:
        read: returns the module's tensors: `weight_packed` int32 [outputs, inputs * bits / 32] with
            `weight_shape` [2], or `weight` int8 [outputs, inputs]; `weight_scale` [outputs, groups]
            or [1]; `weight_zero_point`, packed along outputs or int8 [outputs, groups], and
            `weight_g_idx` [inputs] where there are some.
        settings: `quantization_config` of the model; widths follow from the shapes.

    Returns:
        The weights [outputs, inputs].

    Raises:
        ValueError: a tensor is missing, or shapes do not fit each other.

    Source: compressed-tensors (github.com/vllm-project/compressed-tensors), formats
        "pack-quantized" and "int-quantized".
    """
    del settings
    scales, words, zeros = read("weight_scale"), read("weight_packed"), read("weight_zero_point")
    if scales is None:
        raise ValueError("weight_scale is missing")
    if words is None:
        given, bits = read("weight"), 8
        if given is None or given.dtype != torch.int8:
            raise ValueError("neither weight_packed nor an int8 weight")
        # Counted from 0, as packed codes are.
        codes = given.view(torch.uint8) ^ 0x80
    else:
        rows, columns = _shape(read("weight_shape"), words)
        bits = 32 * words.shape[1] // columns
        if bits not in BITS or words.shape[0] != rows or columns * bits % 8:
            raise ValueError(f"words {list(words.shape)} of weights {[rows, columns]}")
        codes = words.contiguous().view(torch.uint8)[:, : columns * bits // 8]
        if zeros is not None and zeros.dtype == torch.int32:
            zeros = spread_words(zeros.T, bits)[:, :rows].T
    if zeros is not None and zeros.dtype == torch.int8:
        zeros = zeros.short() + (1 << (bits - 1))
    if scales.ndim < 2:
        scales = scales.reshape(1, 1).expand(codes.shape[0], 1)
    return WholeNumbers(codes, bits, scales, zeros, read("weight_g_idx"))


def _shape(stored: Tensor | None, words: Tensor) -> tuple[int, int]:
    """Return outputs and inputs; words hold at least four inputs, so that shapes are bounded."""
    if stored is None or stored.numel() != 2:
        raise ValueError("weight_shape is missing or no pair")
    rows, columns = map(int, stored.tolist())
    if not 1 <= columns <= words.shape[1] * 8:
        raise ValueError(f"{columns} inputs in {words.shape[1]} words")
    return rows, columns
