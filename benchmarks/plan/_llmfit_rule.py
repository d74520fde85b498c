"""llmfit's published rule for the memory of a served model, for comparison; its terms as published.

Weights: parameters times bytes per parameter (F32 4, BF16 2) in GB. Keys and values: 16 bits,
2 x layers x key/value heads x head width x context, in GiB added up as GB. Half a GB for the
runtime. There is no rule for training.

Source: github.com/AlexsJones/llmfit, llmfit-core/src/models.rs, `estimate_memory_gb_with_kv`,
`kv_cache_gb` and `quant_bpp` (as of 2026).
"""

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.parameters import count_parameters

__all__ = ["llmfit_bytes"]

_BYTES_PER_PARAMETER = {"fp32": 4.0, "bf16": 2.0}
_RUNTIME_GB = 0.5


def llmfit_bytes(arch: Architecture, dtype: str, *, tokens: int) -> float:
    """Return what llmfit says a served model needs.

    Args:
        arch: model.
        dtype: "fp32" or "bf16".
        tokens: context; here that of all sequences together, which is to its advantage.

    Returns:
        Bytes, a GB of the rule being 1e9.
    """
    weights_gb = count_parameters(arch).total / 1e9 * _BYTES_PER_PARAMETER[dtype]
    cache = 2.0 * arch.num_kv_heads * arch.head_dim * tokens * 2.0 * arch.num_layers
    return 1e9 * (weights_gb + cache / 2**30 + _RUNTIME_GB)
