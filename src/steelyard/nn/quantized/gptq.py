"""Modules as GPTQ tools store them: words of rows, zero points, and groups by activation order."""

from typing import Any

import torch

from steelyard.nn.quantized.words import Read, WholeNumbers, spread_words

__all__ = ["read_gptq"]


def read_gptq(read: Read, settings: dict[str, Any]) -> WholeNumbers:
    """Read one module.

    Args:
        read: returns the module's tensors: `qweight` int32 [inputs * bits / 32, outputs], `qzeros`
            int32 [groups, outputs * bits / 32], `scales` [groups, outputs] and, unless groups
            follow each other, `g_idx` int32 [inputs].
        settings: `quantization_config` of the model.

    Returns:
        The weights [outputs, inputs].

    Raises:
        ValueError: a tensor is missing, or shapes do not fit each other.

    Source: Frantar et al. 2022 (arXiv 2210.17323); layout of AutoGPTQ
        (auto_gptq/nn_modules/qlinear) and, for `checkpoint_format` "gptq_v2", of GPTQModel.
    """
    words, packed, scales = read("qweight"), read("qzeros"), read("scales")
    if words is None or packed is None or scales is None:
        raise ValueError("qweight, qzeros or scales is missing")
    bits = settings["bits"]
    # Words hold inputs that follow each other: turned, their bytes are rows of codes already.
    codes = words.T.contiguous().view(torch.uint8)
    zeros = spread_words(packed, bits).T
    # The first version stores zero points less 1.
    offset = 0 if settings.get("checkpoint_format") == "gptq_v2" else 1
    return WholeNumbers(codes, bits, scales.T, zeros.short() + offset, read("g_idx"))
