"""What a GGUF file of a model holds: its fields and its tensors, by llama.cpp's names."""

import numpy as np
from torch import Tensor

from steelyard.catalog.architecture import Architecture
from steelyard.nn.gguf.families import FAMILIES, stored_name
from steelyard.nn.names import slots
from steelyard.nn.transformer import Transformer

__all__ = ["fields_of", "stored_tensors"]


def fields_of(arch: Architecture) -> dict[str, float]:
    """Return the fields of a model's shape, without their common prefix; 0 stands for none."""
    optional = {
        "attention.sliding_window": arch.sliding_window,
        "attn_logit_softcapping": arch.attention_softcap,
        "final_logit_softcapping": arch.logit_softcap,
        "attention.scale": arch.attention_scale,
        "embedding_scale": 0.0 if arch.embedding_scale == 1 else arch.embedding_scale,
        "residual_scale": 0.0 if arch.residual_scale == 1 else arch.residual_scale,
        "logit_scale": 0.0 if arch.logit_divisor == 1 else arch.logit_divisor,
    }
    return {
        "context_length": arch.max_positions,
        "embedding_length": arch.hidden_size,
        "block_count": arch.num_layers,
        "feed_forward_length": arch.intermediate_size,
        "attention.head_count": arch.num_heads,
        "attention.head_count_kv": arch.num_kv_heads,
        "attention.key_length": arch.head_dim,
        "attention.value_length": arch.head_dim,
        "rope.dimension_count": arch.rotary_dim or arch.head_dim,
        "rope.freq_base": arch.rope_theta,
        "attention.layer_norm_rms_epsilon": arch.norm_eps,
    } | {name: value for name, value in optional.items() if value}


def stored_tensors(model: Transformer, family: str = "llama") -> dict[str, np.ndarray]:
    """Return the tensors by llama.cpp's names, in its order of rows and with its gains."""
    arch, state = model.architecture, model.state_dict()
    kept: dict[str, Tensor] = {}
    for slot in slots(arch, FAMILIES[family].form):
        for part, tensor in zip(slot.parts, state[slot.name].split(slot.rows), strict=True):
            name = stored_name(part, arch)
            turned = FAMILIES[family].is_turned and (".attn_q." in name or ".attn_k." in name)
            # As llama.cpp's converter does: halves of turned heads alternate, and gains of Gemma
            # are the factors themselves.
            heads = arch.num_kv_heads if ".attn_k." in name else arch.num_heads
            ours = tensor + 1 if arch.unit_offset_norm and not slot.width else tensor
            kept[name] = (
                ours.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2) if turned else ours
            )
    return {name: tensor.contiguous().numpy() for name, tensor in kept.items()}
