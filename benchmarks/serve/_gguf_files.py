"""What a GGUF file of a Llama holds: its fields and its tensors, by llama.cpp's names."""

import numpy as np
from torch import Tensor

from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import Transformer

__all__ = ["fields_of", "stored_tensors"]


def fields_of(arch: Architecture) -> dict[str, float]:
    """Return the fields of a Llama's shape, without their common prefix."""
    return {
        "context_length": arch.max_positions,
        "embedding_length": arch.hidden_size,
        "block_count": arch.num_layers,
        "feed_forward_length": arch.intermediate_size,
        "attention.head_count": arch.num_heads,
        "attention.head_count_kv": arch.num_kv_heads,
        "rope.dimension_count": arch.head_dim,
        "rope.freq_base": arch.rope_theta,
        "attention.layer_norm_rms_epsilon": arch.norm_eps,
    }


def stored_tensors(model: Transformer) -> dict[str, np.ndarray]:
    """Return the tensors by llama.cpp's names, queries and keys in its order of rows."""
    arch, state = model.architecture, model.state_dict()
    kept = {
        "token_embd.weight": state["embedding.weight"],
        "output_norm.weight": state["norm.weight"],
    }
    if "output.weight" in state:
        kept["output.weight"] = state["output.weight"]
    for layer in range(arch.num_layers):
        ours, theirs = f"layers.{layer}.", f"blk.{layer}."
        for kind in ("weight", "bias"):
            if f"{ours}qkv.{kind}" in state:
                parts = _split_heads(state[f"{ours}qkv.{kind}"], arch)
                for name, part in zip("qkv", parts, strict=True):
                    kept[f"{theirs}attn_{name}.{kind}"] = part
        gate, up = state[f"{ours}up.weight"].chunk(2)
        kept |= {
            f"{theirs}attn_norm.weight": state[f"{ours}attention_norm.weight"],
            f"{theirs}ffn_norm.weight": state[f"{ours}mlp_norm.weight"],
            f"{theirs}attn_output.weight": state[f"{ours}out.weight"],
            f"{theirs}ffn_gate.weight": gate,
            f"{theirs}ffn_up.weight": up,
            f"{theirs}ffn_down.weight": state[f"{ours}down.weight"],
        }
    return {name: tensor.contiguous().numpy() for name, tensor in kept.items()}


def _split_heads(fused: Tensor, arch: Architecture) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows of queries, keys and values; the halves of turned heads are interleaved."""
    counts = (arch.num_heads, arch.num_kv_heads, arch.num_kv_heads)
    query, key, value = fused.split([count * arch.head_dim for count in counts])
    # As llama.cpp's converter does.
    turned = [
        part.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        for part, heads in ((query, arch.num_heads), (key, arch.num_kv_heads))
    ]
    return turned[0], turned[1], value
