"""Modules as AutoAWQ stores them: words of outputs, whose order within a word is its own."""

from typing import Any

from torch import Tensor

from steelyard.nn.quantized.words import Read, WholeNumbers, join_nibbles, spread_words

__all__ = ["read_awq"]

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word each of eight outputs stands."""


def read_awq(read: Read, settings: dict[str, Any]) -> WholeNumbers:
    """Read one module.

    Args:
        read: returns the module's tensors: `qweight` int32 [inputs, outputs / 8], `qzeros` int32
            [groups, outputs / 8], `scales` [groups, outputs].
        settings: `quantization_config` of the model.

    Returns:
        The weights [outputs, inputs].

    Raises:
        ValueError: a tensor is missing, shapes do not fit each other, or the layout is another.

    Source: Lin et al. 2023 (arXiv 2306.00978); layout of AutoAWQ's `WQLinear_GEMM`
        (awq/modules/linear/gemm.py, awq/utils/packing_utils.py).
    """
    words, packed, scales = read("qweight"), read("qzeros"), read("scales")
    if words is None or packed is None or scales is None:
        raise ValueError("qweight, qzeros or scales is missing")
    version = str(settings.get("version", "gemm")).lower()
    if settings["bits"] != 4 or version != "gemm":
        raise ValueError(f"{settings['bits']} bits, version {version!r}; read are 4 bits, 'gemm'")
    return WholeNumbers(join_nibbles(_ordered(words).T), 4, scales.T, _ordered(packed).T)


def _ordered(words: Tensor) -> Tensor:
    """Return the codes of words in the order of outputs, uint8 [rows, outputs]."""
    return spread_words(words, 4).unflatten(1, (-1, 8))[:, :, list(_PLACES)].flatten(1)
